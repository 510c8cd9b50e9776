#!/usr/bin/python3
"""What `cmake --install` puts down works from there: both programs find each other and the model that ships."""
import os
import subprocess

import fleet
from fleet import BIN, DEMO, check


def installed(folder):
    prefix = folder / "prefix"
    fleet.call(["cmake", "--install", BIN.parent, "--prefix", prefix])
    program = prefix / "bin" / "tokenfleet"
    check(program.exists() and (prefix / "share" / "tokenfleet" / "demo_model" / "config.json").exists(), f"{os.listdir(prefix)}")
    check("0." in fleet.call([program, "--version"]).stdout, "no version")
    fleet.call([program, "run", DEMO / "demo_job.jsonl", "--model", "demo", "--out", folder / "out.jsonl"], env={"PATH": "/usr/bin:/bin"})
    check(len(fleet.lines(folder / "out.jsonl")) == 200, "not 200 rows")


def progress_on_a_terminal(folder):
    """On a terminal one line is rewritten, with rows, tokens/s, failed rows and the time left; elsewhere plain lines come."""
    job = folder / "job.jsonl"
    job.write_text("".join('{"prompt": [%d], "max_tokens": 60, "ignore_eos": true}\n' % (i % 1000) for i in range(600)))
    command = " ".join(map(str, fleet.run_args(job, folder / "out.jsonl", "--batch", "2")))
    done = subprocess.run(["script", "-qec", command, "/dev/null"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120)
    shown = done.stdout.decode()
    check(done.returncode == 0, shown[-500:])
    lines = shown.split("\r")
    check(len(lines) > 3 and all(word in lines[3] for word in ("/600 rows", "tokens/s", "failed", "ETA")), repr(shown[:600]))
    return repr(lines[3])


if __name__ == "__main__":
    fleet.main([installed, progress_on_a_terminal])
