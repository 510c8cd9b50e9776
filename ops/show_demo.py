#!/usr/bin/python3
"""Show the demo's result: how many completions are, id for id, the reference's, and the first three of them."""
import json
import pathlib
import sys

folder = pathlib.Path(__file__).resolve().parent / "demo_model"
END_IDS = {0, 2}                                          # generation_config.json; the reference leaves them out
reference = [json.loads(line) for line in open(folder / "reference_greedy.jsonl", encoding="utf-8")]
tasks = [json.loads(line) for line in open(folder / "demo_job.jsonl", encoding="utf-8")]
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]

equal = 0
for row, want in zip(rows, reference):
    ids = row["response"]["body"]["choices"][0]["token_ids"]
    equal += row["custom_id"] == want["task_id"] and [i for i in ids if i not in END_IDS] == want["greedy_ids"]
for row, task in list(zip(rows, tasks))[:3]:
    text = row["response"]["body"]["choices"][0]["text"]
    print("\n" + task["body"]["prompt"] + "\033[1m" * sys.stdout.isatty() + text.rstrip("\n") + "\033[0m" * sys.stdout.isatty())
print(f"\n{len(rows)} completions in {sys.argv[1]}, {equal} of {len(reference)} equal to the reference id for id")
sys.exit(0 if equal == len(reference) == len(rows) else 1)
