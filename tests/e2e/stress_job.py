#!/usr/bin/python3
"""Write the stress job: rows that together touch every setting that could let one row's bytes depend on another's.

usage: stress_job.py ROWS VOCAB [SEED] > job.jsonl

Prompts are 1 to 1,500 random token ids (the block borders 63, 64, 65, 127, 128, 129 among them), outputs 1 to 300 tokens,
n 1 to 4, temperature 0 to 2, and a mixture of top_p, top_k, min_p, penalties, logprobs, echo, stop strings and shared prefixes.
The first N rows of a longer job are the rows of the job of N rows, so a cut is a prefix."""
import json
import random
import sys

BORDERS = [63, 64, 65, 127, 128, 129, 1, 2, 191, 192, 193, 256, 1500]
STOPS = ["\n", "return", " ", "e", "in", ")", "x = ", "é", "  "]


def prompt_length(row, rng):
    if row % 4 == 1:
        return BORDERS[(row // 4) % len(BORDERS)]
    return rng.randint(1, 1500) if row % 4 == 2 else rng.randint(1, 300)


def make_row(row, vocab, seed):
    rng = random.Random(seed * 1_000_003 + row)
    shared = random.Random(seed * 7 + row % 3)          # three prefixes that rows share
    ids = [rng.randrange(vocab) for _ in range(prompt_length(row, rng))]
    if row % 5 == 0:
        ids = [shared.randrange(vocab) for _ in range(shared.choice([64, 100, 128, 200]))] + ids[:rng.randint(1, 100)]
    body = {"prompt": ids, "max_tokens": rng.randint(1, 300) if row % 3 == 0 else rng.randint(1, 60), "ignore_eos": True}
    body["temperature"] = rng.choice([0.6, 1.0, 1.6, 1.9, 2.0, 2.0]) if row % 6 else 0
    body["top_p"] = rng.choice([1.0, 1.0, 1.0, 0.98, 0.9, 0.5])
    body["top_k"] = rng.choice([0, 0, 0, 0, 400, 50, 5, 1] if row % 2 else [0, 0, 400])
    body["min_p"] = rng.choice([0, 0, 0, 0, 0.01, 0.1])
    body["n"] = rng.choice([1, 1, 1, 2, 3, 4])
    if rng.random() < 0.4:
        body["repetition_penalty"] = rng.choice([0.9, 1.1, 1.5])
    if rng.random() < 0.3:
        body["presence_penalty"] = rng.choice([-1.0, 0.5, 1.5])
    if rng.random() < 0.3:
        body["frequency_penalty"] = rng.choice([-0.5, 0.3, 1.0])
    if rng.random() < 0.6:
        body["logprobs"] = rng.choice([1, 1, 2, 5])
    if rng.random() < 0.2:
        body["echo"] = True
    if rng.random() < 0.1:
        body["prompt_logprobs"] = rng.choice([0, 2])
    if rng.random() < 0.25:
        body["stop"] = rng.sample(STOPS, rng.randint(1, 3))
    if rng.random() < 0.2:
        body["seed"] = rng.getrandbits(48)
    if rng.random() < 0.1:
        body["min_tokens"] = rng.randint(0, body["max_tokens"])
    body["return_token_ids"] = True
    if row % 2:
        return {"custom_id": f"stress-{row}", **body}
    return {"custom_id": f"stress-{row}", "method": "POST", "url": "/v1/completions", "body": body}


def main():
    rows, vocab = int(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    for row in range(rows):
        print(json.dumps(make_row(row, vocab, seed)))


if __name__ == "__main__":
    main()
