#!/usr/bin/python3
"""Who is slow slows only himself: with a disk whose syncs take 0.3 s no lease of 2 s is lost, and the job's bytes are the same."""
import json
import os
import sys

import fleet
from crash_point_test import CRASH_AT, Crashing, plain
from fleet import check

SLOW_US = 300000                         # on every fdatasync, with a lease term of 2 s


def a_slow_disk_loses_no_lease(folder):
    job, reference = plain(folder)
    env = {**os.environ, "LD_PRELOAD": str(CRASH_AT), "CRASH_SLOW_US": str(SLOW_US)}
    lost = 0
    with Crashing(folder / "spool", coordinator_env=env) as service:
        name = service.submit(job)
        while (state := json.loads(service.insist("list", "--json"))["jobs"][0])["state"] == "running":
            lost = max(lost, state["events"]["leases_lost"])
        service.finish(name, folder, reference, "a slow disk")
    check(lost == 0 and service.deaths == 0, f"{lost} leases were lost")


if __name__ == "__main__":
    if fleet.SANITIZED:
        print("skipped: a sanitizer's library does not let another one be loaded in front of it")
        sys.exit(77)
    fleet.main([a_slow_disk_loses_no_lease])
