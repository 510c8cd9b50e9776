#!/usr/bin/python3
"""The real coordinator and the real worker killed (SIGKILL) at every named point, then started again: the job ends with the bytes of an undisturbed run and verify says sound. crash_at.c,
preloaded, does the killing: at the first, a middle and the last call of each kind that a whole job makes."""
import json
import os
import signal
import subprocess
import sys
import time

import fleet
from fleet import Failure, Service, check

CRASH_AT = fleet.BIN.parent / "tests" / "libcrash_at.so"
ROWS = 60
LEDGER_SEGMENT_BYTES = 32 << 20

# name: call, part of the path, before or after it
COORDINATOR = {
    "ingest: before the lines are written": ("write", "job.jsonl", "before"),
    "ingest: before the index is written": ("write", "rows.idx", "before"),
    "ingest: lines are synced": ("sync", "rows.idx", "after"),
    "a segment is made": ("create", ".seg", "after"),
    "before a write": ("write", ".seg", "before"),
    "after a write, before its sync": ("sync", ".seg", "before"),
    "after a sync, before its answer": ("sync", ".seg", "after"),
    "before the journal's transaction is durable": ("sync", "journal.db", "before"),
    "after the journal's transaction, before its sends": ("sync", "journal.db", "after"),
    "before the outputs are written": ("write", "out.jsonl", "before"),
    "before the outputs are synced": ("sync", "out.jsonl", "before"),
    "before the outputs have their names": ("rename", "out.jsonl", "before"),
    "after the outputs have their names": ("rename", "out.jsonl", "after"),
    "before the summary has its name": ("rename", "summary.json", "before"),
    "after the summary has its name": ("rename", "summary.json", "after"),
}
RETRY = {
    "retry: a generation is written": ("write", "ledger.2", "before"),
    "retry: a generation is synced": ("sync", "ledger.2", "after"),
    "retry: before the journal names it": ("sync", "journal.db", "before"),
    "retry: after the journal names it": ("sync", "journal.db", "after"),
}
# of a `run`; the errors file has its name before OUT has
RUN = {
    "run: the error file has its name": ("rename", "results.jsonl", "after", 1),
    "run: both outputs have their names": ("rename", "results.jsonl", "after", 2),
    "run: the summary has its name": ("rename", "summary.json", "after", 1),
    "run: it remembers that it has written them": ("rename", "run.json", "after", 2),
}
# name: process, call, before or after it, which of them, microseconds between it and the end
WORKER = {
    "after a grant": ("tokenfleet-work", "send_engine", "after", (1, 2), 0),
    "during prefill": ("tokenfleet-work", "send_engine", "after", (2,), 60000),
    "before a result is sent": ("tokenfleet-work", "send", "before", (1, 2, 40), 0),
    "after a result is sent, before its answer": ("tokenfleet-work", "send", "after", (3, 45), 0),
    "the engine between pieces for its parent": ("tokenfleet-eng", "send_parent", "after", (1, 20), 0),
}


def write_job(folder, n_bad=3):
    job = folder / "job.jsonl"
    with open(job, "w", encoding="ascii") as file:
        file.write('{"prompt":7}\n' * n_bad)
        for i in range(ROWS):
            row = {"custom_id": f"row-{i}", "prompt": [i + 3] * (600 if i % 12 == 5 else 9), "max_tokens": 10, "n": 1 + i % 2, "ignore_eos": True, "logprobs": 1}
            file.write(json.dumps({**row, "max_tokens": 900000} if i % 20 == 7 else row) + "\n")
    return job


def crash(call, path, when, count=None, tally=None, comm=None, delay_us=0, once=None):
    env = {"LD_PRELOAD": str(CRASH_AT), "CRASH_CALL": call, "CRASH_WHEN": when}
    for key, value in (("FILE", path), ("COUNT", count), ("TALLY", tally), ("COMM", comm), ("DELAY_US", delay_us), ("ONCE", once)):
        if value:
            env[f"CRASH_{key}"] = str(value)
    return {**os.environ, **env}


class Crashing(Service):
    """Whoever was killed by a crash point is started again, as it should be, at once."""

    def __init__(self, spool, coordinator_env=None, worker_env=None):
        super().__init__(spool, n_workers=0)
        self.coordinator_env, self.worker_env, self.deaths = coordinator_env, worker_env, 0

    def start_coordinator(self, **options):
        self.coordinator = subprocess.Popen([fleet.TOKENFLEET, "coordinator", "--spool", str(self.spool), "--bind", self.endpoint, "--lease-term", "2"], env=self.coordinator_env,
                                            stderr=subprocess.DEVNULL)
        self.processes.append(self.coordinator)

    def launch(self):
        self.worker = subprocess.Popen([fleet.WORKER, "--connect", self.endpoint, "--model", str(fleet.DEMO), "--threads", "1"], env=self.worker_env, stderr=subprocess.DEVNULL)
        self.processes.append(self.worker)

    def __enter__(self):
        super().__enter__()
        self.launch()
        return self

    def tend(self):
        for process, again in ((self.coordinator, self.start_coordinator), (self.worker, self.launch)):
            if process.poll() is None:
                continue
            check(process.returncode == -signal.SIGKILL, f"{process.args[0]} ended with {process.returncode}")
            self.deaths += 1
            self.coordinator_env = self.worker_env = None
            again()

    def ask(self, *args, ends=(0,)):
        """One command; None when it did not end as it should, since a process died under it."""
        client = subprocess.Popen([fleet.TOKENFLEET, *map(str, args), "--to", self.endpoint], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while client.poll() is None:
            self.tend()
            check(time.monotonic() < deadline, f"{args} hangs")
            time.sleep(0.005)
        out, self.said = client.communicate()
        self.tend()
        return out if client.returncode in ends else None

    def insist(self, *args, ends=(0,)):
        for _ in range(20):
            answer = self.ask(*args, ends=ends)
            if answer is not None:
                return answer
            time.sleep(0.05)
        raise Failure(f"{args}: {self.said}")

    def submit(self, job):
        for _ in range(20):
            jobs = json.loads(self.insist("list", "--json"))["jobs"]
            if jobs:                                     # the answer to an earlier submit was lost
                return jobs[0]["job"]
            answer = self.ask("submit", job, "--seed", "4")
            if answer:
                return answer.strip()
        raise Failure(f"submit: {self.said}")

    def finish(self, name, folder, reference, what):
        out = folder / "out.jsonl"
        self.insist("fetch", name, "--out", out, "--force", ends=(1,))
        check(fleet.both(out) == reference, f"{what}: another hash")
        self.insist("verify", name)


def whole(folder, job, reference, what, **envs):
    """A job's whole life; returns how many processes were killed in it."""
    spool = folder / "spool"
    with Crashing(spool, **envs) as service:
        service.finish(service.submit(job), folder, reference, what)
    subprocess.run(["rm", "-rf", str(spool)], check=True)
    return service.deaths


def counts_of(total):
    return sorted({1, (total + 1) // 2, total})


def plain(folder, **job):
    path = write_job(folder, **job)
    fleet.run(path, folder / "plain.jsonl", "--seed", "4", expect=1)
    return path, fleet.both(folder / "plain.jsonl")


def tallied(folder, call, path, run):
    tally = folder / "tally"
    tally.unlink(missing_ok=True)
    run(crash(call, path, "before", tally=tally))
    return int(tally.read_text()) if tally.exists() else 0


def the_coordinator_at_every_point(folder):
    job, reference = plain(folder)
    totals, n = {}, 0
    for name, (call, path, when) in COORDINATOR.items():
        if (call, path) not in totals:
            totals[call, path] = tallied(folder, call, path, lambda env: whole(folder, job, reference, name, coordinator_env=env))
        check(totals[call, path] > 0, f"{name}: a whole job makes no such call")
        for count in counts_of(totals[call, path]):
            deaths = whole(folder, job, reference, f"{name}, {count} of {totals[call, path]}", coordinator_env=crash(call, path, when, count))
            n += deaths
            check(deaths > 0 or count > 1, f"{name}, {count} of {totals[call, path]}: nothing died")
    check(n >= len(COORDINATOR), f"only {n} deaths")
    return f"{n} deaths at {len(COORDINATOR)} points"


def a_retry_at_every_point(folder):
    job, reference = plain(folder)
    n = 0
    spool, kept = folder / "spool", folder / "kept"
    with Crashing(spool) as service:
        name = service.submit(job)
        service.finish(name, folder, reference, "before a retry")
    spool.rename(kept)

    def again(env, what):
        subprocess.run(["rm", "-rf", str(spool)], check=True)
        subprocess.run(["cp", "-a", str(kept), str(spool)], check=True)
        with Crashing(spool, coordinator_env=env) as retrying:
            retrying.ask("retry", name)
            retrying.insist("retry", name, ends=(0, 2))  # 2: it is open already, the answer was lost
            retrying.finish(name, folder, reference, what)
        return retrying.deaths

    for point, (call, path, when) in RETRY.items():
        total = tallied(folder, call, path, lambda env: again(env, point))
        check(total > 0, f"{point}: a retry makes no such call")
        for count in counts_of(total):
            n += again(crash(call, path, when, count), f"{point}, {count} of {total}")
    check(n >= len(RETRY), f"only {n} deaths")
    return f"{n} deaths at {len(RETRY)} points"


def a_run_and_its_retry(folder):
    """Killed between the names of its outputs and its word for that, a run is retried: what follows is true, and the hash is the same."""
    job = folder / "few.jsonl"
    job.write_text("".join(json.dumps({"custom_id": f"row-{i}", "prompt": [i + 3, 5], "max_tokens": 4 if i else 900000}) + "\n" for i in range(3)))
    out, spool = folder / "results.jsonl", folder / "kept"
    command = [fleet.TOKENFLEET, "run", job, "--model", fleet.DEMO, "--out", out, "--spool", spool]
    retry = [fleet.TOKENFLEET, "retry", "--spool", spool]
    reference = None
    for name, (call, path, when, count) in RUN.items():
        killed = fleet.call(command, expect=None, env=crash(call, path, when, count, comm="tokenfleet"))
        check(killed.returncode == -signal.SIGKILL, f"{name}: ended with {killed.returncode}")
        if path != "run.json":
            said = fleet.call(retry, expect=4).stderr
            check("has not finished writing" in said and "tokenfleet run" in said, f"{name}: {said}")
            fleet.call(command, expect=1)
        fleet.call(retry)
        fleet.call(command, expect=1)
        reference = reference or fleet.both(out)
        check(fleet.both(out) == reference, f"{name}: another hash")
        fleet.call([fleet.TOKENFLEET, "verify", "--spool", spool])
        clear_run(out, spool)


def clear_run(out, spool):
    subprocess.run(["rm", "-rf", str(out), f"{out}.errors.jsonl", str(spool)], check=True)


def the_worker_at_every_point(folder):
    job, reference = plain(folder)
    n = 0
    for name, (comm, call, when, counts, delay_us) in WORKER.items():
        for count in counts:
            once = folder / "once"
            whole(folder, job, reference, f"{name}, {count}", worker_env=crash(call, None, when, count, comm=comm, delay_us=delay_us, once=once))
            check(once.exists(), f"{name}, {count}: nothing died")
            once.unlink()
            n += 1
    return f"{n} deaths at {len(WORKER)} points"


def a_worker_that_drains(folder):
    job, reference = plain(folder)
    for delay in (0, 0.02, 0.05):
        with Crashing(folder / "spool") as service:
            name = service.submit(job)
            while json.loads(service.insist("list", "--json"))["jobs"][0]["rows"]["completed"] == 0:
                time.sleep(0.005)
            service.worker.send_signal(signal.SIGTERM)
            time.sleep(delay)
            service.worker.kill()
            service.worker.wait()
            if service.worker.returncode == 0:           # it had drained already
                service.launch()
            service.finish(name, folder, reference, f"killed {delay} s into a drain")
        subprocess.run(["rm", "-rf", str(folder / "spool")], check=True)


def ledger_bytes(folder, n_bad):
    """Of a whole job's first segment."""
    job, reference = plain(folder, n_bad=n_bad)
    with Crashing(folder / "spool") as service:
        service.finish(service.submit(job), folder, reference, "a whole job")
    n_bytes = next((folder / "spool").rglob("000001.seg")).stat().st_size
    clear(folder)
    return n_bytes


def clear(folder):
    subprocess.run(["rm", "-rf", *map(str, folder.iterdir())], check=True)


def a_new_segment(folder):
    """Bad lines fill the first segment so far that results cross into the second."""
    few, more = ledger_bytes(folder, 1000), ledger_bytes(folder, 11000)
    a_line = (more - few) / 10000
    results = few - 1000 * a_line
    job, reference = plain(folder, n_bad=int((LEDGER_SEGMENT_BYTES - results / 2) / a_line))
    n = 0
    for when in ("before", "after"):
        n += whole(folder, job, reference, f"{when} a segment is made", coordinator_env=crash("create", "000002.seg", when, 1))
    check(n == 2, f"{n} deaths at the making of a second segment")
    return f"{n} deaths"


if __name__ == "__main__":
    if fleet.SANITIZED:
        print("skipped: a sanitizer's library does not let another one be loaded in front of it")
        sys.exit(77)
    fleet.main([the_coordinator_at_every_point, a_retry_at_every_point, a_run_and_its_retry, the_worker_at_every_point, a_worker_that_drains, a_new_segment])
