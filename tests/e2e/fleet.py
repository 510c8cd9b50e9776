"""What the end-to-end tests share: where the binaries are, a temporary folder, running commands, a coordinator with its workers, reading results."""
import gzip
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("TOKENFLEET_BIN", ROOT / "build" / "default" / "bin"))
TOKENFLEET = str(BIN / "tokenfleet")
WORKER = str(BIN / "tokenfleet-worker")
DEMO = ROOT / "ops" / "demo_model"
SANITIZED = bool(os.environ.get("TOKENFLEET_SANITIZE"))


class Failure(Exception):
    """A check that did not hold."""


def check(condition, sentence):
    if not condition:
        raise Failure(sentence)


def call(args, expect=0, timeout=300, env=None, **options):
    """Run a command to its end; its exit status must be `expect` (None: any)."""
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})}, **options)
    if expect is not None and done.returncode != expect:
        raise Failure(f"exit {done.returncode} instead of {expect}: {' '.join(map(str, args))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done


def run_args(job, out, *more, model=DEMO):
    return [TOKENFLEET, "run", job, "--model", model, "--out", out, *more]


def run(job, out, *more, model=DEMO, expect=0, **options):
    return call(run_args(job, out, *more, model=model), expect=expect, **options)


def sha(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def both(out):
    """The hashes of OUT and of its error file."""
    return sha(out), sha(f"{out}.errors.jsonl")


def lines(path):
    """Every line of a JSONL file (also .gz), parsed."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def choices(line):
    return line["response"]["body"]["choices"]


def children(pid):
    """Every process below `pid`, nearest first."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = open(f"/proc/{entry}/stat").read()
            except OSError:
                continue
            table.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        below = table.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def command_of(pid):
    try:
        return open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
    except OSError:
        return []


def wait_catches(process, *signals):
    """Until the process takes these signals itself: before that a signal ends it by default, and a loaded machine may need a while to get there."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        masks = dict(line.split(":", 1) for line in open(f"/proc/{process.pid}/status") if line.startswith(("SigBlk", "SigCgt")))
        if all((int(masks["SigBlk"], 16) | int(masks["SigCgt"], 16)) >> (number - 1) & 1 for number in signals):
            return
        check(time.monotonic() < deadline, f"process {process.pid} does not catch {signals}")
        time.sleep(0.02)


def wait_gone(pids):
    """Workers and engines of a killed run end by themselves."""
    wait_for(lambda: all(command_of(pid)[:1] in ([], [b""]) for pid in pids), f"processes {pids} outlived their run", 20)


def wait_for(condition, sentence, seconds=60):
    """Until the condition holds; after so long without it the test fails with the sentence."""
    until = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < until, sentence)
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    """A coordinator on loopback and some workers; everything ends with the block."""

    def __init__(self, spool, n_workers=2):
        self.spool, self.endpoint, self.processes = spool, f"tcp://127.0.0.1:{free_port()}", []
        self.n_workers = n_workers

    def start_coordinator(self, **options):
        self.coordinator = subprocess.Popen([TOKENFLEET, "coordinator", "--spool", str(self.spool), "--bind", self.endpoint], **options)
        self.processes.append(self.coordinator)

    def start_worker(self, *more):
        worker = subprocess.Popen([WORKER, "--connect", self.endpoint, "--model", str(DEMO), "--threads", "1", *more])
        self.processes.append(worker)
        return worker

    def __enter__(self):
        self.start_coordinator()
        self.workers = [self.start_worker() for _ in range(self.n_workers)]
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def call(self, command, *args, expect=0, timeout=120):
        return call([TOKENFLEET, command, *args, "--to", self.endpoint], expect=expect, timeout=timeout)


def job_file(folder, n_rows, max_tokens=40):
    job = folder / "job.jsonl"
    job.write_text("".join(json.dumps({"custom_id": f"r{i}", "prompt": [i % 1000 + 3] * 30, "max_tokens": max_tokens, "ignore_eos": True}) + "\n" for i in range(n_rows)))
    return job


class Scratch:
    """A temporary folder that is gone afterwards; kept when the test fails."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tokenfleet-e2e-"))
        return self.path

    def __exit__(self, kind, *_):
        if kind is None or os.environ.get("TOKENFLEET_KEEP") is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            print(f"kept {self.path}", file=sys.stderr)


def main(tests):
    """Run (name, function) pairs, each with a scratch folder; print one line each; exit 1 when one failed."""
    failed = 0
    chosen = [t for t in tests if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    for test in chosen:
        start = time.monotonic()
        try:
            with Scratch() as folder:
                note = test(folder)
            print(f"ok    {test.__name__} ({time.monotonic() - start:.1f} s){': ' + note if note else ''}", flush=True)
        except (Failure, subprocess.TimeoutExpired, OSError, KeyError, ValueError) as problem:
            failed += 1
            print(f"FAIL  {test.__name__} ({time.monotonic() - start:.1f} s): {type(problem).__name__}: {problem}", flush=True)
    sys.exit(1 if failed or not chosen else 0)
