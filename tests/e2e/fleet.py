"""What the end-to-end tests share: where the binaries are, a temporary folder, running commands, reading results."""
import gzip
import hashlib
import json
import os
import pathlib
import shutil
import signal
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
    deadline = time.monotonic() + 20
    while any(command_of(pid)[:1] not in ([], [b""]) for pid in pids):
        check(time.monotonic() < deadline, f"processes {pids} outlived their run")
        time.sleep(0.02)


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
