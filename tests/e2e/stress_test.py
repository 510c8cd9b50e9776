#!/usr/bin/python3
"""The stress job has one hash, whatever the fleet looked like and whatever died on the way.

STRESS_ROWS (default 60; ops/soak says 300) rows of stress_job.py on the demo model; STRESS_KILLS (default 20) kills of the whole run. Under a sanitizer, which is
some ten times slower, 16 rows and 6 kills: what needs more rows than that (shares of workers, preemptions) is for the plain build to show."""
import json
import os
import random
import signal
import subprocess
import time

import fleet
from fleet import SANITIZED, check, wait_gone
from stress_job import make_row

ROWS = int(os.environ.get("STRESS_ROWS", "16" if SANITIZED else "60"))
KILLS = int(os.environ.get("STRESS_KILLS", "6" if SANITIZED else "20"))
VOCAB = 1024
KILL_S = 4.0 if SANITIZED else 1.0 if ROWS >= 300 else 0.3       # the cut is over in a few seconds; a sanitized engine takes one to start
POOL_FOR_TWO = ["--max-context", "1856", "--kv-tokens", "3712"]      # 1,500 prompt + 300 output tokens, in blocks of 64

reference = None                       # the hashes that every run must have


def job_file(folder):
    path = folder / "stress.jsonl"
    path.write_text("".join(json.dumps(make_row(row, VOCAB, 1)) + "\n" for row in range(ROWS)))
    return path


def same_hash(folder, *settings, env=None):
    """Run the job with these settings; its hashes must be the reference's (made by the first call). Returns the run's summary."""
    global reference
    out = folder / "out.jsonl"
    done = fleet.run(job_file(folder), out, "--seed", "5", "--json", *settings, env=env, timeout=1100)
    hashes = fleet.both(out)
    reference = reference or hashes
    check(hashes == reference, f"{settings} {env}: hash {hashes} instead of {reference}")
    verify = fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    check(hashes[0] in verify.stdout, f"verify does not print the hash {hashes[0]}: {verify.stdout}")
    return json.loads(done.stdout)


def one_worker_and_sampling_is_real(folder):
    """The reference run; at least 30% of the sampled tokens are not the most likely one, and another seed gives another hash."""
    same_hash(folder, "--workers", "1", "--threads", "1")
    rows = fleet.lines(folder / "out.jsonl")
    check(len(rows) == ROWS and [r["custom_id"] for r in rows] == [f"stress-{i}" for i in range(ROWS)], "rows missing or out of order")
    sampled = other = 0
    for index, row in enumerate(rows):
        asked = make_row(index, VOCAB, 1)
        asked = asked.get("body", asked)
        if asked["temperature"] == 0 or not asked.get("logprobs"):
            continue
        n_echo = len(asked["prompt"]) if asked.get("echo") else 0
        for choice in fleet.choices(row):
            logprobs = choice["logprobs"]
            for own, top in list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"]))[n_echo:]:
                sampled += 1
                other += own < max(top.values())
    check(sampled > 100 and other >= 0.3 * sampled, f"only {other} of {sampled} sampled tokens differ from greedy")
    out = folder / "seed6.jsonl"
    fleet.run(job_file(folder), out, "--seed", "6")
    check(fleet.sha(out) != reference[0], "another seed gives the same hash")
    return f"{other} of {sampled} sampled tokens differ from greedy"


def workers(folder):
    for n in (2, 4):
        for _ in range(3):                               # on a loaded machine one may come up when the others are nearly done
            summary = same_hash(folder, "--workers", str(n), "--threads", "1", "--restart")
            shares = sorted(w["rows"] for w in summary["workers"])
            if len(shares) == n and shares[0] >= 0.1 * ROWS:
                break
        check(SANITIZED or len(shares) == n and shares[0] >= 0.1 * ROWS, f"{n} workers committed {shares} rows of {ROWS}")


def threads(folder):
    same_hash(folder, "--threads", "2")


def batch_limits(folder):
    for n in (1, 3, 64):
        same_hash(folder, "--batch", str(n), "--restart")


def prefill_budgets(folder):
    for n in (64, 512):
        same_hash(folder, "--prefill-budget", str(n), "--restart")


def pool_for_two_sequences(folder):
    for _ in range(3):                                   # on a loaded machine rows may come one by one, each when the one before is done
        summary = same_hash(folder, *POOL_FOR_TWO, "--restart")
        if SANITIZED or summary["preemptions"] > 0:
            break
    check(SANITIZED or summary["preemptions"] > 0, "no sequence was preempted")
    return f"{summary['preemptions']} preemptions"


def kernel_forms(folder):
    flags = open("/proc/cpuinfo").read()
    forms = ([] if SANITIZED else ["scalar"]) + ["avx2"] + (["avx512"] if "avx512bw" in flags else [])
    for form in forms:
        same_hash(folder, "--restart", env={"TOKENFLEET_KERNELS": form})
    return " ".join(forms)


def killed_worker_every_second(folder):
    """SIGKILL one of the run's workers, or its engine, every KILL_S seconds."""
    job, out, rng, kills = job_file(folder), folder / "out.jsonl", random.Random(7), 0
    run = subprocess.Popen(fleet.run_args(job, out, "--seed", "5", "--workers", "2", "--threads", "1"), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 900
    while run.poll() is None and time.monotonic() < deadline:
        try:
            run.wait(KILL_S)
        except subprocess.TimeoutExpired:
            victims = fleet.children(run.pid)
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                kills += 1
    words = run.communicate()[1]
    check(run.returncode == 0, f"run ended with {run.returncode}: {words[-1500:]}")
    check(fleet.both(out) == reference, "another hash after killed workers")
    check(SANITIZED or kills > 0, "the job ended before a worker could be killed")
    fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    return f"{kills} kills"


def killed_run(folder):
    """SIGKILL the whole run at a random moment and start it again, until it ends by itself after KILLS kills."""
    job, out, rng = job_file(folder), folder / "out.jsonl", random.Random(11)
    kills, command = 0, fleet.run_args(job, out, "--seed", "5", "--workers", "2", "--threads", "1")
    again = []                                           # --restart begins anew once the job has ended before the last kill
    while kills < KILLS:
        run = subprocess.Popen(command + again, stderr=subprocess.DEVNULL)
        again = []
        try:
            status = run.wait(rng.uniform(0.05, 4.0 if SANITIZED else 1.2))
        except subprocess.TimeoutExpired:
            below = fleet.children(run.pid)
            run.kill()
            run.wait()
            kills += 1
            wait_gone(below)
        else:
            check(status == 0, f"run ended with {status} after {kills} kills")
            check(fleet.both(out) == reference, f"another hash after {kills} kills")
            again = ["--restart"]
    fleet.run(job, out, "--seed", "5", "--workers", "2", "--threads", "1", timeout=1100)
    check(fleet.both(out) == reference, f"another hash after {kills} kills")
    fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    return f"{kills} kills"


def batching_pays(folder):
    """64 rows at a time are faster than one at a time. How much faster is for tests/bench/LOG.md: on a busy machine the figure falls."""
    if SANITIZED:
        return "not timed under a sanitizer"
    job = folder / "short.jsonl"
    rows = [{"prompt": [5 + i, 9, 17, 33], "max_tokens": 200, "ignore_eos": True, "temperature": 0} for i in range(192)]
    job.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = []
    while len(pairs) < 6 and (not pairs or max(many / one for one, many in pairs) < 1.2):
        rates = []
        for n in (1, 64):                                # one behind the other, so that both see the same machine
            out = folder / f"batch{n}.jsonl"
            rates.append(json.loads(fleet.run(job, out, "--json", "--restart", "--batch", str(n)).stdout)["decode_tokens_per_s"])
        pairs.append(rates)
    one, many = max(pairs, key=lambda pair: pair[1] / pair[0])
    check(many >= 1.2 * one, f"tokens/s at one row and at 64, pair by pair: {', '.join(f'{a:.0f} {b:.0f}' for a, b in pairs)}")
    return f"{one:.0f} tokens/s one at a time, {many:.0f} at 64: {many / one:.1f} times (pair {len(pairs)})"


if __name__ == "__main__":
    fleet.main([one_worker_and_sampling_is_real, workers, threads, batch_limits, prefill_budgets, pool_for_two_sequences, kernel_forms,
                killed_worker_every_second, killed_run, batching_pays])
