#!/usr/bin/python3
"""The commands of a second day: retry, delete, gc; what status says; mistakes, and Ctrl-C."""
import json
import os
import pathlib
import signal
import sys
import time

import fleet
from fleet import check
from service_test import Service, free_port, job_file


def wait_for(condition, sentence, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < until, sentence)
        time.sleep(0.05)


def spool_call(command, spool, *args, expect=0):
    return fleet.call([fleet.TOKENFLEET, command, *args, "--spool", spool], expect=expect)


def retry_after_cancel(folder):
    """A cancelled job runs on after retry; OUT and ERR are those of a job that nobody cancelled. Its bad line stays bad."""
    job = job_file(folder, 150, 60)
    with open(job, "a") as file:
        file.write('{"custom_id": "bad", "prompt": 7}\n')
    fleet.run(job, folder / "plain.jsonl", "--seed", "9", expect=1)
    with Service(folder / "spool", n_workers=1) as service:
        name = service.call("submit", job, "--seed", "9").stdout.strip()
        refused = service.call("retry", name, expect=2).stderr
        check("running" in refused and "cancel" in refused, refused)
        check("cancel" in service.call("delete", name, expect=2).stderr, "delete of a running job does not name cancel")
        wait_for(lambda: json.loads(service.call("status", name, "--json").stdout)["rows"]["completed"] > 5, "no row is done")
        service.call("cancel", name)
        service.call("watch", name, expect=1)
        rows = json.loads(service.call("status", name, "--json").stdout)["rows"]
        check(0 < rows["completed"] < 150, f"{rows}")
        answer = json.loads(service.call("retry", name, "--json").stdout)
        check(answer == {"state": "open", "again": 150 - rows["completed"], "kept": rows["completed"], "bad": 1, "job": name}, f"{answer}")
        service.call("watch", name, expect=1)
        service.call("fetch", name, "--out", folder / "fetched.jsonl", expect=1)
        service.call("verify", name)
        check(fleet.both(folder / "fetched.jsonl") == fleet.both(folder / "plain.jsonl"), "other bytes after a cancel and a retry")
        check("no row failed that could run again" in service.call("retry", name).stdout, "a retry of nothing")
        ledgers = [p.name for p in (folder / "spool/jobs" / name).iterdir() if p.name.startswith("ledger")]
        wait_for(lambda: [p.name for p in (folder / "spool/jobs" / name).iterdir() if p.name.startswith("ledger")] == ["ledger.2"], f"ledgers: {ledgers}")
        service.coordinator.kill()
        service.coordinator.wait()
        service.start_coordinator()
        service.call("verify", name)
        service.call("delete", name)
        check("no jobs" in service.call("list").stdout, "the deleted job is listed")
        wait_for(lambda: not (folder / "spool/jobs" / name).exists(), "the deleted job's folder stays")
        check(name in service.call("status", name, expect=2).stderr, "the deleted job is known")
    return f"{rows['completed']} of 150 rows were kept"


def retry_of_a_run(folder):
    """`cancel --spool`, `retry --spool`, then the same run: the bytes of a run that was left alone."""
    job, out = job_file(folder, 80, 60), folder / "out.jsonl"
    spool = folder / "out.jsonl.spool"
    fleet.run(job, folder / "plain.jsonl", "--seed", "9")
    run = fleet.subprocess.Popen([*map(str, fleet.run_args(job, out, "--seed", "9"))], stderr=fleet.subprocess.PIPE, text=True)
    wait_for(lambda: spool.exists() and json.loads(fleet.call([fleet.TOKENFLEET, "list", "--spool", spool, "--json"], expect=None).stdout or '{"jobs": []}')["jobs"]
             and json.loads(spool_call("status", spool, "--json").stdout)["rows"]["completed"] > 0, "run does not begin")
    run.send_signal(signal.SIGINT)
    check(run.wait(60) == 4, f"a drained run ended with {run.returncode}")
    check("not finished" in spool_call("retry", spool, expect=2).stderr, "retry of an unfinished job")
    check("not finished" in spool_call("delete", spool, expect=2).stderr, "delete of an unfinished job")
    spool_call("cancel", spool)
    cancelled = fleet.lines(f"{out}.errors.jsonl")
    check(cancelled and {line["error"]["code"] for line in cancelled} == {"batch_cancelled"}, "no row was cancelled")
    check("run the same" in spool_call("retry", spool).stdout, "retry does not say how to go on")
    check("not finished" in fleet.call([fleet.TOKENFLEET, "verify", "--spool", spool], expect=4).stderr, "verify of a job that is open again")
    fleet.run(job, out, "--seed", "9")
    check(fleet.both(out) == fleet.both(folder / "plain.jsonl"), "other bytes after a retry")
    check("deleted" in spool_call("delete", spool).stdout and out.exists(), "delete --spool")
    check("no job" in spool_call("status", spool, expect=2).stderr, "the spool still has a job")
    return f"{len(cancelled)} rows ran again"


def gc_removes_what_is_left_over(folder):
    job = job_file(folder, 5, 4)
    spool = folder / "spool"
    with Service(spool, n_workers=1) as service:
        names = [service.call("submit", job).stdout.strip() for _ in range(2)]
        for name in names:
            service.call("watch", name)
        check([j["job"] for j in json.loads(service.call("list", "--json").stdout)["jobs"]] == names, "the list is not in submit order")
        stray, old = spool / "jobs/job-00000000000000aa", spool / "jobs" / names[0] / "ledger.7"
        for path in (stray, old):
            path.mkdir()
            (path / "000001.seg").write_bytes(bytes(1000))
        (spool / "run.json.tmp").write_bytes(bytes(10))
        dry = json.loads(service.call("gc", "--dry-run", "--json").stdout)
        check({pathlib.Path(i["path"]) for i in dry["items"]} == {stray, old, spool / "run.json.tmp"} and dry["bytes"] == 2010, f"{dry}")
        check(stray.exists() and "2010 bytes freed" in service.call("gc").stdout and not stray.exists() and not old.exists(), "gc")
        check(" 0 bytes" in " " + service.call("gc", "--older-than", "1").stdout, "a young job went")
        service.call("gc", "--older-than", "0")
        check("no jobs" in service.call("list").stdout and not list((spool / "jobs").iterdir()), "finished jobs stay")
        name = service.call("submit", job).stdout.strip()
        service.call("watch", name)
    (spool / "jobs/job-00000000000000bb").mkdir()
    check(name in spool_call("gc", spool, "--older-than", "0", "--dry-run").stdout, "gc --spool does not list the job")
    spool_call("gc", spool, "--older-than", "0")
    check(not list((spool / "jobs").iterdir()), "gc --spool")


def a_damaged_job_is_named_and_can_go(folder):
    """A coordinator that cannot start because of one job says which and what to do; then the others go on."""
    job, spool = job_file(folder, 20, 4), folder / "spool"
    with Service(spool, n_workers=1) as service:
        names = [service.call("submit", job).stdout.strip() for _ in range(2)]
        for name in names:
            service.call("watch", name)
    segment = spool / "jobs" / names[0] / "ledger/000001.seg"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", spool, "--bind", f"tcp://127.0.0.1:{free_port()}"], expect=3)
    check(f"tokenfleet delete {names[0]} --spool" in done.stderr, done.stderr)
    spool_call("delete", spool, names[0])
    with Service(spool, n_workers=0) as service:
        check(names[1] in service.call("list").stdout and names[0] not in service.call("list").stdout, "the other job is gone too")
        service.call("verify", names[1])


if __name__ == "__main__":
    fleet.main([retry_after_cancel, retry_of_a_run, gc_removes_what_is_left_over, a_damaged_job_is_named_and_can_go])
