#!/usr/bin/env python3
"""batch_bench and batch_llama_cpp.py in turn over one GGUF file in one sitting: each pair's rates and ratios, then medians and spread.

    batch_pairs.py MODEL.gguf --bench build/default/tests/batch_bench --python PYTHON-WITH-LLAMA-CPP [--pairs N] [further flags of both]
"""
import argparse
import os
import re
import statistics
import subprocess
import sys

RATE = re.compile(r"prefill ([0-9.]+) tok/s .*cpu ([0-9.]+) s\)  decode ([0-9.]+) tok/s .*cpu ([0-9.]+) s\)")


def measure(command):
    """Prefill rate, its CPU seconds, decode rate, its CPU seconds: of the second of two runs, the first one warms up."""
    lines = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout.splitlines()
    return [float(v) for v in RATE.search(lines[-1]).groups()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bench", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=5)
    args, flags = parser.parse_known_args()
    theirs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "batch_llama_cpp.py")
    pairs = []
    for i in range(args.pairs):
        commands = [[args.bench, args.model], [args.python, theirs, args.model]]
        results = [None, None]
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            results[which] = measure(commands[which] + ["--runs", "2"] + flags)
        pairs.append(results)
        (our_prefill, our_prefill_cpu, our_decode, our_decode_cpu), (prefill, prefill_cpu, decode, decode_cpu) = results
        print(f"pair {i + 1}: prefill {our_prefill:.0f} against {prefill:.0f} tok/s ({our_prefill / prefill:.2f}x; cpu {our_prefill_cpu:.2f} against {prefill_cpu:.2f} s), "
              f"decode {our_decode:.0f} against {decode:.0f} ({our_decode / decode:.2f}x; cpu {our_decode_cpu:.2f} against {decode_cpu:.2f} s)", flush=True)
    for name, at in ("prefill", 0), ("decode", 2):
        ours, other = [p[0][at] for p in pairs], [p[1][at] for p in pairs]
        ratios = [a / b for a, b in zip(ours, other)]
        print(f"{name}: median {statistics.median(ours):.0f} ({min(ours):.0f} to {max(ours):.0f}) against {statistics.median(other):.0f} ({min(other):.0f} to {max(other):.0f}) tok/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


main()
