#!/usr/bin/python3
"""A coordinator as a service: submit, list, status, watch, fetch, verify, cancel; workers and the coordinator come and go."""
import json
import os
import signal
import socket
import subprocess
import time

import fleet
from fleet import Service, check, free_port, job_file

TERM_S = 30                              # of a lease whose worker is silent, unless --lease-term says otherwise


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


def tail(folder):
    """A worker freezes with rows in its hands: the other one gets copies of them before the lease ends, and what the frozen one says later changes nothing."""
    job = job_file(folder, 120, 60)
    fleet.run(job, folder / "plain.jsonl", "--seed", "9")
    with Service(folder / "spool") as service:
        name = service.call("submit", job, "--seed", "9").stdout.strip()
        now = {"workers": []}
        while [worker["held"] > 0 for worker in now["workers"]] != [True, True]:
            now = json.loads(service.call("status", name, "--json").stdout)
            check(now["state"] == "running", "the job ended before both workers had rows")
        service.workers[0].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        while now["state"] == "running" and time.monotonic() - start < 120:
            now = json.loads(service.call("status", name, "--json").stdout)
            time.sleep(0.1)
        took, copied = time.monotonic() - start, now["events"]["samples_copied"]
        service.workers[0].send_signal(signal.SIGCONT)
        check(now["state"] == "completed", f"the job is {now['state']}")
        # it may have frozen a moment after its last row: then there was nothing to copy, and no lease's end to wait for
        check(copied > 0 or took < TERM_S, f"no row was copied in {took:.1f} s")
        service.call("fetch", name, "--out", folder / "fetched.jsonl")
        service.call("verify", name)
    check(fleet.both(folder / "fetched.jsonl") == fleet.both(folder / "plain.jsonl"), "another hash with copies")
    return f"{copied} samples copied, {took:.1f} s with a frozen worker"


def cancelled(folder):
    """cancel keeps finished rows; every other row has a batch_cancelled line."""
    job = job_file(folder, 400, 200)
    with Service(folder / "spool", n_workers=1) as service:
        name = service.call("submit", job).stdout.strip()
        time.sleep(1.0)
        early = subprocess.Popen([fleet.TOKENFLEET, "fetch", name, "--to", service.endpoint, "--out", str(folder / "early.jsonl")])
        service.processes.append(early)
        time.sleep(0.5)
        check(early.poll() is None, "a fetch of a running job does not wait for it")
        service.call("cancel", name)
        check(early.wait(60) == 1, f"the fetch of a cancelled job ended with {early.returncode}")
        check("cancelled" in service.call("cancel", name, expect=2).stderr, "a second cancel does not say so")
        service.call("watch", name, expect=1)
        service.call("fetch", name, "--out", folder / "fetched.jsonl", expect=1)
        check(fleet.both(folder / "fetched.jsonl") == fleet.both(folder / "early.jsonl"), "a fetch that followed the job has other bytes")
        service.call("verify", name)
        rows = json.loads(service.call("status", name, "--json").stdout)["rows"]
    answers, errors = fleet.lines(folder / "fetched.jsonl"), fleet.lines(folder / "fetched.jsonl.errors.jsonl")
    check(len(answers) + len(errors) == 400 and errors, f"{len(answers)} answers and {len(errors)} errors")
    check({e["error"]["code"] for e in errors} == {"batch_cancelled"}, "an error that is not batch_cancelled")
    check((rows["completed"], rows["failed"]) == (len(answers), len(errors)), f"status shows {rows}, the files {len(answers)} and {len(errors)}")
    return f"{len(answers)} finished, {len(errors)} cancelled"


def times(folder):
    """--expires ends a job also when nobody was there; retry has no deadline; a row's limit fails the row only."""
    job = job_file(folder, 30, 4)
    with Service(folder / "spool", n_workers=0) as service:
        late = service.call("submit", job, "--expires", "2s").stdout.strip()
        service.coordinator.kill()
        service.coordinator.wait()
        slow = time.monotonic() + 2.2
        time.sleep(slow - time.monotonic())
        service.start_coordinator()
        service.call("watch", late, expect=1, timeout=60)                 # its closing record may not be durable when the first request comes
        check(json.loads(service.call("status", late, "--json").stdout)["state"] == "expired", "a job that expired while nobody was there is open after the restart")
        service.call("fetch", late, "--out", folder / "late.jsonl", expect=1)
        errors = fleet.lines(folder / "late.jsonl.errors.jsonl")
        check(len(errors) == 30 and {e["error"]["code"] for e in errors} == {"batch_expired"}, f"{len(errors)} errors, the first {errors[:1]}")
        limited = service.call("submit", job, "--row-queue-limit", "1").stdout.strip()
        service.call("watch", limited, expect=1)
        service.call("fetch", limited, "--out", folder / "limited.jsonl", expect=1)
        errors = fleet.lines(folder / "limited.jsonl.errors.jsonl")
        check({(e["error"]["code"], e["error"]["message"]) for e in errors} == {("request_timeout", "no worker took the row within 1 s")}, f"{errors[:1]}")
        service.start_worker()
        again = service.call("submit", job, "--expires", "1h", "--row-limit", "1h").stdout.strip()
        service.call("watch", again)
        check("expires in" in service.call("status", again).stdout, "status does not show the deadline")
        service.call("retry", late)
        service.call("watch", late)
        for name in (late, again):
            service.call("fetch", name, "--out", folder / f"{name}.jsonl")
        check(fleet.both(folder / f"{late}.jsonl") == fleet.both(folder / f"{again}.jsonl"), "a deadline changed the bytes of rows that finished")


def no_service(folder):
    done = fleet.call([fleet.TOKENFLEET, "list", "--to", f"tcp://127.0.0.1:{free_port()}"], expect=3, timeout=60)
    check("127.0.0.1" in done.stderr, done.stderr)
    start = time.monotonic()
    fleet.call([fleet.TOKENFLEET, "cancel", "job-0000000000000001", "--to", f"tcp://127.0.0.1:{free_port()}"], expect=3, timeout=60)
    check(time.monotonic() - start < 15, "cancel waits for a coordinator that is not there")


def ended_before_the_answer(folder):
    """A coordinator that is killed with a request in hand: the command says so at once, and watch goes on with the next one."""
    job = job_file(folder, 3)
    with Service(folder / "spool", n_workers=0) as service:
        name = service.call("submit", job).stdout.strip()
        watch = subprocess.Popen([fleet.TOKENFLEET, "watch", name, "--to", service.endpoint], stdout=subprocess.PIPE, text=True)
        service.processes.append(watch)
        service.coordinator.send_signal(signal.SIGSTOP)
        check("does not answer" in fleet.call([fleet.TOKENFLEET, "list", "--spool", folder / "spool"], expect=3).stderr, "list of a spool that is held")
        commands = [subprocess.Popen([fleet.TOKENFLEET, *args, "--to", service.endpoint], stderr=subprocess.PIPE, text=True)
                    for args in (["submit", str(job)], ["cancel", name], ["fetch", name, "--out", str(folder / "x.jsonl")])]
        service.processes += commands
        time.sleep(0.5)
        start = time.monotonic()
        service.coordinator.kill()
        for command in commands:
            words = command.communicate(timeout=60)[1]
            check(command.returncode == 3 and "before it answered" in words and time.monotonic() - start < 15, f"exit {command.returncode}: {words}")
        service.coordinator.wait()
        service.start_coordinator()
        service.start_worker()
        check("completed" in watch.communicate(timeout=60)[0] and watch.returncode == 0, "watch did not outlive the coordinator")


def foreign_bytes(folder):
    """Whoever speaks another language to the socket neither stops the coordinator nor fills its log."""
    with Service(folder / "spool", n_workers=0) as service:
        service.coordinator.send_signal(signal.SIGTERM)
        service.coordinator.wait(30)
        service.start_coordinator(stderr=open(folder / "log", "w"))
        service.call("list")
        address = ("127.0.0.1", int(service.endpoint.rsplit(":", 1)[1]))
        null = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)          # a ZMTP 3.0 greeting; then READY of a DEALER with a routing id
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
        for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), null[:30], null + b"\x04" + bytes([len(ready)]) + ready + b"\x00\x05hello" * 2000 + b"\x00\x09cut"):
            with socket.create_connection(address) as peer:
                peer.sendall(data)
                time.sleep(0.3)
        check("no jobs" in service.call("list").stdout, "the coordinator does not answer any more")
    log = (folder / "log").read_text().splitlines()
    check(any("dropped" in line for line in log) and len(log) < 20, f"{len(log)} lines in the log: {log[-3:]}")


def ipc_path_in_use(folder):
    """A file at the path of an ipc endpoint is kept, a running coordinator keeps its socket, and one left behind is taken over."""
    kept, path = folder / "kept.txt", folder / "s"
    kept.write_text("precious")
    done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", folder / "spool", "--bind", f"ipc://{kept}"], expect=3, timeout=30)
    check("no socket" in done.stderr and kept.read_text() == "precious", f"{done.stderr}")
    service = Service(folder / "spool", n_workers=0)
    service.endpoint = f"ipc://{path}"
    with service:
        service.call("list")
        done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", folder / "other", "--bind", service.endpoint], expect=3, timeout=30)
        check("in use" in done.stderr, done.stderr)
        service.call("list")
        service.coordinator.kill()
        service.coordinator.wait()
        check(path.exists(), "the killed coordinator left no socket")
        service.start_coordinator()
        service.call("list")


if __name__ == "__main__":
    fleet.main([whole_life, restarts, tail, cancelled, times, no_service, ended_before_the_answer, foreign_bytes, ipc_path_in_use])
