#!/usr/bin/python3
"""A coordinator as a service: submit, list, status, watch, fetch, verify, cancel; workers and the coordinator come and go."""
import json
import signal
import socket
import subprocess
import time

import fleet
from fleet import DEMO, check


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    """A coordinator on loopback and some workers; everything ends with the block."""

    def __init__(self, spool, n_workers=2):
        self.spool, self.endpoint, self.processes = spool, f"tcp://127.0.0.1:{free_port()}", []
        self.n_workers = n_workers

    def start_coordinator(self):
        self.coordinator = subprocess.Popen([fleet.TOKENFLEET, "coordinator", "--spool", str(self.spool), "--bind", self.endpoint])
        self.processes.append(self.coordinator)

    def start_worker(self, *more):
        worker = subprocess.Popen([fleet.WORKER, "--connect", self.endpoint, "--model", str(DEMO), "--threads", "1", *more])
        self.processes.append(worker)
        return worker

    def __enter__(self):
        self.start_coordinator()
        self.workers = [self.start_worker() for _ in range(self.n_workers)]
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def call(self, command, *args, expect=0, timeout=120):
        return fleet.call([fleet.TOKENFLEET, command, *args, "--to", self.endpoint], expect=expect, timeout=timeout)


def job_file(folder, n_rows, max_tokens=40):
    job = folder / "job.jsonl"
    job.write_text("".join(json.dumps({"custom_id": f"r{i}", "prompt": [i % 1000 + 3] * 30, "max_tokens": max_tokens, "ignore_eos": True}) + "\n" for i in range(n_rows)))
    return job


def whole_life(folder):
    job = job_file(folder, 60)
    fleet.run(job, folder / "plain.jsonl", "--seed", "9")
    with Service(folder / "spool") as service:
        name = service.call("submit", job, "--seed", "9").stdout.strip()
        check(name.startswith("job-"), f"submit prints {name!r}")
        service.call("watch", name)
        check(name in service.call("list").stdout, "list does not show the job")
        status = json.loads(service.call("status", name, "--json").stdout)
        check(status["rows"]["total"] == 60 and status["rows"]["completed"] == 60 and status["state"] == "completed", f"{status}")
        service.call("fetch", name, "--out", folder / "fetched.jsonl")
        service.call("verify", name)
        check(fleet.both(folder / "fetched.jsonl") == fleet.both(folder / "plain.jsonl"), "the service and run give different bytes")
        for command in ("status", "watch", "fetch", "cancel", "verify"):
            check("job-0000000000000001" in service.call(command, "job-0000000000000001", expect=2).stderr, f"{command}: the unknown job is not named")


def restarts(folder):
    """The coordinator is killed and started again, a worker is killed, another drains: the job's bytes stay the same."""
    job = job_file(folder, 200, 100)
    fleet.run(job, folder / "plain.jsonl", "--seed", "9")
    with Service(folder / "spool") as service:
        name = service.call("submit", job, "--seed", "9").stdout.strip()
        time.sleep(0.5)
        service.coordinator.kill()
        service.coordinator.wait()
        service.start_coordinator()
        service.workers[0].kill()
        service.start_worker()
        time.sleep(0.5)
        service.workers[1].send_signal(signal.SIGTERM)
        check(service.workers[1].wait(60) == 0, f"a drained worker ended with {service.workers[1].returncode}")
        service.call("watch", name, timeout=300)
        service.call("fetch", name, "--out", folder / "fetched.jsonl")
        service.call("verify", name)
    check(fleet.both(folder / "fetched.jsonl") == fleet.both(folder / "plain.jsonl"), "another hash after restarts")
    done = fleet.call([fleet.TOKENFLEET, "status", name, "--spool", folder / "spool"])
    check("completed" in done.stdout, done.stdout)


def cancelled(folder):
    """cancel keeps finished rows; every other row has a batch_cancelled line."""
    job = job_file(folder, 400, 200)
    with Service(folder / "spool", n_workers=1) as service:
        name = service.call("submit", job).stdout.strip()
        time.sleep(1.0)
        service.call("fetch", name, "--out", folder / "early.jsonl", expect=4)
        service.call("cancel", name)
        service.call("watch", name, expect=1)
        service.call("fetch", name, "--out", folder / "fetched.jsonl", expect=1)
        service.call("verify", name)
    answers, errors = fleet.lines(folder / "fetched.jsonl"), fleet.lines(folder / "fetched.jsonl.errors.jsonl")
    check(len(answers) + len(errors) == 400 and errors, f"{len(answers)} answers and {len(errors)} errors")
    check({e["error"]["code"] for e in errors} == {"batch_cancelled"}, "an error that is not batch_cancelled")
    return f"{len(answers)} finished, {len(errors)} cancelled"


def no_service(folder):
    done = fleet.call([fleet.TOKENFLEET, "list", "--to", f"tcp://127.0.0.1:{free_port()}"], expect=3, timeout=60)
    check("127.0.0.1" in done.stderr, done.stderr)


if __name__ == "__main__":
    fleet.main([whole_life, restarts, cancelled, no_service])
