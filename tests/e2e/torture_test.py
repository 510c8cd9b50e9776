#!/usr/bin/python3
"""`tokenfleet torture`, shortly: everything is killed, stopped, cut and filled for half a minute and every hash stays the same; where no namespaces are allowed; broken off; killed itself."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import fleet
from fleet import check

MINUTES = "0.5"
SEED = os.environ.get("TORTURE_SEED", str(time.time_ns() % 1_000_000))


def torture(folder, *more, before=(), **options):
    (folder / "tmp").mkdir(exist_ok=True)
    return fleet.call([*before, fleet.TOKENFLEET, "torture", "--json", *more], env={"TMPDIR": str(folder / "tmp")}, timeout=600, **options)


def leaves_nothing(folder):
    check(list((folder / "tmp").iterdir()) == [], f"left over: {list((folder / 'tmp').iterdir())}")


def storm(folder):
    done = torture(folder, "--minutes", MINUTES, "--seed", SEED)
    report = json.loads(done.stdout)
    n, jobs = report["disturbances"], report["jobs"]
    least = {"workers_killed": 20, "engines_killed": 2, "workers_stopped": 2, "workers_drained": 1, "coordinators_killed": 2, "links_cut": 2, "links_reset": 2}
    for name, count in least.items():
        check(n[name] >= count, f"seed {SEED}: {n[name]} {name}, {count} are due: {report}")
    check(n["disks_filled"] == (1 if "tmpfs of" in report["disk"] else 0), f"{report}")
    check(jobs["rounds"] >= 1 and jobs["rows"] == 1500 * jobs["rounds"] and jobs["failed_rows"] > 0, f"{report}")
    check(report["seen_at_least"]["retries"] > 0 and report["seen_at_least"]["crashes"] == 0, f"{report}")
    leaves_nothing(folder)
    return f"seed {SEED}, {jobs['rounds']} rounds in {report['seconds']:.0f} s, {n['workers_killed']} workers and {n['coordinators_killed']} coordinators killed"


def without_namespaces(folder):
    """Links are played by the relay, and the disk is left alone, where the right to make namespaces is missing."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return "skipped: needs root to give up rights"
    done = torture(folder, "--minutes", "0.12", "--seed", SEED, "--workers", "3", before=["setpriv", "--bounding-set", "-sys_admin"])
    report = json.loads(done.stdout)
    check("relay" in report["links"] and "was not filled" in report["disk"], f"{report}")
    check(report["disturbances"]["links_cut"] >= 1 and report["jobs"]["rounds"] >= 1, f"{report}")
    leaves_nothing(folder)


def start(folder):
    (folder / "tmp").mkdir()
    process = subprocess.Popen([fleet.TOKENFLEET, "torture", "--minutes", "5"], env={**os.environ, "TMPDIR": str(folder / "tmp")}, stderr=subprocess.PIPE, text=True)
    fleet.wait_for(lambda: len([pid for pid in fleet.children(process.pid) if b"--serve" in fleet.command_of(pid)]) >= 3, "no fleet came up")
    return process


def ctrl_c_ends_it_and_leaves_nothing(folder):
    process = start(folder)
    below = fleet.children(process.pid)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    check(process.returncode == 4 and "nothing is left" in errors, f"exit {process.returncode}: {errors}")
    fleet.wait_gone(below)
    leaves_nothing(folder)


def killed_itself_it_leaves_nothing(folder):
    process = start(folder)
    below = fleet.children(process.pid)
    process.kill()
    process.communicate()
    fleet.wait_gone(below)
    fleet.wait_for(lambda: not any((folder / "tmp").iterdir()), "the folder of a killed torture stays")


def mistakes(folder):
    for args in (["--minutes", "0"], ["--minutes", "soon"], ["--seed", "-3"], ["--workers", "0"], ["nowhere.jsonl"]):
        done = torture(folder, *args, expect=2)
        check(done.stderr.count("\n") == 1, f"{args}: {done.stderr}")
    leaves_nothing(folder)


if __name__ == "__main__":
    if fleet.SANITIZED:
        print("skipped: sanitized workers take longer to come up than they live here")
        sys.exit(77)
    fleet.main([storm, without_namespaces, ctrl_c_ends_it_and_leaves_nothing, killed_itself_it_leaves_nothing, mistakes])
