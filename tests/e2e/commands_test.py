#!/usr/bin/python3
"""The commands of a second day: retry, delete, gc; what status says; mistakes, and Ctrl-C."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import fleet
from fleet import Service, check, free_port, job_file, wait_for


def spool_call(command, spool, *args, expect=0):
    return fleet.call([fleet.TOKENFLEET, command, *args, "--spool", spool], expect=expect)


def finished_jobs_hold_no_files(folder):
    """A coordinator has as many open files after many finished jobs as after one, also when it was started again; all of it can still be asked for."""
    job = job_file(folder, 3, 4)
    with open(job, "a") as file:
        file.write('{"custom_id": "far", "prompt": [99999999]}\n')

    def open_files(service):
        return [os.readlink(f"/proc/{service.coordinator.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{service.coordinator.pid}/fd")]

    with Service(folder / "files", n_workers=1) as service:
        names = []
        for i in range(3):
            names.append(service.call("submit", job).stdout.strip())
            service.call("watch", names[-1], expect=1)
            wait_for(lambda: not [path for path in open_files(service) if "/jobs/" in path], f"open after job {i + 1}: {open_files(service)}")
        service.coordinator.kill()
        service.coordinator.wait()
        service.start_coordinator()
        service.call("list")
        check(not [path for path in open_files(service) if "/jobs/" in path], f"open after a start: {open_files(service)}")
        for name in names:
            check("far (line 4): invalid_request" in service.call("status", name).stdout, service.call("status", name).stdout)
            service.call("verify", name)
            service.call("retry", name)
            service.call("watch", name, expect=1)
        service.call("fetch", names[1], "--out", folder / "again.jsonl", expect=1)


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
        fetched = json.loads(service.call("fetch", name, "--out", folder / "fetched.jsonl", "--json", expect=1).stdout)
        check(fetched == {"job": name, "out": str(folder / "fetched.jsonl"), "errors": str(folder / "fetched.jsonl.errors.jsonl"), "failed": 1}, f"{fetched}")
        proof = json.loads(service.call("verify", name, "--json").stdout)
        check(proof["job"] == name and proof["state"] == "sound", f"{proof}")
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
    run = subprocess.Popen([*map(str, fleet.run_args(job, out, "--seed", "9"))], stderr=subprocess.PIPE, text=True)
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


def status_explains(folder):
    """Why a job waits, at submit time and later; what failed, with examples, also of a closed job and from a spool nobody holds."""
    job, spool = job_file(folder, 30, 8), folder / "spool"
    with open(job, "a", encoding="utf-8") as file:
        file.write('{"custom_id": "bad", "prompt": 7}\n')
        file.write(json.dumps({"custom_id": "l\u00e4ngs", "prompt": [3] * 50, "max_tokens": 900000}) + "\n")
        file.write('{"x\n')
    with Service(spool, n_workers=0) as service:
        done = service.call("submit", job, "--model", "other")
        wanted = done.stdout.strip()
        check("waits" in done.stderr and "no worker is connected" in done.stderr, done.stderr)
        service.start_worker()
        wait_for(lambda: "demo_model" in json.loads(service.call("status", wanted, "--json").stdout)["why"], "status does not name the model that is there")
        why = json.loads(service.call("status", wanted, "--json").stdout)["why"]
        check("no worker here serves the model other" in why, why)
        check("no worker here serves the model other" in service.call("submit", job, "--model", "other").stderr, "submit does not say that nobody serves the model")
        name = service.call("submit", job, "--set", "top_k=3", "--seed", "4", "--max-context", "4096", "--now", "5").stdout.strip()
        service.call("watch", name, expect=1)
        text = service.call("status", name).stdout
        live = json.loads(service.call("status", name, "--json").stdout)
        for word in (name, "completed: 33 of 33 rows", "30 completed, 3 failed", "1 context_overflow", "l\u00e4ngs (line 32): context_overflow", "bad (line 31): invalid_request",
                     "row-33 (line 33): invalid_json", "idle", "seed 4", '"top_k":3', "max context 4096"):
            check(word in text, f"{word!r} is not in\n{text}")
        check(all(len(line) < 400 for line in text.splitlines()) and "\x1b" not in text, "a pipe does not get plain lines")
        check(live["failures"]["codes"] == {"invalid_json": 1, "invalid_request": 1, "context_overflow": 1} and len(live["failures"]["examples"]) == 3, f"{live['failures']}")
        rows = service.call("list").stdout.splitlines()
        check(rows[0].split()[:2] == ["JOB", "STATE"] and rows[1].startswith(wanted) and name in rows[3] and "33/33" in rows[3], f"{rows}")
        wrapped = fleet.call(["script", "-qec", f"stty cols 60; {fleet.TOKENFLEET} status {name} --to {service.endpoint}", "/dev/null"]).stdout
        check(all(len(line.rstrip("\r")) <= 60 for line in wrapped.splitlines()), f"a terminal of 60 columns gets\n{wrapped}")
    cold = json.loads(spool_call("status", spool, name, "--json").stdout)
    check(cold["failures"] == live["failures"] and cold["rows"] == live["rows"], f"{cold}")


MISTAKES = [                                              # arguments, exit status, what the sentence names
    ([], 2, "--help"), (["dance"], 2, "dance"), (["run"], 2, "JOB.jsonl is missing"), (["run", "a", "b"], 2, "too many"), (["run", "JOB"], 2, "--model"),
    (["run", "JOB", "--model", "demo", "--workers", "0"], 2, "--workers takes a whole number from 1"), (["run", "JOB", "--model", "demo", "--seed", "x"], 2, "'x'"),
    (["run", "JOB", "--model", "demo", "--seed", "18446744073709551616"], 2, "--seed"), (["run", "JOB", "--model", "demo", "--device", "tpu"], 2, "auto|cpu|cuda"),
    (["run", "JOB", "--model", "demo", "--set", "temperature"], 2, "temperature"), (["run", "JOB", "--model", "demo", "--set", "temperatur=1"], 2, "temperatur"),
    (["run", "JOB", "--model", "demo", "--now"], 2, "--now needs a value"), (["run", "JOB", "--model", "demo", "--force=yes"], 2, "takes no value"),
    (["run", "NOTHING", "--model", "demo"], 3, "NOTHING"), (["run", "JOB", "--model", "NOTHING"], 3, "NOTHING"),
    (["submit", "JOB"], 2, "--to"), (["submit", "JOB", "--to", "127.0.0.1:70"], 2, "127.0.0.1:70"), (["submit", "JOB", "--to", "tcp://127.0.0.1:99999"], 2, "99999"),
    (["submit", "NOTHING", "--to", "tcp://127.0.0.1:PORT"], 3, "NOTHING"), (["submit", "JOB", "--to", "tcp://127.0.0.1:PORT", "--max-context", "-1"], 2, "--max-context"),
    (["submit", "JOB", "--to", "tcp://10.1.2.3:7070"], 2, "loopback"),
    (["status"], 2, "--to ENDPOINT or --spool DIR"), (["status", "--to", "tcp://127.0.0.1:1", "--spool", "x"], 2, "either"), (["status", "x", "--spool", "SPOOL"], 2, "'x'"),
    (["coordinator", "--spool", "s"], 2, "--bind"), (["coordinator", "--spool", "s", "--bind", "udp://x"], 2, "udp://x"), (["gc", "--older-than", "soon", "--spool", "SPOOL"], 2, "soon"),
    (["gc", "JOB", "--spool", "SPOOL"], 2, "too many"), (["retry", "--spool", "NOTHING"], 2, "NOTHING"), (["delete", "--force=1", "--spool", "SPOOL"], 2, "no value"),
]


def mistakes_are_one_sentence(folder):
    job, spool, port = job_file(folder, 3, 4), folder / "spool", str(free_port())
    out = folder / "out.jsonl"
    fleet.run(job, out, "--spool", spool)
    names = {"JOB": str(job), "SPOOL": str(spool), "NOTHING": str(folder / "nothing")}
    cases = [([names.get(a, a).replace("PORT", port) for a in args], status, names.get(word, word)) for args, status, word in MISTAKES]
    cases += [([command, "job-0000000000000001", "--spool", str(spool)], 2, "job-0000000000000001") for command in ("status", "watch", "fetch", "verify", "cancel", "retry", "delete")]
    cases += [([command, "job-0", "--spool", str(spool)], 2, "'job-0'") for command in ("status", "watch", "fetch", "verify", "cancel", "retry", "delete")]
    cases += [([command, "--spool", str(spool), "--colour"], 2, "--colour") for command in ("list", "status", "watch", "fetch", "verify", "cancel", "retry", "delete", "gc")]
    for args, status, word in cases:
        done = fleet.call([fleet.TOKENFLEET, *args], expect=None, timeout=60, cwd=folder)
        check(done.returncode == status and word in done.stderr, f"{args}: exit {done.returncode} instead of {status}, or no {word!r} in: {done.stderr}")
        check(done.stderr.count("\n") == 1 and done.stderr.startswith("tokenfleet") and not done.stdout, f"{args}: not one sentence: {done.stderr}{done.stdout}")
    text = fleet.call([fleet.TOKENFLEET, "--help"]).stdout
    commands = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and len(line.split()) > 1 and line[2] != " " and line.split()[0] != "tokenfleet"]
    check({"retry", "delete", "gc", "status"} <= set(commands), f"{commands}")
    for command in commands:
        text = fleet.call([fleet.TOKENFLEET, command, "--help"]).stdout
        check(f"usage: tokenfleet {command}" in text and f"  tokenfleet {command}" in text.split("example:")[1], f"{command} --help has no example")
    silent = [threading.Thread(target=lambda c=c: failures.append(unreachable(c, port))) for c in ("list", "status", "watch", "cancel", "retry", "delete", "gc", "verify", "fetch")]
    failures = []
    for thread in silent:
        thread.start()
    for thread in silent:
        thread.join()
    check(not any(failures), f"{failures}")
    return f"{len(cases)} mistakes"


def unreachable(command, port):
    args = [] if command in ("list", "gc") else ["job-0000000000000001"]
    if command == "watch":
        return None                                       # waits for a coordinator that comes back
    done = fleet.call([fleet.TOKENFLEET, command, *args, "--to", f"tcp://127.0.0.1:{port}"], expect=None, timeout=120)
    good = done.returncode == 3 and port in done.stderr and done.stderr.count("\n") == 1
    return None if good else f"{command}: exit {done.returncode}: {done.stderr}"


def interrupted(process, *signals, expect, word=""):
    """Signals with a pause between them; the process must end soon, with this status and this word on stderr."""
    fleet.wait_catches(process, *signals)
    time.sleep(0.5)                                       # most have come to where they wait
    start = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)
    words = process.communicate(timeout=60)[1]
    took = time.monotonic() - start
    name = process.args[1]
    check(process.returncode == expect, f"{name}: exit {process.returncode} instead of {expect}: {words}")
    check(word in words and took < 15, f"{name}: {took:.1f} s, {words!r}")


def a_spool_that_may_only_be_read(folder):
    """Of somebody else, or on a disk that is mounted read-only: how its jobs stand can be seen."""
    job, spool = job_file(folder, 2, 2), folder / "a%20b?c#d.spool"
    fleet.run(job, folder / "out.jsonl", "--spool", spool)
    subprocess.run(["chmod", "-R", "a+rX,a-w", folder], check=True)
    try:
        options = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for command in ("list", "status"):
            done = fleet.call([fleet.TOKENFLEET, command, "--spool", spool], **options)
            check("completed" in done.stdout, done.stdout)
        check(not list(spool.glob("journal.db-*")), "reading leaves files")
        if options:                                      # root may write everywhere, and leaves an empty WAL
            spool_call("list", spool)
            fleet.call([fleet.TOKENFLEET, "list", "--spool", spool], **options)
    finally:
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def many_jobs_are_listed(folder):
    """A list that is longer than a message comes in pieces: asking for it ends no coordinator."""
    job, large = job_file(folder, 1, 2), "x" * 120000
    with Service(folder / "spool", n_workers=0) as service:
        names = [service.call("submit", job, "--set", f'chat_template_kwargs={{"a": "{large}"}}', "--set", f'tools=["{large}"]').stdout.strip() for _ in range(24)]
        listed = json.loads(service.call("list", "--json").stdout)
        check([one["job"] for one in listed["jobs"]] == names and len(json.dumps(listed)) > 5 << 20, "not all jobs are listed")
        check("24 jobs" in service.call("status", expect=2).stderr, "status counts other jobs")
        check(len(fleet.call([fleet.TOKENFLEET, "list", "--spool", folder / "spool"]).stdout.splitlines()) == 25, "list --spool")
        check(service.coordinator.poll() is None, "the coordinator has ended")


def names_drive_no_terminal(folder):
    """Names of jobs and models, and custom_ids, may hold anything; what is printed is one line of text."""
    job = folder / "a\x1b[31m\nb.jsonl"
    job.write_text(json.dumps({"custom_id": "r\n\x1b]0;x\x07\x9b2J", "prompt": [99999999]}) + "\n")
    run = fleet.call(fleet.run_args(job, folder / "e.jsonl"), expect=1)
    printed = [run.stderr, fleet.call(fleet.run_args(folder / "n\x1bone", folder / "o.jsonl"), expect=3).stderr]
    with Service(folder / "terminal", n_workers=0) as service:
        submit = service.call("submit", job, "--model", "m\x1b[2J\n\x9bx")
        printed += [submit.stderr] + [service.call(*args).stdout for args in (["status"], ["list"])]
        service.start_worker()
        wait_for(lambda: json.loads(service.call("list", "--json").stdout)["workers"], "no worker")
        name = service.call("submit", job).stdout.strip()
        service.call("watch", name, expect=1)
        printed += [service.call(*args).stdout for args in (["status", name], ["status", submit.stdout.strip()], ["list"])]
    for text in printed:
        check(text and all(character == "\n" or character.isprintable() for character in text), repr(text))
    check(len(printed[-1].splitlines()) == 3, printed[-1])
    check("m?[2J??x" in printed[3], printed[3])


def names_are_too_long(folder):
    """Said before anything is computed; with names that are just short enough everything works."""
    job = job_file(folder, 2, 2)
    for n, expect in ((255, 2), (218, 2), (217, 0)):     # OUT.errors.jsonl, OUT.tmp-job-...
        done = fleet.run(job, folder / ("o" * n), expect=expect)
        check(expect == 0 or ("choose a shorter" in done.stderr and not list(folder.glob("o*"))), f"{n}: {done.stderr}")
    deep = folder / "/".join(["d" * 100] * 6)
    deep.mkdir(parents=True)
    done = fleet.run(job, deep / "out.jsonl", expect=2)
    check("choose a shorter --spool" in done.stderr and not list(deep.iterdir()), done.stderr)
    fleet.run(job, deep / "out.jsonl", "--spool", folder / "short.spool")


def start(*args, **options):
    return subprocess.Popen([fleet.TOKENFLEET, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def ctrl_c(folder):
    """The first one drains or stops waiting, the second one stops at once; SIGTERM is the same; 4 where something is left to do."""
    job = job_file(folder, 2000, 400)
    for i, signals in enumerate(([signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGTERM])):
        out = folder / f"out{i}.jsonl"
        run = start("run", job, "--model", fleet.DEMO, "--out", out)
        wait_for(lambda: (folder / f"out{i}.jsonl.spool/endpoint").exists(), "run does not begin")
        interrupted(run, *signals, expect=4, word="nothing is lost, run the same command again")
    os.mkfifo(folder / "fifo")
    for first in (True, False):                          # also when the spool has the job: it is read again to see that it is the same
        run = start("run", folder / "fifo", "--model", fleet.DEMO, "--out", folder / "fifo.jsonl")
        interrupted(run, signal.SIGINT, expect=4, word="nothing is lost")
        if first:
            (folder / "small").mkdir()
            fleet.run(job_file(folder / "small", 2, 2), folder / "fifo.jsonl")
    interrupted_submit = start("submit", folder / "fifo", "--to", f"ipc://{folder}/nobody")
    interrupted(interrupted_submit, signal.SIGINT, expect=4, word="nothing was submitted")
    read_end, write_end = os.pipe()
    run = start("run", "-", "--model", fleet.DEMO, "--out", folder / "piped.jsonl", stdin=read_end)
    interrupted(run, signal.SIGINT, expect=4, word="stopped while the job was read")
    with Service(folder / "spool", n_workers=0) as service:
        submit = start("submit", "-", "--to", service.endpoint, stdin=read_end)
        interrupted(submit, signal.SIGINT, expect=4, word="nothing was submitted")
        name = service.call("submit", job).stdout.strip()
        watch = start("watch", name, "--to", service.endpoint)
        interrupted(watch, signal.SIGTERM, expect=4, word="the job goes on")
        service.coordinator.send_signal(signal.SIGSTOP)
        for i, args in enumerate((["fetch", name, "--out", folder / "x.jsonl"], ["verify", name], ["retry", name], ["delete", name], ["cancel", name], ["gc"], ["list"], ["status", name], ["submit", job])):
            interrupted(start(*args, "--to", service.endpoint), signal.SIGTERM if i % 2 else signal.SIGINT, expect=4)
        service.coordinator.send_signal(signal.SIGCONT)
        service.start_worker()
        wait_for(lambda: json.loads(service.call("status", name, "--json").stdout)["rows"]["running"] > 0, "no row runs")
        service.coordinator.send_signal(signal.SIGINT)
        check(service.coordinator.wait(60) == 4, "a drained coordinator with an open job does not end with 4")
        service.start_coordinator()
        service.call("delete", name, "--force")
        check("no jobs" in service.call("list").stdout, "delete --force")
        service.coordinator.send_signal(signal.SIGTERM)
        check(service.coordinator.wait(30) == 0, "a coordinator without open jobs does not end with 0")
        service.start_coordinator()
        service.call("submit", job)
        worker = service.start_worker()
        wait_for(lambda: json.loads(service.call("list", "--json").stdout)["jobs"][0]["rows"]["running"] > 0, "no row runs")
        worker.send_signal(signal.SIGSTOP)                # so that a drain would take until its lease runs out, 30 s
        for _ in range(2):
            service.coordinator.send_signal(signal.SIGINT)
            time.sleep(0.1)
        check(service.coordinator.wait(15) == 4, "two signals do not stop the coordinator at once")
        worker.send_signal(signal.SIGCONT)
    os.close(read_end)
    os.close(write_end)


if __name__ == "__main__":
    fleet.main([finished_jobs_hold_no_files, a_spool_that_may_only_be_read, many_jobs_are_listed, names_drive_no_terminal, retry_after_cancel, retry_of_a_run, gc_removes_what_is_left_over, a_damaged_job_is_named_and_can_go, status_explains, mistakes_are_one_sentence, names_are_too_long, ctrl_c])
