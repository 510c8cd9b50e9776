#!/usr/bin/python3
"""fetch follows a running job, goes on where it was broken off, and gives the bytes that `run` gives; several fetches, several jobs."""
import json
import signal
import subprocess
import time

import fleet
from fleet import Service, check, wait_for


def job_file(folder, n_rows, name="job.jsonl"):
    """Rows of different length; every ninth is bad, every seventh has two samples."""
    job = folder / name
    rows = [{"custom_id": f"r{i}", "prompt": [i % 1000 + 3] * 20, "max_tokens": 60 + i * 37 % 90, "n": 2 if i % 7 == 6 else 1, "ignore_eos": True} for i in range(n_rows)]
    for row in rows[8::9]:
        row["max_tokens"] = -1
    job.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return job


def start_fetch(service, name, out, *more):
    process = subprocess.Popen([fleet.TOKENFLEET, "fetch", name, "--to", service.endpoint, "--out", str(out), *more], stderr=subprocess.PIPE, text=True)
    service.processes.append(process)
    return process


def part_of(out, name):
    return out.parent / f"{out.name}.part-{name}"


def size(path):
    return path.stat().st_size if path.exists() else 0


def state_of(service, name):
    return json.loads(service.call("status", name, "--json").stdout)["state"]


def broken_off(folder):
    """Stopped by Ctrl-C, killed, left by a coordinator that was killed, spoiled in between: each time the same command goes on, to the same bytes."""
    job, out, notes = job_file(folder, 260), folder / "out.jsonl", []
    fleet.run(job, folder / "plain.jsonl", "--seed", "9", expect=1)
    with Service(folder / "spool", n_workers=1) as service:
        name = service.call("submit", job, "--seed", "9").stdout.strip()
        part = part_of(out, name)
        fetch = start_fetch(service, name, out)
        wait_for(lambda: size(part) > 0 or fetch.poll() is not None, "nothing comes while the job runs")
        notes.append(state_of(service, name))
        fetch.send_signal(signal.SIGINT)
        words = fetch.communicate(timeout=30)[1]
        check(fetch.returncode == 4 and "goes on" in words and not out.exists(), f"Ctrl-C: exit {fetch.returncode}: {words}")
        kept = part.read_bytes()
        check(kept and (folder / "plain.jsonl").read_bytes().startswith(kept), "what was kept is not the beginning of OUT")
        fetch = start_fetch(service, name, out)
        wait_for(lambda: size(part) > len(kept) or fetch.poll() is not None, "the second fetch brings nothing")
        check(part.read_bytes().startswith(kept), "the second fetch did not go on behind the first")
        check("another fetch" in service.call("fetch", name, "--out", out, expect=2).stderr, "two fetches write one file")
        fetch.kill()
        fetch.communicate()
        before = size(part)
        fetch = start_fetch(service, name, out)
        wait_for(lambda: size(part) > before or fetch.poll() is not None, "the third fetch brings nothing")
        service.coordinator.kill()
        service.coordinator.wait()
        words = fetch.communicate(timeout=30)[1]
        check(fetch.returncode == 3 and "goes on" in words, f"the coordinator was killed: exit {fetch.returncode}: {words}")
        service.start_coordinator()
        spoiled = bytearray(part.read_bytes())
        spoiled[-10] ^= 1
        part.write_bytes(spoiled)
        done = service.call("fetch", name, "--out", out, expect=1)
        check("from the beginning" in done.stderr, f"the spoiled part was taken: {done.stderr}")
        service.call("verify", name)
        check(not part.exists() and not part_of(folder / "out.jsonl.errors.jsonl", name).exists(), "a part is left behind")
    check(fleet.both(out) == fleet.both(folder / "plain.jsonl"), "the fetched files differ from those of run")
    return f"the job was {notes[0]} when the first lines came"


def several_at_once(folder):
    """Two running jobs, the first fetched twice, begun before any worker is there; a fetch of a closed job goes on from a part of it."""
    jobs = [job_file(folder, 90), job_file(folder, 60, "other.jsonl")]
    for i, job in enumerate(jobs):
        fleet.run(job, folder / f"plain{i}.jsonl", "--seed", "9", expect=1)
    with Service(folder / "spool", n_workers=0) as service:
        names = [service.call("submit", job, "--seed", "9").stdout.strip() for job in jobs]
        places = [(0, folder / "a.jsonl"), (0, folder / "b.jsonl"), (1, folder / "c.jsonl")]
        fetches = [start_fetch(service, names[i], out) for i, out in places]
        time.sleep(0.5)
        check(all(fetch.poll() is None for fetch in fetches), "a fetch ended before the job did")
        for _ in range(2):
            service.start_worker()
        for (i, out), fetch in zip(places, fetches):
            words = fetch.communicate(timeout=120)[1]
            check(fetch.returncode == 1, f"exit {fetch.returncode}: {words}")
            check(fleet.both(out) == fleet.both(folder / f"plain{i}.jsonl"), f"{out.name} differs from run's")
        whole = (folder / "a.jsonl").read_bytes()
        part_of(folder / "d.jsonl", names[0]).write_bytes(whole[:len(whole) // 2])
        service.call("fetch", names[0], "--out", folder / "d.jsonl", expect=1)
        check(fleet.both(folder / "d.jsonl") == fleet.both(folder / "a.jsonl"), "a continued fetch of a closed job differs")
        part_of(folder / "e.jsonl", names[0]).write_bytes(whole + b"more")
        check("from the beginning" in service.call("fetch", names[0], "--out", folder / "e.jsonl", expect=1).stderr, "a part longer than the file")
        check(fleet.both(folder / "e.jsonl") == fleet.both(folder / "a.jsonl"), "a fetch begun again differs")
        check("exists" in service.call("fetch", names[0], "--out", folder / "a.jsonl", expect=2).stderr, "OUT is overwritten")
        service.call("fetch", names[0], "--out", folder / "a.jsonl", "--force", expect=1)
    done = fleet.call([fleet.TOKENFLEET, "fetch", names[1], "--spool", folder / "spool", "--out", folder / "f.jsonl"], expect=1)
    check(fleet.both(folder / "f.jsonl") == fleet.both(folder / "c.jsonl"), f"fetch from a spool that nobody holds: {done.stderr}")


def unfinished_spool(folder):
    job = job_file(folder, 5)
    with Service(folder / "spool", n_workers=0) as service:
        name = service.call("submit", job).stdout.strip()
    done = fleet.call([fleet.TOKENFLEET, "fetch", name, "--spool", folder / "spool", "--out", folder / "out.jsonl"], expect=4)
    check("not finished" in done.stderr and list(folder.glob("out.jsonl*")) == [], f"{done.stderr}")


def edited_outputs(folder):
    """What is fetched from a spool of `run` that nobody holds is what the ledger says, whatever became of OUT and ERR."""
    job, out = job_file(folder, 20), folder / "out.jsonl"
    fleet.run(job, out, "--seed", "9", expect=1)
    whole, errors = fleet.both(out), folder / "out.jsonl.errors.jsonl"
    for i, spoil in enumerate([lambda: out.write_bytes(out.read_bytes().replace(b"length", b"lengtH")), lambda: errors.write_bytes(b""), out.unlink, errors.unlink]):
        spoil()
        got = folder / f"got{i}.jsonl"
        done = fleet.call([fleet.TOKENFLEET, "fetch", "--spool", f"{out}.spool", "--out", got, "--json"], expect=1)
        check(fleet.both(got) == whole, f"edit {i}: what was fetched is not what the ledger says")
        check(json.loads(done.stdout)["failed"] == 2, f"edit {i}: {done.stdout}")


def places_refused(folder):
    """Where nothing can be written is said at once, as `run` says it."""
    job = job_file(folder, 5)
    fleet.run(job, folder / "out.jsonl", "--seed", "9")
    fetch = [fleet.TOKENFLEET, "fetch", "--spool", folder / "out.jsonl.spool", "--out"]
    check("does not exist; make it first" in fleet.call([*fetch, folder / "nofolder" / "x"], expect=3).stderr, "a folder that is not there")
    check("choose a shorter one" in fleet.call([*fetch, folder / ("x" * 250)], expect=2).stderr, "a name that is too long")
    check("is a folder" in fleet.call([*fetch, f"{folder}/"], expect=2).stderr, "a folder")
    check("does not exist" in fleet.call([*fetch, folder / "x", "--errors", folder / "nofolder" / "y"], expect=3).stderr, "no folder for the errors")
    check(list(folder.glob("x*")) == [], "something was left")


if __name__ == "__main__":
    fleet.main([broken_off, several_at_once, unfinished_spool, edited_outputs, places_refused])
