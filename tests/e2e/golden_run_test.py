#!/usr/bin/python3
"""The golden vectors through the whole fleet: token-id prompts on model folders without a tokenizer give the reference's greedy ids and
prompt log-probabilities."""
import json

import fleet
from fleet import HERE, check

MODELS = sorted((HERE.parent / "golden" / "models").glob("*/golden.json"))


def golden_models(folder):
    check(len(MODELS) >= 4, f"only {len(MODELS)} golden models")
    compared = 0
    for path in MODELS:
        cases = json.loads(path.read_text())["cases"]
        job, out = folder / f"{path.parent.name}.jsonl", folder / f"{path.parent.name}.out.jsonl"
        rows = [{"prompt": case["prompt"], "max_tokens": len(case["greedy"]), "ignore_eos": True, "temperature": 0,
                 "return_token_ids": True, "prompt_logprobs": 0} for case in cases]
        rows.append({"prompt": "text needs a tokenizer", "max_tokens": 4})
        job.write_text("".join(json.dumps(row) + "\n" for row in rows))
        fleet.run(job, out, "--workers", "2", "--threads", "1", model=path.parent, expect=1)
        errors = fleet.lines(f"{out}.errors.jsonl")
        check(len(errors) == 1 and errors[0]["error"]["code"] == "no_tokenizer", f"{errors}")
        answers = fleet.lines(out)
        check(len(answers) == len(cases), f"{len(answers)} answers for {len(cases)} cases")
        for case, answer in zip(cases, answers):
            choice = fleet.choices(answer)[0]
            check(choice["text"] == "", f"text without a tokenizer: {choice['text']!r}")
            for step, (got, want, margin) in enumerate(zip(choice["token_ids"], case["greedy"], case["greedy_margin"])):
                if got != want:
                    check(margin <= 1e-3, f"{path.parent.name}, prompt of {len(case['prompt'])}: step {step} has {got} instead of {want}, margin {margin}")
                    break                                # behind a tie the texts may differ
                compared += 1
            got = [list(entry.values())[0]["logprob"] for entry in choice["prompt_logprobs"][1:]]
            worst = max((abs(a - b) for a, b in zip(got, case["prompt_logprobs"])), default=0)
            check(len(got) == len(case["prompt_logprobs"]) and worst < 1e-3, f"{path.parent.name}: prompt log-probabilities are off by {worst}")
    return f"{compared} greedy ids over {len(MODELS)} models"


if __name__ == "__main__":
    fleet.main([golden_models])
