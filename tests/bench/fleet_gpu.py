#!/usr/bin/env python3
"""Jobs on this machine's GPUs through the real fleet: coordinator, workers, ledger, output. Figures, and what must hold under kills, full memory, odd rows and over time.

usage: tests/bench/fleet_gpu.py [PART ...] [--model PATH] [--rows N] [--gpus N,N] [--minutes M] [--device cuda|cpu] [--gpu-share N] [--json FILE]

  rate      rows of 512 tokens in and 256 out with 1 GPU and with 2 (--gpus): seconds, tokens/s, how busy the GPUs were (their engines' figures, and nvidia-smi's), one hash
  killed    engines killed with SIGKILL in the middle of the job: the same hash
  full      a KV pool that no GPU holds is refused with a sentence; a job on a GPU whose memory another one has taken ends with a sentence or well, and neither hangs
  odd       a row of the model's whole context among short ones; 10,000 rows of one token
  soak      jobs one after the other through workers that stay, for --minutes (default 1; a release wants 30): mixed rows, every eighth time a row of the whole context among short ones
            or 10,000 rows of one token; in the first third engines are killed with SIGKILL and a worker comes whose pool no GPU holds. Each job has one hash throughout, and the memory
            of GPU and processes stays flat. SIGTERM ends it early, with its figures

PART is all but soak by default. TOKENFLEET_BIN names the folder of the programs (default build/default/bin). --gpu-share N leaves a soak's workers the N-th part of each GPU's memory. Models default to random:1:qwen3.5-0.8b, rows to 4096, gpus to 1,2 as far
as they are there. Prompts are token ids, outputs carry token ids, so that a model without tokenizer has a hash that says something. Ends with 0 when everything holds, else 1."""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import fleet  # noqa: E402
from fleet import Failure, check  # noqa: E402

PARTS = ["rate", "killed", "full", "odd", "soak"]
N_IDS = 200                              # prompts are made of the first so many ids, which every vocabulary has
JOB_SECONDS = 600
FLAT_SHARE, FLAT_MB = 0.02, 48           # what memory may grow by in a soak and still be flat


def ids_of(seed, n):
    draw = random.Random(seed)
    return [draw.randrange(N_IDS) for _ in range(n)]


def write_job(path, rows):
    with open(path, "w") as file:
        for i, (n_prompt, n_output, more) in enumerate(rows):
            file.write(json.dumps({"custom_id": f"r{i}", "prompt": ids_of(i, n_prompt), "max_tokens": n_output, "ignore_eos": True, "return_token_ids": True, **more}) + "\n")
    return path


class Watch:
    """GPUs as nvidia-smi sees them, twice a second, while the block runs: (seconds, GPU, utilization %, memory MB)."""

    def __init__(self, settings):
        self.samples, self.process = [], None
        self.has_gpu = settings.device == "cuda"

    def read(self):
        for line in self.process.stdout:
            fields = line.split(",")
            if len(fields) == 3 and all(field.strip().isdigit() for field in fields):
                self.samples.append((time.monotonic(), *(int(field) for field in fields)))

    def __enter__(self):
        if self.has_gpu:
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "500"], stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()

    def utilization(self, gpus):
        """Means from the first to the last sample in which a GPU worked, in percent."""
        means = []
        for gpu in gpus:
            values = [sample[2] for sample in self.samples if sample[1] == gpu]
            busy = [i for i, value in enumerate(values) if value > 0]
            means.append(sum(values[busy[0]:busy[-1] + 1]) / (busy[-1] + 1 - busy[0]) if busy else 0)
        return means


def visible(settings, n_gpus):
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(n_gpus)))} if settings.device == "cuda" else {}


def run_args(settings, job, out, *more, model=None):
    return [str(a) for a in (fleet.TOKENFLEET, "run", job, "--model", model or settings.model, "--out", out, "--device", settings.device, "--json", "--restart", "--seed", 3, *more)]


def run_job(settings, job, out, *more, n_gpus=1, expect=0, model=None, seconds=JOB_SECONDS):
    done = fleet.call(run_args(settings, job, out, *more, model=model), expect=expect, timeout=seconds, env=visible(settings, n_gpus))
    return json.loads(done.stdout) if expect == 0 else done


# ---- parts ----

def rate(settings, folder):
    job = write_job(folder / "job.jsonl", [(512, 256, {"temperature": 0.6})] * settings.rows)
    prompt_tokens, output_tokens = settings.rows * 512, settings.rows * 256
    rates, hashes = {}, set()
    for n_gpus in settings.gpus:
        out = folder / "out.jsonl"
        with Watch(settings) as watch:
            summary = run_job(settings, job, out, *([] if settings.device == "cuda" else ["--workers", n_gpus]), n_gpus=n_gpus)
        check(summary["rows"]["completed"] == settings.rows and summary["tokens"] == output_tokens, f"{summary}")
        hashes.add(fleet.both(out))
        work = summary["work_seconds"]
        rates[n_gpus] = output_tokens / work
        shares = ", ".join(f"{gpu['busy_share'] * 100:.1f} %" for gpu in summary["gpus"] if "busy_share" in gpu) or "not measured"
        settings.say(f"{n_gpus} GPU{'s' if n_gpus > 1 else ''}: {work:.2f} s of work ({summary['seconds']:.1f} s with the model's loading), {output_tokens / work:.0f} output tokens/s, "
                     f"{(output_tokens + prompt_tokens) / work:.0f} tokens/s in all; busy by the engines {shares}, by nvidia-smi {', '.join(f'{u:.0f} %' for u in watch.utilization(range(n_gpus))) if watch.has_gpu else '-'}; "
                     f"sha256 {fleet.sha(out)[:16]}", rows=settings.rows, gpus=n_gpus, seconds=work, output_tokens_per_s=output_tokens / work, reports=summary["gpus"], sha256=fleet.sha(out))
    check(len(hashes) == 1, f"other bytes with other GPUs: {hashes}")
    if len(rates) > 1:
        most, least = max(rates), min(rates)
        settings.say(f"{most} against {least}: {rates[most] / rates[least]:.3f} times the rate", ratio=rates[most] / rates[least])


def killed(settings, folder):
    job = write_job(folder / "job.jsonl", [(100 + i * 37 % 400, 64 + i * 61 % 100, {"temperature": 0.8, "top_p": 0.95}) for i in range(max(16, settings.rows // 4))])
    n_gpus = settings.gpus[-1]
    began = time.monotonic()
    run_job(settings, job, folder / "plain.jsonl", "--workers", 2, n_gpus=n_gpus)
    plain = time.monotonic() - began
    process = subprocess.Popen(run_args(settings, job, folder / "killed.jsonl", "--workers", 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **visible(settings, n_gpus)})
    n_killed, began = 0, time.monotonic()
    while process.poll() is None:
        if time.monotonic() - began > 10 * plain + 120:
            process.kill()                           # its workers end with it
            process.communicate()
            raise Failure("the job hangs after its engine was killed")
        time.sleep(0.05)
        engines = sorted(engines_of([process]))
        if engines and n_killed < 2 and time.monotonic() - began > (0.55, 0.9)[n_killed] * plain:
            os.kill(engines[n_killed % len(engines)], signal.SIGKILL)
            n_killed += 1
    text = process.communicate()
    check(process.returncode == 0, f"exit {process.returncode}: {text[1][-800:]}")
    check(n_killed > 0, "no engine was killed: the job was too short")
    check(fleet.both(folder / "plain.jsonl") == fleet.both(folder / "killed.jsonl"), "other bytes after a kill")
    took = time.monotonic() - began
    settings.say(f"{n_killed} engines killed, the same bytes; {took:.1f} s, {plain:.1f} s without", killed=n_killed, seconds=took, plain_seconds=plain)


def full(settings, folder):
    job = write_job(folder / "job.jsonl", [(64, 16, {})] * 32)
    done = run_job(settings, job, folder / "a.jsonl", "--kv-tokens", 1 << 36, expect=3, seconds=120)
    check("lower --kv-tokens" in done.stderr and len(done.stderr.strip().splitlines()) == 1, f"{done.stderr[-500:]}")
    settings.say(f"a pool too large: {done.stderr.strip().splitlines()[-1]}")
    if settings.device != "cuda":
        return
    long_job = write_job(folder / "long.jsonl", [(512, 4000, {})] * 256)
    holder = subprocess.Popen(run_args(settings, long_job, folder / "long_out.jsonl", model="random:1:qwen3-8b"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **visible(settings, 1)})
    try:
        free, deadline = None, time.monotonic() + 90
        while time.monotonic() < deadline and (free is None or free > 8000):
            time.sleep(1)
            free = int(subprocess.run(["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0"], stdout=subprocess.PIPE, text=True).stdout.split()[0])
        check(free is not None and free <= 8000, f"the first job left {free} MB")
        began = time.monotonic()
        done = fleet.call(run_args(settings, job, folder / "b.jsonl"), expect=None, timeout=150, env=visible(settings, 1))
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        check(done.returncode in (0, 3) and last, f"exit {done.returncode}: {done.stderr[-500:]}")
        settings.say(f"beside a job that left {free} MB of the GPU: exit {done.returncode} after {time.monotonic() - began:.0f} s: {last}")
        check(holder.poll() is None, "the first job ended meanwhile")
    finally:
        holder.terminate()
        time.sleep(1)
        holder.terminate()
        try:
            holder.wait(60)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


def odd(settings, folder):
    context = settings.context
    rows = [(20 + i % 100, 32, {"temperature": 0.7}) for i in range(200)]
    long_row = (context - 64, 64, {"temperature": 0.7})
    job = write_job(folder / "long.jsonl", rows[:50] + [long_row] + rows[50:])
    began = time.monotonic()
    summary = run_job(settings, job, folder / "long_out.jsonl")
    check(summary["rows"]["completed"] == 201 and summary["rows"]["failed"] == 0, f"{summary}")
    settings.say(f"a row of {context} tokens among 200 short ones: {time.monotonic() - began:.1f} s")
    n = 10000
    job = write_job(folder / "ones.jsonl", [(1, 1, {})] * n)
    began = time.monotonic()
    summary = run_job(settings, job, folder / "ones_out.jsonl")
    check(summary["rows"]["completed"] == n and summary["tokens"] == n, f"{summary}")
    settings.say(f"{n} rows of one token: {time.monotonic() - began:.1f} s, {n / max(summary['work_seconds'], 1e-9):.0f} rows/s once the model was loaded")


def resident_mb(pids):
    """Of each kind of process (coordinator, worker, engine by their short names), all together."""
    total = {}
    for pid in pids:
        try:
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            total[name] = total.get(name, 0) + int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 / 1e6
        except (OSError, IndexError):
            pass
    return total


def grows(values):
    """By how much the last third is above the second: medians, so that a moment counts for nothing. The first third is for warming up."""
    n = len(values) // 3
    middle, last = sorted(values[n:2 * n]), sorted(values[2 * n:])
    return last[len(last) // 2] - middle[len(middle) // 2] if n else 0, middle[len(middle) // 2] if n else 0


MIXED, LONG, ONES, KILL, FULL = "mixed", "long", "ones", "kill", "full"
SOAK_TURNS = [MIXED, KILL, MIXED, LONG, MIXED, FULL, MIXED, ONES]      # what a soak's jobs are, in turn; KILL and FULL in its first third


def soak_jobs(settings, folder):
    n = max(8, settings.rows // 8)
    mixed = [(1 + i * 37 % 700, 1 + i * 61 % 300, {"temperature": 0.9, "n": 1 + i % 3, **({"logprobs": 3} if i % 5 == 0 else {}), **({"top_k": 40, "repetition_penalty": 1.1} if i % 4 == 0 else {})}) for i in range(n)]
    short = [(20 + i % 100, 32, {"temperature": 0.7}) for i in range(n // 4)]
    return {MIXED: write_job(folder / "mixed.jsonl", mixed), LONG: write_job(folder / "long.jsonl", short + [(settings.context - 64, 64, {"temperature": 0.7})] + short),
            ONES: write_job(folder / "ones.jsonl", [(1, 1, {})] * min(10000, 20 * n))}


def engines_of(processes):
    return {pid for p in processes for pid in fleet.children(p.pid) if pathlib.Path(f"/proc/{pid}/comm").exists() and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "tokenfleet-eng"}


def soak(settings, folder):
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    jobs, hashes, host, marks, engines, turns, began = soak_jobs(settings, folder), {}, [], [], set(), [], time.monotonic()
    service = fleet.Service(folder / "spool", n_workers=0)
    devices = [f"cuda:{i}" for i in range(settings.gpus[-1])] if settings.device == "cuda" else ["cpu"]
    worker = [fleet.WORKER, "--connect", service.endpoint, "--model", settings.model] + (["--gpu-share", str(settings.gpu_share)] if settings.device == "cuda" else [])
    with service, Watch(settings) as watch:
        workers = [subprocess.Popen([*worker, "--device", device]) for device in devices]
        service.processes += workers
        while not ended and (time.monotonic() - began < 60 * settings.minutes or len(turns) < len(SOAK_TURNS)):
            turn = SOAK_TURNS[len(turns) % len(SOAK_TURNS)]
            is_early = time.monotonic() - began < 20 * settings.minutes or len(turns) < len(SOAK_TURNS)
            what, out = turn if turn in jobs else MIXED, folder / "out.jsonl"
            name = service.call("submit", jobs[what], "--seed", 3).stdout.strip()
            if turn == KILL and is_early:
                time.sleep(0.5)
                for pid in engines_of(workers):
                    os.kill(pid, signal.SIGKILL)
            if turn == FULL and is_early:
                done = fleet.call([*worker, "--device", devices[0], "--kv-tokens", 1 << 36], expect=3, timeout=120)
                check("lower --kv-tokens" in done.stderr, f"{done.stderr[-500:]}")
            service.call("fetch", name, "--out", out, "--force", timeout=JOB_SECONDS)
            check(hashes.setdefault(what, fleet.both(out)) == fleet.both(out), f"job {len(turns)} ({turn}) has other bytes than the first of its kind")
            service.call("delete", name)
            engines |= engines_of(workers)
            host.append(resident_mb([p.pid for p in service.processes] + [pid for p in service.processes for pid in fleet.children(p.pid)]))
            turns.append(turn if is_early or turn in jobs else MIXED)
            if time.monotonic() - began > 60 * len(marks):
                marks.append(host[-1])
                print(f"      {time.monotonic() - began:.0f} s, {len(turns)} jobs: " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in host[-1].items()), flush=True)
        check(all(p.poll() is None for p in service.processes), "a process of the fleet ended")
    n_kills = turns.count(KILL)
    check(len(engines) <= len(devices) * (1 + n_kills), f"{len(engines)} engines were started for {len(devices)} workers and {n_kills} kills")
    memory = {name: [sample.get(name, 0) for sample in host] for name in host[-1]} | {f"GPU {gpu}": [s[3] for s in watch.samples if s[1] == gpu] for gpu in range(len(devices)) if watch.has_gpu}
    notes = []
    for what, values in memory.items():
        more, before = grows(values)
        notes.append(f"{what} {before:.0f} MB, {more:+.1f} ({values[0]:.0f} at first, {values[-1]:.0f} at the end)")
        check(more <= max(FLAT_MB, FLAT_SHARE * before), f"the memory of {what} grows: {before:.0f} MB and then {more:+.1f} MB")
    settings.say(f"{len(turns)} jobs in {time.monotonic() - began:.0f} s ({', '.join(f'{turns.count(turn)} {turn}' for turn in dict.fromkeys(SOAK_TURNS))}), {len(engines)} engines in all, one hash for each kind; "
                 f"memory between the second and the last third: {', '.join(notes)}")


def n_gpus_here(device):
    if device != "cuda":
        return 2
    report = json.loads(fleet.call([fleet.WORKER, "gpus"]).stdout)
    if not report["gpus"]:
        print(f"fleet_gpu: no GPU can be used here: {report['why']}", file=sys.stderr)
        sys.exit(1)
    return len(report["gpus"])


def context_of(model):
    """What the model holds: its own figure for a known shape, else its config's."""
    shapes = {"qwen3.5-0.8b": 262144, "qwen3.5-35b-a3b": 262144, "qwen3-0.6b": 40960, "qwen3-8b": 40960, "laguna-xs.2": 131072}
    name = model.split(":", 2)[-1]
    return shapes[name] if name in shapes else json.loads((pathlib.Path(name) / "config.json").read_text())["max_position_embeddings"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--model", default="random:1:qwen3.5-0.8b")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpu-share", type=int, default=1)
    parser.add_argument("--json")
    settings = parser.parse_args()
    unknown = set(settings.parts) - set(PARTS)
    if unknown:
        parser.error(f"a PART is {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    here = n_gpus_here(settings.device)
    settings.gpus = sorted({min(int(n), here) for n in settings.gpus.split(",")})
    settings.context = context_of(settings.model)
    record, failed = [], 0

    def say(line, **figures):
        print("      " + line, flush=True)
        record.append({"line": line, **figures})

    settings.say = say
    for part in settings.parts or [p for p in PARTS if p != "soak"]:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="fleet_gpu.") as name:
                print(f"{part}:", flush=True)
                globals()[part](settings, pathlib.Path(name))
            print(f"ok    {part} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failure, subprocess.TimeoutExpired, OSError, KeyError, ValueError) as problem:
            failed += 1
            print(f"FAIL  {part} ({time.monotonic() - began:.1f} s): {type(problem).__name__}: {problem}", flush=True)
    if settings.json:
        pathlib.Path(settings.json).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
