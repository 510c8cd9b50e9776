#!/usr/bin/env python3
"""`tokenfleet-worker bench`: every kind gives a whole report on the CPU, a job's tokens are the same for every batch and pool, and bad input is refused with a sentence."""
import json

import fleet
from fleet import ROOT, WORKER, call, check

SHAPE = f"random:1:{ROOT}/tests/golden/models/small_qwen3_5"


def bench(kind, *more):
    return json.loads(call([WORKER, "bench", kind, "--json", "--threads", 2, *more]).stdout)


def job(_):
    def run(*more):
        return bench("job", "--model", SHAPE, "--rows", 12, "--input", 70, "--output", 9, *more)

    report = run()
    check(report["prompt_tokens"] == 12 * 70 and report["output_tokens"] == 12 * 9 and report["steps"] >= 9, f"{report}")
    check(all(report[key] > 0 for key in ("seconds", "output_tokens_per_s", "prompt_tokens_per_s", "share_of_rates", "copy_bytes_per_s", "product_flop_per_s")), f"{report}")
    for more in (["--batch", 5], ["--batch", 4, "--kv-tokens", 256], ["--prefill-budget", 64]):
        other = run(*more)
        check(other["output_hash"] == report["output_hash"], f"{more} changed the tokens")
    check(run("--temperature", 0)["output_hash"] != report["output_hash"], "the temperature does nothing")
    drawn = bench("job", "--model", SHAPE, "--rows", 2, "--output", 3)
    check(drawn["prompt_tokens"] == 964 + 724, f"{drawn}")
    check("output tokens/s" in call([WORKER, "bench", "job", "--model", SHAPE, "--rows", 1, "--input", 1, "--output", 1]).stdout, "the text lacks its rate")
    return f"{report['output_tokens_per_s']:.0f} tokens/s"


def steps(_):
    report = bench("prefill", "--model", SHAPE, "--prompt", 200, "--budgets", "64,128,0")
    check(report["same_bits"] and len(report["runs"]) == 3, f"{report}")
    report = bench("decode", "--model", SHAPE, "--context", 64, "--batch", "1,3")
    check([run["batch"] for run in report["runs"]] == [1, 3] and all(run["step_seconds"] > 0 for run in report["runs"]), f"{report}")
    return "prefill, decode"


def sampler(_):
    report = bench("sampler", "--vocab", "1000,4096", "--batch", "1,3", "--calls", 5)
    check(len(report["runs"]) >= 4 * 5 and all(run["cpu"]["p99_seconds"] >= run["cpu"]["p50_seconds"] > 0 for run in report["runs"]), f"{report}")
    return f"{len(report['runs'])} settings"


def refusals(_):
    wrong = [[], ["jobs"], ["job", "--rows", "0"], ["job", "--rows"], ["job", "--temperature", "x"], ["sampler", "--model", "demo"], ["prefill", "--budgets", "65"], ["decode", "--batch", "1,,2"],
             ["decode", "--batch", "5000"], ["job", "--device", "gpu"], ["job", "--model", "random:1:qwen3-9b"], ["job", "--model", SHAPE, "--input", "99999999"]]
    for args in wrong:
        done = call([WORKER, "bench", *args], expect=2)
        check(done.stderr.count("\n") == 1 and done.stderr.startswith("tokenfleet-worker bench: ") and not done.stdout, f"{args}: {done.stderr}")
    for kind in ("prefill", "decode", "job", "sampler"):         # a GPU that no machine has
        done = call([WORKER, "bench", kind, "--device", "cuda:9999"], expect=3)
        check(done.stderr.count("\n") == 1 and "--device cpu" in done.stderr and not done.stdout, f"{kind}: {done.stderr}")
    check("--temperature" in call([WORKER, "bench", "job", "--help"]).stdout, "help")
    return f"{len(wrong)} refusals"


if __name__ == "__main__":
    fleet.main([job, steps, sampler, refusals])
