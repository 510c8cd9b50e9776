#!/usr/bin/python3
"""The disk fills up at 50 random points of a job: while it is read, while results are written, while the output files are. When there is space again, the job ends with the same hash as
one that was never disturbed. The seed is printed; DISK_FULL_SEED gives another. Needs the right to mount a tmpfs: root, or user namespaces (skipped otherwise)."""
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import time

import fleet
from fleet import Failure, Service, check

POINTS = int(os.environ.get("DISK_FULL_POINTS", "20" if fleet.SANITIZED else "50"))
WAITING = POINTS // 5                    # of them with a coordinator that waits for space; the others are run again
SEED = int(os.environ.get("DISK_FULL_SEED", time.time_ns() % 1_000_000))
PAGE = 4096
ROWS = 120

# Which file a sentence about a full disk names, and so what the job was at.
PHASES = {"ingest": ("job.jsonl", "rows.idx", ".run", "ids.", "sort"), "ledger": (".seg", "ledger"), "journal": ("journal.db",), "outputs": ("out.jsonl", "errors.jsonl", "summary.json")}


def write_job(folder):
    job = folder / "job.jsonl"
    with open(job, "w", encoding="ascii") as file:
        for i in range(ROWS):
            row = {"custom_id": f"row {i} " + "x" * 200, "prompt": [i % 900 + 3] * 20, "max_tokens": 12, "ignore_eos": True, "logprobs": 5, "metadata": {"pad": "y" * 100}}
            file.write(json.dumps(row) + "\n" if i % 20 else '{"prompt": 7}\n')
    return job


class Small:
    """A tmpfs of 16 MB, most of it taken by a file that can grow and go."""

    def __init__(self, folder):
        self.path = folder / "small"
        self.filler = self.path / "filler"

    def __enter__(self):
        self.path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", str(self.path)], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", str(self.path)], check=True)

    def empty(self):
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def used(self):
        info = os.statvfs(self.path)
        return (info.f_blocks - info.f_bfree) * info.f_frsize

    def leave(self, n_bytes):
        """Fill it up to n_bytes (in whole pages)."""
        info = os.statvfs(self.path)
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(PAGE, info.f_bfree * info.f_frsize - n_bytes // PAGE * PAGE))

    def make_room(self):
        self.filler.unlink()


def phase_of(sentence):
    """The last file that the sentence names decides."""
    found = [(sentence.rfind(word), phase) for phase, words in PHASES.items() for word in words if word in sentence]
    return max(found)[1] if found else "other"


def run_again(small, job, out, free):
    """One run into a full disk, and the same command again. Returns where it was full, or None."""
    small.leave(free)
    command = fleet.run_args(job, out, "--spool", small.path / "spool", "--seed", "3", "--now", "1")
    done = fleet.call(command, expect=None)
    small.make_room()
    phase = None
    if done.returncode != 1:                             # 1: to its end, with the rows that are meant to fail
        check(done.returncode == 4, f"exit {done.returncode} with {free} bytes free: {done.stderr}")
        check("no space left" in done.stderr and "again" in done.stderr, f"with {free} bytes free: {done.stderr}")
        check(not out.exists() or fleet.lines(out) is not None, "a broken OUT")
        phase = phase_of(done.stderr)
        fleet.call(command, expect=1)
    return phase


def wait_for_space(small, job, out, free):
    """A coordinator whose disk is full says so, waits, and goes on by itself."""
    phase = None
    with Service(small.path / "spool", n_workers=1) as service:
        service.call("list")
        small.leave(free)
        done = service.call("submit", job, "--seed", "3", expect=None)
        if done.returncode != 0:
            check("space" in done.stderr or "full" in done.stderr, done.stderr)
            phase = phase_of(done.stderr)
            small.make_room()
            done = service.call("submit", job, "--seed", "3")
        name, deadline = done.stdout.strip(), time.monotonic() + 120
        while phase is None:
            status = json.loads(service.call("status", name, "--json", expect=None).stdout)
            if "space" in str(status) or "is full" in str(status):
                phase = phase_of(str(status.get("why") or status))
                small.make_room()
            elif status["state"] != "running":
                break
            check(time.monotonic() < deadline, f"neither full nor done with {free} bytes free: {status}")
            time.sleep(0.05)
        if small.filler.exists():
            small.make_room()
        service.call("watch", name, expect=None)
        service.call("fetch", name, "--out", out, expect=1)
    return phase


def fifty_points(folder):
    rng, job, plain = random.Random(SEED), write_job(folder), folder / "plain.jsonl"
    hits = collections.Counter()
    with Small(folder) as small:
        fleet.run(job, plain, "--spool", small.path / "spool", "--seed", "3", "--now", "1", expect=1)
        whole = small.used()                             # of a spool with all results
        outputs = sum(file.stat().st_size + PAGE for file in (plain, folder / "plain.jsonl.errors.jsonl"))
        small.empty()
        with Service(small.path / "spool", n_workers=1) as service:
            service.call("list")
            begun = small.used()                         # of an empty one
            name = service.call("submit", job, "--seed", "3").stdout.strip()
            service.call("watch", name, expect=None)
            service.call("fetch", name, "--out", folder / "fetched.jsonl", expect=1)
        fetched = fleet.both(folder / "fetched.jsonl")
        small.empty()
        for i in range(POINTS):
            waits, with_outputs = i < WAITING, i % 2 == 0
            top = whole + outputs if with_outputs or waits else whole
            low = (0.5 * whole if i % 3 == 0 else whole) if with_outputs else 0 if i % 4 == 1 else 0.3 * whole
            free = int(rng.uniform(low, top)) - (begun if waits else 0)
            try:
                if waits:
                    out = folder / "waited.jsonl"
                    phase = wait_for_space(small, job, out, max(free, 0))
                    check(fleet.both(out) == fetched, "another hash")
                else:
                    out = (small.path if with_outputs else folder) / "out.jsonl"
                    phase = run_again(small, job, out, free)
                    check(fleet.both(out) == fleet.both(plain), "another hash")
            except Failure as problem:
                raise Failure(f"point {i} of seed {SEED} ({'waiting' if waits else 'run again'}, {free} bytes free): {problem}") from None
            hits[("waiting " if waits else "") + str(phase)] += 1
            for path in (out, out.with_name(out.name + ".errors.jsonl")):
                path.unlink()
            small.empty()
    words = ", ".join(f"{n} {phase}" for phase, n in sorted(hits.items()))
    full = POINTS - sum(n for phase, n in hits.items() if phase.endswith("None"))
    check(full >= POINTS * 0.6, f"only {full} of {POINTS} points met a full disk: {words}")
    for phase in ("ingest", "ledger", "outputs"):
        check(sum(n for key, n in hits.items() if key.endswith(phase)) >= POINTS // 20, f"phase {phase} was hardly met: {words}")
    return f"seed {SEED}, a spool of {whole // 1024} KB: {words}"


def can_mount():
    """Root can; others in a user namespace of their own, in which the test starts itself again."""
    if os.geteuid() == 0:
        with fleet.Scratch() as folder:
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True)
            if done.returncode == 0:
                subprocess.run(["umount", str(folder)], check=True)
            return done.returncode == 0, done.stderr.strip()
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0:
        os.execvp("unshare", ["unshare", "-Urm", sys.executable, __file__, *sys.argv[1:]])
    return False, "neither root nor user namespaces"


if __name__ == "__main__":
    possible, why = can_mount()
    if not possible:
        print(f"skipped: a tmpfs cannot be mounted here: {why}")
        sys.exit(77)
    fleet.main([fifty_points])
