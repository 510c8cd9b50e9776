#!/usr/bin/python3
"""Rows that end every engine that runs them, on real processes: exactly they fail, with their code, their neighbours do not notice, and no row is begun more often than halving takes. The engine that
ends so is poison_worker.c, the worker with a few calls wrapped."""
import collections
import json
import os
import pathlib
import resource
import subprocess
import sys

import fleet
from fleet import DEMO, Service, check

POISON_WORKER = fleet.BIN.parent / "tests" / "poison_worker"
MARKER = [901, 902, 903, 904]
ABORT, SEGFAULT, LOOP, MEMORY, ILLEGAL, GPU = 1, 2, 3, 4, 5, 6
KINDS = {ABORT: "SIGABRT", SEGFAULT: "SIGSEGV", LOOP: "no token for", MEMORY: "ulimit", ILLEGAL: "SIGILL", GPU: "failed at attention"}
ROWS = 3000
HALVINGS = 8                             # a worker holds less than 512 of these rows, so that suspects run in groups of 256, 128, ... 2
LIMIT = 1 << 30                          # of an engine's memory; the demo model takes a few MB of it


def write_job(folder, n_rows, poison):
    """Rows of prompts that differ in their first ids; `poison` says which rows end an engine, and how."""
    job = folder / "job.jsonl"
    with open(job, "w", encoding="ascii") as file:
        for i in range(n_rows):
            prompt = MARKER + [poison[i]] if i in poison else [10 + i // 500, 20 + i % 500, 7]
            file.write(json.dumps({"custom_id": f"row-{i}", "prompt": prompt, "max_tokens": 3, "ignore_eos": True}) + "\n")
    return job


class Poisoned(Service):
    """Its workers are poison workers; `before` runs in each before it starts."""

    def __init__(self, folder, before, n_workers=2):
        super().__init__(folder / "spool", n_workers)
        self.folder, self.before = folder, before

    def start_worker(self, *more):
        worker = subprocess.Popen([str(POISON_WORKER), "--connect", self.endpoint, "--model", str(DEMO), "--threads", "1", "--progress-limit", "2", "--batch", "4", "--max-context", "256"], preexec_fn=self.before,
                                  env={**os.environ, "POISON_LOG": str(self.folder / "prompts")}, stderr=subprocess.DEVNULL)
        self.processes.append(worker)
        return worker


def run_poisoned(folder, job, n_rows, poison, before, words):
    clean = folder / "clean.jsonl"
    fleet.run(job, clean, "--seed", "5")
    with Poisoned(folder, before) as service:
        name = service.call("submit", job, "--seed", "5").stdout.strip()
        service.call("watch", name, expect=1, timeout=300)
        status = json.loads(service.call("status", name, "--json").stdout)
        service.call("fetch", name, "--out", folder / "out.jsonl", expect=1)
        service.call("verify", name)
    failed = {line["custom_id"]: line["error"]["code"] for line in fleet.lines(folder / "out.jsonl.errors.jsonl")}
    check(failed == {f"row-{i}": "engine_crash_quarantined" for i in poison}, f"failed: {failed}")
    expected = [line for line in fleet.lines(clean) if line["custom_id"] not in failed]
    check(fleet.lines(folder / "out.jsonl") == expected and len(expected) == n_rows - len(poison), "a neighbour's bytes changed")
    begun = collections.Counter(open(folder / "prompts", encoding="ascii").read().splitlines())
    alone = [begun.pop(" ".join(map(str, MARKER + [kind]))) for kind in poison.values()]
    often = {prompt: n for prompt, n in begun.items() if n > HALVINGS + 3}
    check(not often, f"begun too often (once among others, perhaps a copy of that, in the groups that ended, and in the one that was finished): {often}")
    check(max(alone) <= HALVINGS + 4, f"poison rows began {alone} times: once among others, perhaps a copy of that, in groups, twice alone")
    for kind in poison.values():
        check(words[kind] in str(status["engine_ends"]), f"status does not tell the last words {words[kind]!r}: {status['engine_ends']}")
    return f"{sum(n > 1 for n in begun.values())} of {len(begun)} neighbours were begun again, at most {max(begun.values())} times, the poison rows {alone} times"


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def six_among_three_thousand(folder):
    poison = {5: LOOP, 21: MEMORY, 401: ABORT, 1000: SEGFAULT, 1800: ILLEGAL, 2600: GPU}         # the ends that take seconds of CPU time among the few rows that a worker gets at first
    return run_poisoned(folder, write_job(folder, ROWS, poison), ROWS, poison, limit_memory, KINDS)


class Group:
    """A memory cgroup of 200 MB below our own, v1 or v2; None where it cannot be made."""

    def __enter__(self):
        self.path = None
        for line in open("/proc/self/cgroup", encoding="ascii"):
            _, controllers, own = line.strip().split(":", 2)
            root = pathlib.Path("/sys/fs/cgroup/memory" if controllers == "memory" else "/sys/fs/cgroup")
            if controllers not in ("memory", ""):
                continue
            path = pathlib.Path(f"{root}{own}") / f"tokenfleet-test-{os.getpid()}"
            try:
                path.mkdir()
                (path / ("memory.limit_in_bytes" if controllers else "memory.max")).write_text(str(200 << 20))
                self.path = path
                break
            except OSError:
                if path.is_dir():
                    path.rmdir()
        return self

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_):
        if self.path:
            self.path.rmdir()


def the_kernel_ends_it_for_want_of_memory(folder):
    """A SIGKILL counts where the cgroup's counter tells that it was the kernel's."""
    with Group() as group:
        if not group.path:
            return "skipped: no memory cgroup can be made here"
        poison = {20: MEMORY}
        return run_poisoned(folder, write_job(folder, 60, poison), 60, poison, group.enter, {MEMORY: "want of memory"})


if __name__ == "__main__":
    if fleet.SANITIZED:
        print("skipped: sanitizers turn signals into reports and take terabytes of address space")
        sys.exit(77)
    fleet.main([six_among_three_thousand, the_kernel_ends_it_for_want_of_memory])
