#!/usr/bin/env python3
"""Which workers `run` starts and where they compute: one for each GPU by default, without GPUs one; what is not there is refused with a sentence."""
import json

import fleet
from fleet import DEMO, WORKER, call, check


def write_job(folder):
    job = folder / "job.jsonl"
    job.write_text("".join(json.dumps({"custom_id": f"r{i}", "prompt": [i + 3] * 20, "max_tokens": 12, "ignore_eos": True}) + "\n" for i in range(12)))
    return job


def summary_of(job, out, *more):
    return json.loads(fleet.run(job, out, "--json", "--restart", *more).stdout)


def auto_is_one_worker_without_gpus(folder):
    job, hashes = write_job(folder), set()
    for more in ([], ["--workers", "auto"], ["--workers=auto", "--threads", "1"], ["--workers", "2"]):
        summary = summary_of(job, folder / "out.jsonl", "--device", "cpu", *more)
        check(len(summary["workers"]) == (2 if "2" in more else 1), f"{more}: {summary['workers']}")
        check(summary["gpus"] == [] and summary["rows"]["completed"] == 12 and 0 < summary["work_seconds"] <= summary["seconds"], f"{more}: {summary}")
        hashes.add(fleet.both(folder / "out.jsonl"))
    check(len(hashes) == 1, "the number of workers changes bytes")


def each_gpu_has_a_worker(folder):
    gpus = json.loads(call([WORKER, "gpus"]).stdout)["gpus"]
    if not gpus:
        done = fleet.run(write_job(folder), folder / "out.jsonl", "--device", "cuda", expect=3)
        check(done.stderr.count("\n") == 1 and "--device cpu" in done.stderr, done.stderr)
        return "no GPU here"
    summary = summary_of(write_job(folder), folder / "out.jsonl", "--device", "cuda")
    check([gpu["gpu"] for gpu in summary["gpus"]] == list(range(len(gpus))) and sum(gpu["rows"] for gpu in summary["gpus"]) >= 12, f"{summary}")
    return f"{len(gpus)} GPUs"


def wrong_numbers_are_refused(folder):
    for workers in ("0", "-1", "all", "auto,2", "257", ""):
        done = call([fleet.TOKENFLEET, "run", "job.jsonl", "--model", DEMO, "--workers", workers], expect=2)
        check(done.stderr.count("\n") == 1 and "--workers" in done.stderr, f"{workers}: {done.stderr}")


if __name__ == "__main__":
    fleet.main([auto_is_one_worker_without_gpus, each_gpu_has_a_worker, wrong_numbers_are_refused])
