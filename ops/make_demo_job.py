#!/usr/bin/python3
"""Write ops/demo_model/demo_job.jsonl from mini_eval.jsonl: one greedy completion for each task, until the end token."""
import json
import pathlib

folder = pathlib.Path(__file__).resolve().parent / "demo_model"
with open(folder / "mini_eval.jsonl", encoding="utf-8") as tasks, open(folder / "demo_job.jsonl", "w", encoding="utf-8") as job:
    for line in tasks:
        task = json.loads(line)
        body = {"prompt": task["prompt"], "max_tokens": 128, "temperature": 0, "return_token_ids": True}
        job.write(json.dumps({"custom_id": task["task_id"], "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
