#!/usr/bin/python3
"""A job on its way in: renamed duplicates, an interruption or a full disk while it is read, and the same job by every way."""
import gzip
import json
import signal
import subprocess
import time

import fleet
from fleet import check


def row(custom_id, text, **more):
    return {"custom_id": custom_id, "prompt": text, "max_tokens": 12, "temperature": 1.0, **more}


def write_rows(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


def texts(out):
    return {line["custom_id"]: [c["text"] for c in line["response"]["body"]["choices"]] for line in fleet.lines(out)}


def folders(spool):
    return list((spool / "jobs").iterdir()) if (spool / "jobs").exists() else []


def coordinator(folder):
    """A coordinator without workers, and its endpoint."""
    endpoint = f"ipc://{folder}/s"
    process = subprocess.Popen([fleet.TOKENFLEET, "coordinator", "--spool", str(folder / "spool"), "--bind", endpoint], stderr=subprocess.PIPE, text=True)
    fleet.wait_for((folder / "s").exists, "the coordinator does not start")
    return process, endpoint


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def duplicates(folder):
    """Renamed rows are rows as any: their names decide their random numbers, on any number of workers, and verify knows them."""
    job, out, named = folder / "job.jsonl", folder / "out.jsonl", folder / "named.jsonl"
    rows = [row("a", "def f(x):"), row("a", "def f(x):", n=2), row("b", "def f(x):"), row("a", "def f(x):"), row("a#4", "def f(x):"),
            {"prompt": "def f(x):", "max_tokens": 3}, row("row-6", "def f(x):")]
    write_rows(job, rows)
    fleet.run(job, out, "--duplicates", "suffix", expect=1)
    got = texts(out)
    check(list(got) == ["a", "a#2", "b", "a#4", "row-6", "row-6#7"], f"names {list(got)}")
    errors = fleet.lines(f"{out}.errors.jsonl")
    check([(e["custom_id"], e["error"]["code"], e["error"]["line"]) for e in errors] == [("a", "duplicate_custom_id", 4)], f"errors {errors}")
    check("another row's" in errors[0]["error"]["message"], errors[0]["error"]["message"])
    write_rows(named, [dict(r, custom_id=n) for r, n in zip([rows[0], rows[1], rows[2], rows[4], rows[5], rows[6]], got)])
    fleet.run(named, folder / "named_out.jsonl")
    check(texts(folder / "named_out.jsonl") == got, "a renamed row has other words than a row that has this name in the file")
    done = fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    check("sound" in done.stdout + done.stderr, done.stdout)
    fleet.run(job, folder / "four.jsonl", "--duplicates", "suffix", "--workers", "4", expect=1)
    check(fleet.both(out) == fleet.both(folder / "four.jsonl"), "another hash on 4 workers")
    fleet.run(job, folder / "plain.jsonl", expect=1)
    check(list(texts(folder / "plain.jsonl")) == ["a", "b", "a#4", "row-6"], "without the flag, later rows fail")
    done = fleet.run(job, out, expect=2)
    check("--duplicates (was suffix, is error)" in done.stderr, done.stderr)


def ways(folder):
    """A file, gzip and standard input are the same job."""
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    write_rows(job, [row(f"r{i}", "x") for i in range(30)] + ["bad"])
    (folder / "job.jsonl.gz").write_bytes(gzip.compress(job.read_bytes()))
    fleet.run(job, out, expect=1)
    fleet.run(folder / "job.jsonl.gz", folder / "gz.jsonl", expect=1)
    with open(job) as stdin:
        fleet.run("-", folder / "stdin.jsonl", expect=1, stdin=stdin)
    for name in ("gz.jsonl", "stdin.jsonl"):
        check(fleet.both(folder / name) == fleet.both(out), f"{name} differs")


def interrupt(args, word):
    """Start the command on a pipe that stays open, press Ctrl-C while it reads."""
    process = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write((json.dumps(row("a", "x")) + "\n").encode() * 50000)
    process.stdin.flush()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    words = process.stderr.read().decode()
    check(process.wait(timeout=60) == 4 and word in words, f"exit {process.returncode}: {words}")
    process.stdin.close()


def interrupted(folder):
    """Ctrl-C while the job is read: exit 4, nothing but half an ingest, and it starts over."""
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    interrupt([fleet.TOKENFLEET, "run", "-", "--model", str(fleet.DEMO), "--out", out], "again")
    check(not out.exists() and not folders(folder / "out.jsonl.spool"), f"left: {folders(folder / 'out.jsonl.spool')}")
    write_rows(job, [row("a", "x")])
    fleet.run(job, out)
    process, endpoint = coordinator(folder)
    try:
        interrupt([fleet.TOKENFLEET, "submit", "-", "--to", endpoint], "nothing was submitted")
        fleet.wait_for(lambda: not folders(folder / "spool"), f"left: {folders(folder / 'spool')}")
        check(json.loads(fleet.call([fleet.TOKENFLEET, "submit", job, "--to", endpoint, "--json"]).stdout)["rows"] == 1, "submit does not work afterwards")
    finally:
        stop(process)


def disk_full(folder):
    """No room for the job: a sentence, nothing left, and the same command works when there is room."""
    mount = folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount)], capture_output=True).returncode != 0:
        return "not tried: no right to mount a tmpfs"
    try:
        job, out, plain = folder / "job.jsonl", folder / "out.jsonl", folder / "plain.jsonl"
        write_rows(job, ["x" * 2000] * 4000 + [row("a", "x")])
        done = fleet.run(job, out, "--spool", mount / "spool", expect=4)
        check("space" in done.stderr and "again" in done.stderr and not folders(mount / "spool"), f"{done.stderr} {folders(mount / 'spool')}")
        subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)
        fleet.run(job, out, "--spool", mount / "spool", expect=1)
        fleet.run(job, plain, expect=1)
        check(fleet.both(out) == fleet.both(plain), "another hash after the disk was full")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


if __name__ == "__main__":
    fleet.main([duplicates, ways, interrupted, disk_full])
