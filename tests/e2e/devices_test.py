#!/usr/bin/env python3
"""Which workers `run` starts and where they compute: one for each GPU that can be used by default, without GPUs one; what is not there is refused with a sentence."""
import json
import os
import shutil

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


def stubbed(folder):
    """tokenfleet with gpu_stub_worker.c beside it, in a folder of its own."""
    for source, name in ((fleet.BIN / "tokenfleet", "tokenfleet"), (fleet.BIN.parent / "tests" / "gpu_stub_worker", "tokenfleet-worker")):
        shutil.copy(source, folder / name)
    return folder / "tokenfleet"


def gpus_that_cannot_be_used_hide_no_others(folder):
    """What the driver shows (o usable, u without code, b broken), the GPUs that get a worker, and how many workers there are."""
    program, job, hashes = stubbed(folder), write_job(folder), set()
    for shown, used, workers, more in (("", [], 1, []), ("o", [0], 1, []), ("oo", [0, 1], 2, ["--workers", "auto"]), ("ubouo", [2, 4], 2, []), ("bo", [1], 3, ["--workers", "3"]), ("u", [], 1, [])):
        env = {**os.environ, "GPU_STUB": shown}
        report = json.loads(call([folder / "tokenfleet-worker", "gpus"], env=env).stdout)
        check([gpu["index"] for gpu in report["gpus"]] == used and report["found"] == len(shown), f"{shown}: {report}")
        check(all(f"GPU {i}" in report["why"] for i, letter in enumerate(shown) if letter != "o") and bool(report["why"]) == (used == [] or "o" * len(shown) != shown), f"{shown}: {report}")
        done = call([program, "run", job, "--model", DEMO, "--out", folder / "out.jsonl", "--json", "--restart", "--threads", "1", *more], env=env)
        summary = json.loads(done.stdout)
        check([gpu["gpu"] for gpu in summary["gpus"]] == used and len(summary["workers"]) == workers, f"{shown}: {summary}")
        check((f"{len(used)} of {len(shown)} GPUs can be used" in done.stderr) == (len(used) < len(shown)), f"{shown}: {done.stderr}")
        hashes.add(fleet.both(folder / "out.jsonl"))
    check(len(hashes) == 1, "the stubs compute other bytes")
    done = call([program, "run", job, "--model", DEMO, "--out", folder / "out.jsonl", "--restart", "--device", "cuda"], env={**os.environ, "GPU_STUB": "u"}, expect=3)
    check(done.stderr.count("\n") == 1 and "GPU 0" in done.stderr and "--device cpu" in done.stderr, done.stderr)


def wrong_numbers_are_refused(folder):
    for workers in ("0", "-1", "all", "auto,2", "257", ""):
        done = call([fleet.TOKENFLEET, "run", "job.jsonl", "--model", DEMO, "--workers", workers], expect=2)
        check(done.stderr.count("\n") == 1 and "--workers" in done.stderr, f"{workers}: {done.stderr}")


if __name__ == "__main__":
    fleet.main([auto_is_one_worker_without_gpus, each_gpu_has_a_worker, gpus_that_cannot_be_used_hide_no_others, wrong_numbers_are_refused])
