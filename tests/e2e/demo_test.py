#!/usr/bin/python3
"""The demo job: 200 completions equal to the reference id for id, quickly and in little memory; and real inputs on the demo model."""
import json
import os
import resource
import subprocess
import time

import fleet
from fleet import DEMO, HERE, check

SANITIZED = bool(os.environ.get("TOKENFLEET_SANITIZE"))
END_IDS = {0, 2}


def peak_mb(pid):
    """The largest resident set of a process so far, in MB; 0 when it is gone."""
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0


def demo_job(folder):
    """200 of 200 at temperature 0, under 10 s with two workers (as CPU time of both, which a loaded machine does not change), each worker (parent and engine) under 200 MB."""
    out, peaks, start, before = folder / "demo.jsonl", {}, time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.Popen(fleet.run_args(DEMO / "demo_job.jsonl", out, "--workers", "2", "--threads", "1", model="demo"))
    while run.poll() is None:
        for pid in fleet.children(run.pid):
            peaks[pid] = max(peaks.get(pid, 0), peak_mb(pid))
        time.sleep(0.01)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    check(run.returncode == 0, f"run ended with {run.returncode}")
    rows, reference = fleet.lines(out), fleet.lines(DEMO / "reference_greedy.jsonl")
    check(len(rows) == len(reference) == 200, f"{len(rows)} rows")
    for row, want in zip(rows, reference):
        choice = fleet.choices(row)[0]
        ids = [i for i in choice["token_ids"] if i not in END_IDS]
        check(row["custom_id"] == want["task_id"] and ids == want["greedy_ids"], f"{want['task_id']}: ids {ids} instead of {want['greedy_ids']}")
        check(choice["text"] == want["completion"], f"{want['task_id']}: text {choice['text']!r} instead of {want['completion']!r}")
        check(row["response"]["body"]["model"] == "demo", f"the model is called {row['response']['body']['model']}")
        check(choice["finish_reason"] == "stop", f"{want['task_id']}: finish_reason {choice['finish_reason']}")
    check((folder / "demo.jsonl.errors.jsonl").read_text() == "", "the error file is not empty")
    if not SANITIZED:
        check(cpu < 2 * 10, f"{cpu:.1f} s of CPU instead of 10 s at most on each of two cores")
        check(max(peaks.values()) < 200, f"a worker's process holds {max(peaks.values()):.0f} MB")
    return f"{seconds:.1f} s, {cpu:.1f} of CPU, largest process {max(peaks.values()):.0f} MB"


def real_inputs(folder):
    """The 164 HumanEval prompts and the 80 MT-Bench questions as chat rows: every row answered, or a reason in the error file."""
    job, out = folder / "real.jsonl.gz", folder / "real.out.jsonl"
    rows = [{"custom_id": task["task_id"], "prompt": task["prompt"], "max_tokens": 32, "ignore_eos": True}
            for task in fleet.lines(HERE / "data" / "HumanEval.jsonl.gz")]
    rows += [{"custom_id": f"mt-{q['question_id']}", "messages": [{"role": "user", "content": q["turns"][0]}], "max_tokens": 64}
             for q in fleet.lines(HERE / "data" / "mt_bench_questions.jsonl")]
    import gzip
    with gzip.open(job, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    fleet.run(job, out, "--workers", "2", "--threads", "1", model="demo")
    answers, errors = fleet.lines(out), fleet.lines(f"{out}.errors.jsonl")
    check(len(rows) == 244 and len(answers) + len(errors) == 244, f"{len(answers)} answers and {len(errors)} errors for {len(rows)} rows")
    check({r["custom_id"] for r in answers} | {r["custom_id"] for r in errors} == {r["custom_id"] for r in rows}, "a row has no line")
    check(not errors, f"errors: {errors[:3]}")
    for row in answers:
        body, choice = row["response"]["body"], fleet.choices(row)[0]
        if row["custom_id"].startswith("HumanEval"):
            check(body["usage"]["completion_tokens"] == 32 and choice["finish_reason"] == "length", f"{row}")
        else:
            check(body["object"] == "chat.completion" and choice["message"]["role"] == "assistant", f"{row}")
            check(1 <= body["usage"]["completion_tokens"] <= 64, f"{row}")
    return "164 + 80 rows answered"


def generate(folder):
    """One prompt from the command line; the same bytes as the job's row."""
    done = fleet.call([fleet.TOKENFLEET, "generate", "--model", "demo", "-n", "1", "--set", "temperature=0", "--set", "max_tokens=64",
                       fleet.lines(DEMO / "mini_eval.jsonl")[0]["prompt"]])
    want = fleet.lines(DEMO / "reference_greedy.jsonl")[0]["completion"]
    check(want.strip() in done.stdout, f"{done.stdout!r} does not hold {want!r}")


if __name__ == "__main__":
    fleet.main([demo_job, real_inputs, generate])
