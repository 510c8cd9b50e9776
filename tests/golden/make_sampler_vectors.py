#!/usr/bin/env python3
"""Writes sampler_vectors.bin: what transformers' logits processors make of random logits.

200 cases of each parameter alone and 200 mixtures. A case whose kept set differs between float32 and float64 hangs on rounding and is drawn again.

    python3 make_sampler_vectors.py [OUT]            (transformers 5.17.0, torch)

Layout (little-endian): "SMP1", u32 cases; each: u32 seed, u16 n_vocab, u16 n_prompt, u16 n_output, u16 0, f32 scale, temperature, top_p, min_p, repetition, presence, frequency, i32 top_k,
u16 ids of prompt and output, f32 probabilities [n_vocab]. The logits are not stored: logit i = ((u0 + u1) + u2 - 1.5) * scale with u from the first three words of Philox4x32-10,
counter (i, 0, 0, 0), key (seed, 20486).
"""
import random
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from transformers.generation.logits_process import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

PARAMETERS = ["temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency"]


def philox_words(n, key):
    c = [np.arange(n, dtype=np.uint64)] + [np.zeros(n, np.uint64) for _ in range(3)]
    k = [np.uint64(key[0]), np.uint64(key[1])]
    mask, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> high) ^ c[1] ^ k[0], p1 & mask, (p0 >> high) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return c


def logits_of(case):
    u = [(w >> np.uint64(8)).astype(np.float32) * np.float32(2.0 ** -24) for w in philox_words(case["n_vocab"], (case["seed"], 20486))]
    return (((u[0] + u[1]) + u[2]) - np.float32(1.5)) * np.float32(case["scale"])


def reference(case, dtype):
    """Probabilities after the whole chain."""
    scores = torch.tensor(logits_of(case)).to(dtype)[None]
    history = torch.tensor([case["prompt"] + case["output"]], dtype=torch.long)
    if case["repetition"] != 1.0 and history.numel():
        scores = RepetitionPenaltyLogitsProcessor(float(case["repetition"]))(history, scores)
    counts = torch.bincount(torch.tensor(case["output"], dtype=torch.long), minlength=case["n_vocab"]).to(dtype)[None]
    scores = scores - torch.tensor(case["frequency"], dtype=dtype) * counts
    scores = scores - torch.tensor(case["presence"], dtype=dtype) * (counts > 0).to(dtype)
    if case["temperature"] != 1.0:
        scores = TemperatureLogitsWarper(float(case["temperature"]))(history, scores)
    if case["top_k"] > 0:
        scores = TopKLogitsWarper(case["top_k"])(history, scores)
    if case["top_p"] < 1.0:
        scores = TopPLogitsWarper(float(case["top_p"]))(history, scores)
    if case["min_p"] > 0.0:
        scores = MinPLogitsWarper(float(case["min_p"]))(history, scores)
    return torch.softmax(scores, dim=-1)[0]


def f32(x):
    return float(np.float32(x))


def draw_case(rng, on):
    n = rng.choice([5, 16, 40, 100, 150, 256, 257, 300]) if rng.random() < 0.97 else 1500
    case = dict(seed=rng.randrange(2 ** 32), n_vocab=n, scale=f32(rng.choice([0.5, 2, 6, 12])), temperature=1.0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0,
                top_k=0, prompt=[], output=[])
    if {"repetition", "presence", "frequency"} & set(on):
        case["prompt"] = [rng.randrange(n) for _ in range(rng.randrange(0, 30))]
        case["output"] = [rng.randrange(min(n, 20)) for _ in range(rng.randrange(0, 30))]
    if "temperature" in on:
        case["temperature"] = f32(rng.choice([0.1, 0.5, 0.7, 1.3, 2.0, rng.uniform(0.05, 3)]))
    if "top_k" in on:
        case["top_k"] = rng.choice([1, 2, 3, 10, 50, rng.randrange(1, n + 10)])
    if "top_p" in on:
        case["top_p"] = f32(rng.choice([0.1, 0.5, 0.9, 0.95, 0.99, rng.uniform(0.01, 1)]))
    if "min_p" in on:
        case["min_p"] = f32(rng.choice([0.01, 0.05, 0.1, 0.5, 1.0, rng.random()]))
    if "repetition" in on:
        case["repetition"] = f32(rng.choice([1.05, 1.2, 2.0, 0.7, rng.uniform(0.5, 2)]))
    if "presence" in on:
        case["presence"] = f32(rng.uniform(-2, 2))
    if "frequency" in on:
        case["frequency"] = f32(rng.uniform(-2, 2))
    return case


def case_bytes(case, p):
    head = struct.pack("<IHHHH7fi", case["seed"], case["n_vocab"], len(case["prompt"]), len(case["output"]), 0, case["scale"], case["temperature"], case["top_p"], case["min_p"],
                       case["repetition"], case["presence"], case["frequency"], case["top_k"])
    return head + np.array(case["prompt"] + case["output"], dtype="<u2").tobytes() + p.numpy().astype("<f4").tobytes()


def main():
    rng = random.Random(20486)
    out = []
    for kind in PARAMETERS + ["mixture"]:
        made = 0
        while made < 200:
            on = [kind] if kind != "mixture" else [p for p in PARAMETERS if rng.random() < 0.6]
            case = draw_case(rng, on)
            p, exact = reference(case, torch.float32), reference(case, torch.float64)
            if not torch.equal(p > 0, exact.float() > 0):
                continue
            out.append(case_bytes(case, p))
            made += 1
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("sampler_vectors.bin")
    path.write_bytes(b"SMP1" + struct.pack("<I", len(out)) + b"".join(out))
    print(f"{path}: {len(out)} cases, {path.stat().st_size} bytes")


main()
