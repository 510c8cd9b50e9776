#!/usr/bin/env python3
"""`tokenfleet bench-fleet`: a short run of stub workers against a real coordinator gives a whole report and a sound job, and leaves nothing behind."""
import json
import os
import resource
import signal
import subprocess
import tempfile
import time

from fleet import TOKENFLEET, call, check, children, main

ROWS, TOKENS = 5000, 20
SHAPE = {
    "fleet": {"workers": int, "processes": int, "rate": int, "tokens": int, "transport": str, "endpoint": str, "open_files_allowed": int},
    "job": {"rows": int, "results": int, "failed_rows": int, "bytes": int, "ingest_s": float},
    "run": {"seconds": float, "rows_per_s": float, "results_per_s": float, "tokens_per_s": float, "waiting_share": float, "tail_s": float, "outputs_s": float, "verify_s": float,
            "latency_p50_ms": float, "latency_p99_ms": float},
    "coordinator": {"cpu_s": float, "ingest_cpu_s": float, "run_cpu_s": float, "outputs_cpu_s": float, "verify_cpu_s": float, "run_cores": float, "cpu_us_a_result": float, "rss_high_bytes": int,
                    "rss_high_bytes_ingest": int, "rss_high_bytes_run": int, "rss_high_bytes_outputs": int, "rss_bytes": int, "ledger_bytes": int},
    "stubs": {"cpu_s": float, "cpu_us_a_result": float, "sent_bytes": int, "received_bytes": int},
    "fates": {"committed": int, "duplicate": int, "stale": int, "refused": int},
    "leases": {"granted": int, "results_each": float, "hellos": int},
    "queues": {"outbox_results": int, "outbox_bytes": int, "held_results": int},
}


def bench(*more):
    """Its report; what it makes lies in a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        done = call([TOKENFLEET, "bench-fleet", "--json", "--tokens", TOKENS, *more], env={"TMPDIR": folder})
        check(not os.listdir(folder), f"files are left: {os.listdir(folder)}")
        return json.loads(done.stdout)


def a_short_run_gives_a_whole_report_and_a_sound_job(folder):
    report = bench("--workers", 20, "--rows", ROWS, "--rate", 0)
    for part, fields in SHAPE.items():
        check(set(report[part]) == set(fields), f"{part} has {sorted(report[part])}")
        for key, kind in fields.items():
            check(isinstance(report[part][key], (int, float) if kind is float else kind) and (kind is str or report[part][key] >= 0), f"{part}.{key} is {report[part][key]!r}")
    check(report["verify"] == "sound", "the job is not sound")
    check(report["job"]["rows"] == report["job"]["results"] == ROWS and report["job"]["failed_rows"] == 0, f"the job is {report['job']}")
    check(report["fates"] == {"committed": ROWS, "duplicate": 0, "stale": 0, "refused": 0}, f"fates are {report['fates']}")
    check(0 <= report["run"]["waiting_share"] <= 1 and report["run"]["latency_p50_ms"] <= report["run"]["latency_p99_ms"], f"the run is {report['run']}")
    check(report["coordinator"]["ledger_bytes"] > ROWS * 60, "the ledger is smaller than its results")
    return f"{report['run']['rows_per_s']:.0f} rows/s"


def paced_workers_of_two_processes_over_ipc_with_samples(folder):
    report = bench("--workers", 10, "--processes", 2, "--rows", 200, "--samples", 3, "--rate", 100, "--transport", "ipc")
    check(report["fates"]["committed"] == 600 and report["verify"] == "sound", f"{report['fates']}, {report['verify']}")
    check(report["run"]["seconds"] > 0.4, "600 results of 10 workers at 100 a second came too soon")


def a_job_of_the_users_and_a_spool_that_is_kept(folder):
    job, spool = folder / "job.jsonl", folder / "spool"
    job.write_text('{"prompt": "words"}\n{"prompt": [1, 2], "n": 2}\nno json\n')
    done = call([TOKENFLEET, "bench-fleet", job, "--json", "--workers", 2, "--rate", 0, "--spool", spool], expect=1)
    report = json.loads(done.stdout)
    check(report["job"]["rows"] == 3 and report["job"]["failed_rows"] == 1 and report["fates"]["committed"] == 3, f"the job is {report['job']}")
    kept = json.loads(call([TOKENFLEET, "verify", "--spool", spool, "--json"]).stdout)
    check(kept["state"] == "sound", "the spool that was kept is not sound")


def a_coordinator_that_runs_already(folder):
    coordinator = subprocess.Popen([TOKENFLEET, "coordinator", "--spool", folder / "spool", "--bind", "tcp://127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        endpoint = coordinator.stderr.readline().split()[-1]
        report = bench("--to", endpoint, "--workers", 3, "--rows", 300, "--rate", 0)
        check(report["coordinator"] is None and report["fates"]["committed"] == 300 and report["verify"] == "sound", f"{report['fates']}")
    finally:
        coordinator.send_signal(signal.SIGTERM)
        check(coordinator.wait(20) == 0, "the coordinator did not end well")


def an_interrupt_leaves_nothing(folder):
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        process = subprocess.Popen([TOKENFLEET, "bench-fleet", "--workers", "4", "--rows", "100000", "--rate", "1"], env={**os.environ, "TMPDIR": made},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 20
        while len(children(process.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        below = children(process.pid)
        process.send_signal(signal.SIGINT)
        check(process.wait(30) == 4, f"it ended with {process.returncode}: {process.stderr.read()}")
        check(not os.listdir(made), "files are left")
    check(not [pid for pid in below if os.path.exists(f"/proc/{pid}")], "processes are left")


def what_cannot_be_is_refused(folder):
    for more, word in ((["--processes", "4", "--workers", "2"], "--processes"), (["--to", "tcp://127.0.0.1:1", "--spool", "x"], "--spool"), (["--rows", "0"], "--rows"),
                       (["--workers", "1000"], "open files")):
        done = call([TOKENFLEET, "bench-fleet", *more], expect=2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)))
        check(word in done.stderr and done.stderr.count("\n") == 1, f"{more}: {done.stderr}")


main([a_short_run_gives_a_whole_report_and_a_sound_job, paced_workers_of_two_processes_over_ipc_with_samples, a_job_of_the_users_and_a_spool_that_is_kept,
      a_coordinator_that_runs_already, an_interrupt_leaves_nothing, what_cannot_be_is_refused])
