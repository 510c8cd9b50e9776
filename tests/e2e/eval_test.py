#!/usr/bin/python3
"""Evaluations end to end on the demo model: all tasks are solved greedily; a hot sample's curve lies between 0 and 1 and is the one that this script computes from the results; the
same evaluation broken off again and again (coordinator, grader, generating worker, the whole run) gives the same verdicts and bytes; `grade` says of the samples file what the fleet
said; a sweep is compared; tasks end early with --stop-when-solved without a change of the numbers."""
import gzip
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from fleet import DEMO, TOKENFLEET, WORKER, call, check, lines, main, sha

FEW = 24


def tasks_file(folder, n):
    path = folder / f"mini{n}.jsonl"
    path.write_text("".join((DEMO / "mini_eval.jsonl").read_text().splitlines(keepends=True)[:n]))
    return path


def evaluate(tasks, out, *more, expect=0, **options):
    return call([TOKENFLEET, "eval", tasks, "--model", "demo", "--device", "cpu", "--out", out, "--json", *more], expect=expect, **options)


def estimate(results, k):
    """pass@k with exact binomials, from a results file."""
    of_task = {}
    for line in results:
        of_task.setdefault(line["task_id"], []).append(line["passed"])
    values = [1 - math.comb(len(p) - sum(p), k) / math.comb(len(p), k) for p in of_task.values()]
    return sum(values) / len(values)


def check_greedy(folder):
    summary = json.loads(evaluate(tasks_file(folder, FEW), folder / "greedy").stdout)
    check(summary["pass_at_k"]["1"]["mean"] == 1.0 and summary["verdicts"]["passed"] == FEW, f"not all tasks are solved greedily: {summary['verdicts']}")


HOT = ["-n", "6", "--temperature", "2", "-k", "1,2,4"]


def check_curve(folder):
    tasks = tasks_file(folder, FEW)
    summary = json.loads(evaluate(tasks, folder / "hot", *HOT).stdout)
    results = lines(folder / "hot" / "results.jsonl")
    check(len(results) == 6 * FEW and [r["task_id"] for r in results[::6]] == [t["task_id"] for t in lines(tasks)], "the results are not 6 for each task, in order")
    for k, value in summary["pass_at_k"].items():
        own = estimate(results, int(k))
        check(abs(value["mean"] - own) < 1e-9, f"pass@{k} is {value['mean']}, the results say {own}")
        check(0 < value["low"] <= value["mean"] <= value["high"] <= 1 and value["mean"] < 1, f"pass@{k} {value} is no curve between 0 and 1")
    check("task" in (folder / "hot" / "summary.txt").read_text(), "summary.txt has no table of tasks")
    done = call([TOKENFLEET, "grade", folder / "hot" / "samples.jsonl", "--tasks", tasks, "--out", folder / "again.jsonl", "--json"])
    check(json.loads(done.stdout)["verdicts"] == summary["verdicts"], "grade gives other verdicts")
    again = [(r["task_id"], r["completion"], r["verdict"]) for r in lines(folder / "again.jsonl")]
    check(again == [(r["task_id"], r["completion"], r["verdict"]) for r in results], "grade gives another verdict for some sample")


def right_below(pid):
    try:
        return [int(word) for word in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []


def kill_something(run, dice):
    """A generating worker, a grading one, or the process below one of them; nothing below those: what runs in a sandbox gives its verdict when it ends."""
    workers = right_below(run.pid)
    below = workers + [pid for worker in workers for pid in right_below(worker)]
    if below:
        try:
            os.kill(dice.choice(below), signal.SIGKILL)
        except ProcessLookupError:
            pass


def check_killed(folder):
    """The coordinator is the run itself here: killing it kills the fleet; the same command goes on."""
    tasks, out, dice = tasks_file(folder, FEW), folder / "killed", random.Random(5)
    command = [TOKENFLEET, "eval", str(tasks), "--model", "demo", "--device", "cpu", "--out", str(out), "--json", *HOT]
    n_killed = n_children = 0
    for _ in range(40):
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.monotonic() + (1.0 + n_killed * 0.4 if n_killed < 8 else 600)
        while run.poll() is None and time.monotonic() < end:
            time.sleep(0.25)
            if n_children < 12 and n_killed < 8 and run.poll() is None:
                kill_something(run, dice)
                n_children += 1
        if run.poll() is None:
            run.kill()
            n_killed += 1
        text, words = run.communicate()
        if run.returncode == 0:
            break
        check(run.returncode in (-signal.SIGKILL, 4), f"the run ended with {run.returncode}: {words.decode()[-2000:]}")
    check(run.returncode == 0, "the evaluation never ended")
    check(n_killed > 0 and n_children > 0, "nothing was killed: the evaluation was too fast")
    for name in ["out.jsonl", "out.jsonl.errors.jsonl", "samples.jsonl", "results.jsonl", "summary.json"]:
        check(sha(out / name) == sha(folder / "hot" / name), f"{name} differs after {n_killed} kills of the run and {n_children} of what is below it")
    call([TOKENFLEET, "verify", "--spool", out / "out.jsonl.spool"])


def check_fleet(folder):
    """The same on a fleet, whose coordinator and grader are killed while it runs."""
    tasks, out, endpoint = tasks_file(folder, FEW), folder / "fleet", f"ipc://{folder}/s"
    devnull = subprocess.DEVNULL
    coordinator = lambda: subprocess.Popen([TOKENFLEET, "coordinator", "--spool", folder / "spool", "--bind", endpoint, "--lease-term", "5"], stdout=devnull, stderr=devnull)
    grader = lambda: subprocess.Popen([WORKER, "--connect", endpoint, "--roles", "grade", "--threads", "2"], stdout=devnull, stderr=devnull)
    processes = {"coordinator": coordinator(), "grader": grader(), "both": subprocess.Popen([WORKER, "--connect", endpoint, "--roles", "generate,grade", "--model", "demo", "--threads", "1"],
                                                                                           stdout=devnull, stderr=devnull)}
    command = [TOKENFLEET, "eval", str(tasks), "--model", "demo", "--to", endpoint, "--out", str(out), "--json", *HOT]
    try:
        for attempt in range(20):
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for name, start in [("grader", grader), ("coordinator", coordinator)] * (attempt == 0):
                time.sleep(1.5)
                processes[name].kill()
                processes[name].wait()
                processes[name] = start()
            text, words = run.communicate(timeout=600)
            if run.returncode == 0:
                break
            time.sleep(1)
        check(run.returncode == 0, f"the evaluation on a fleet ended with {run.returncode}: {words.decode()[-2000:]}")
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=60)
    check(sha(out / "results.jsonl") == sha(folder / "hot" / "results.jsonl"), "the fleet gives other results than one machine")


def check_sweep(folder):
    done = evaluate(tasks_file(folder, 4), folder / "sweep", "-n", "2", "--sweep", "temperature=0,2", "-k", "1,2")
    outcomes = json.loads(done.stdout)
    check([o["setting"] for o in outcomes] == ["temperature=0", "temperature=2"], "the sweep is not over its two values")
    check(outcomes[0]["pass_at_k"]["1"]["mean"] == 1.0 > outcomes[1]["pass_at_k"]["1"]["mean"], "temperature 2 does not do worse than 0")
    table, plot = (folder / "sweep" / "comparison.txt").read_text(), (folder / "sweep" / "comparison.svg").read_text()
    check("demo temperature=2" in table and plot.startswith("<svg") and plot.rstrip().endswith("</svg>"), "the comparison is not whole")


def check_early_end(folder):
    summary = json.loads(evaluate(tasks_file(folder, 6), folder / "early", "-n", "8", "--temperature", "2", "-k", "8", "--stop-when-solved").stdout)
    results = lines(folder / "early" / "results.jsonl")
    of_task = {}
    for r in results:
        of_task.setdefault(r["task_id"], []).append(r["passed"])
    check(summary["ended_early"] > 0 and all(any(p) for p in of_task.values() if len(p) < 8), "tasks that nothing solved ended early, or none did")
    check(abs(summary["pass_at_k"]["8"]["mean"] - sum(any(p) for p in of_task.values()) / 6) < 1e-12, "pass@8 is not the part of the tasks that some sample solves")


def check_sentences(folder):
    tasks = tasks_file(folder, 4)
    bad = folder / "bad.jsonl"
    bad.write_text(tasks.read_text() + '{"task_id": "x", "prompt": "p"}\n')
    for args, words in [([tasks, "-k", "10", "-n", "5"], "-n is 5"), ([bad], "line 5, byte"), ([tasks, "--sweep", "temperature"], "KEY=VALUE"), ([tasks, "--sweep", "nothing=1"], "nothing"), ([tasks, "--sweep", "n=1,2"], "give -n"), ([tasks, "--set", "echo=true"], "without their prompt"),
                        ([folder / "none.jsonl"], "not there")]:
        done = call([TOKENFLEET, "eval", *args, "--model", "demo", "--out", folder / "no"], expect=2)
        check(words in done.stderr and done.stderr.count("\n") == 1, f"the sentence of {args} is {done.stderr!r}")
    for args, words in [(["--temperature", "hot"], "--temperature takes a number"), (["--temperature", "-1"], "--temperature takes"), (["--sweep", "top_p=0.5,0.5"], "--sweep top_p=0.5 is given twice"),
                        (["--model", "demo"], "--model demo is given twice"), (["--out", tasks], "is a file")]:
        done = call([TOKENFLEET, "eval", tasks, "--model", "demo", *([] if "--out" in args else ["--out", folder / "no"]), *args], expect=2)
        check("tokenfleet eval: " in done.stderr and words in done.stderr and done.stderr.count("\n") == 1, f"the sentence of {args} is {done.stderr!r}")
    done = call([TOKENFLEET, "eval", tasks, "--model", folder / "no_model", "--out", folder / "no"], expect=3)
    check("tokenfleet eval: the model" in done.stderr and not (folder / "no").exists(), f"a model that is not there: {done.stderr!r}")


def check_foreign_files(folder):
    """A folder with files of the user's own, and a file of results that is none: nothing is written over."""
    tasks, mine = tasks_file(folder, 2), folder / "mine"
    mine.mkdir()
    for name in ["job.jsonl", "summary.txt", "samples.jsonl", "comparison.txt"]:
        (mine / name).write_text("precious\n")
        more = ["--sweep", "temperature=0,1"] if name == "comparison.txt" else []
        done = evaluate(tasks, mine, *more, expect=2)
        check(f"{name} is there and no evaluation wrote it" in done.stderr, f"beside {name}: {done.stderr!r}")
        check((mine / name).read_text() == "precious\n" and len(os.listdir(mine)) == 1, f"something was written: {os.listdir(mine)}")
        (mine / name).unlink()
    evaluate(tasks, mine)
    evaluate(tasks, mine)
    samples, results = mine / "samples.jsonl", mine / "graded.jsonl"
    results.write_text('{"task_id": "MiniEval/0", "completion": "mine"}\n')
    check("give a file" in call([TOKENFLEET, "grade", "-", "--tasks", tasks, "--out", folder / "new.jsonl"], expect=2).stderr, "samples from standard input")
    for out, words in [(results, "holds no results of grading"), (mine, "is a folder"), (folder / "none" / "x", "make it first"), (samples, "one of the files that are read")]:
        check(words in call([TOKENFLEET, "grade", samples, "--tasks", tasks, "--out", out], expect=2).stderr, f"grade --out {out}")
    check("mine" in results.read_text(), "grade has written over a file that is not its own")
    results.unlink()
    for _ in range(2):
        call([TOKENFLEET, "grade", samples, "--tasks", tasks, "--out", results])
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(os.urandom(5000).hex().encode())[:3000])
    check("damaged gzip data (unexpected end of file)" in call([TOKENFLEET, "grade", samples, "--tasks", folder / "cut.jsonl.gz", "--out", results], expect=3).stderr, "tasks that are cut off")
    unsound = folder / "unsound.jsonl"
    unsound.write_text("".join(json.dumps({**json.loads(line), "test": "def chk(candidate):\n    pass\n"}) + "\n" for line in tasks.read_text().splitlines()[:1]) + tasks.read_text().splitlines(keepends=True)[1])
    done = call([TOKENFLEET, "eval", unsound, "--model", "demo", "--device", "cpu", "--out", folder / "unsound"])
    check("do not pass their own tests: 1 (MiniEval/0)" in done.stdout, f"a task whose canonical solution fails: {done.stdout}")
    check([r.get("canonical_failed", False) for r in lines(folder / "unsound" / "results.jsonl")] == [True, False], "results of a task whose canonical solution fails")
    samples.write_text(samples.read_text().splitlines(keepends=True)[0])
    check("has none" in call([TOKENFLEET, "grade", samples, "--tasks", tasks, "--out", results, "-k", "1"], expect=2).stderr, "a task without samples")


def evaluations(folder):
    times = []
    for part in [check_sentences, check_foreign_files, check_greedy, check_curve, check_killed, check_fleet, check_sweep, check_early_end]:
        began = time.monotonic()
        part(folder)
        times.append(f"{part.__name__[6:]} {time.monotonic() - began:.0f} s")
    return ", ".join(times)


if __name__ == "__main__":
    if not shutil.which("bwrap"):
        print("skipped: bubblewrap is not installed; ops/setup installs it")
        sys.exit(77)
    main([evaluations])
