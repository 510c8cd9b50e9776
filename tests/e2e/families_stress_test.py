#!/usr/bin/python3
"""The stress job has one hash on every family, whatever the workers, batch limit, prefill budget, KV pool and kernels.

STRESS_FAMILY_ROWS (default 20; ops/soak says 300) rows of stress_job.py on a small model of each family that has its own kind of layers: sliding windows, per-layer
heads, sigmoid and softmax routers, DeltaNet states. Under a sanitizer 4 rows and fewer settings."""
import json
import os

import fleet
from fleet import ROOT, check
from stress_job import make_row

SANITIZED = bool(os.environ.get("TOKENFLEET_SANITIZE"))
ROWS = int(os.environ.get("STRESS_FAMILY_ROWS", "4" if SANITIZED else "20"))
MODELS = ROOT / "tests" / "golden" / "models"
VOCAB, CONTEXT = 256, 1024                     # of the small models; two have a larger context


def row_that_fits(index):
    """Row `index` of the stress job, its prompt cut where it and its output are longer than the smallest of these models' contexts. No stop strings: there is no text."""
    row = make_row(index, VOCAB, 1)
    body = row.get("body", row)
    body["prompt"] = body["prompt"][:CONTEXT - body["max_tokens"]]
    body.pop("stop", None)
    return row


def settings():
    """(arguments, environment) of each run but the first, which gives the hash."""
    flags = open("/proc/cpuinfo").read()
    runs = [(["--workers", "2", "--threads", "1"], {}), (["--batch", "1"], {}), (["--batch", "3", "--prefill-budget", "64"], {}),
            (["--max-context", "1024", "--kv-tokens", "1024"], {}), ([], {"TOKENFLEET_KERNELS": "avx2"})]
    if not SANITIZED:
        runs += [(["--prefill-budget", "512", "--threads", "2"], {}), ([], {"TOKENFLEET_KERNELS": "scalar"})]
    if "avx512bw" in flags:
        runs.append(([], {"TOKENFLEET_KERNELS": "avx512"}))
    return runs


def same_hash(folder, name):
    model, job, out = MODELS / name, folder / f"{name}.jsonl", folder / f"{name}.out.jsonl"
    job.write_text("".join(json.dumps(row_that_fits(index)) + "\n" for index in range(ROWS)))
    run = lambda arguments, env: fleet.run(job, out, "--seed", "5", "--restart", *arguments, model=model, env=env, timeout=1100)
    run(["--workers", "1", "--threads", "1"], {})
    reference = fleet.both(out)
    rows = fleet.lines(out)
    check(len(rows) == ROWS and all(fleet.choices(row) for row in rows), f"{name}: {len(rows)} rows of {ROWS} have completions")
    check(fleet.sha(f"{out}.errors.jsonl") == fleet.hashlib.sha256(b"").hexdigest(), f"{name}: rows failed")
    for arguments, env in settings():
        run(arguments, env)
        check(fleet.both(out) == reference, f"{name}, {arguments} {env}: hash {fleet.both(out)} instead of {reference}")
    return f"{ROWS} rows, {1 + len(settings())} settings, {reference[0][:12]}"


def llama(folder): return same_hash(folder, "small_llama")
def qwen3(folder): return same_hash(folder, "small_qwen3")
def qwen3_moe(folder): return same_hash(folder, "small_qwen3_moe")
def qwen3_5(folder): return same_hash(folder, "small_qwen3_5")
def qwen3_5_moe(folder): return same_hash(folder, "small_qwen3_5_moe")
def laguna(folder): return same_hash(folder, "small_laguna")
def gemma3(folder): return same_hash(folder, "small_gemma3")


if __name__ == "__main__":
    fleet.main([llama, qwen3, qwen3_moe, qwen3_5, qwen3_5_moe, laguna, gemma3])
