#!/usr/bin/python3
"""Bad input gets a clear sentence and an exit status; nothing is lost and nothing crashes."""
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time

import fleet
from fleet import DEMO, check

GOOD = {"prompt": "def f(x):\n", "max_tokens": 4}


def refused(folder, job_bytes, *more, expect, words, model=DEMO, job=None):
    """The command must end with `expect`, one sentence holding each of `words`, and no crash."""
    path = job or folder / "job.jsonl"
    if job_bytes is not None:
        path.write_bytes(job_bytes)
    done = fleet.run(path, folder / "out.jsonl", *more, model=model, expect=expect, timeout=60)
    for word in words if isinstance(words, list) else [words]:
        check(word.lower() in done.stderr.lower(), f"'{word}' is not in: {done.stderr}")
    check("Assert" not in done.stderr and "Sanitizer" not in done.stderr, done.stderr)
    shutil.rmtree(folder / "out.jsonl.spool", ignore_errors=True)
    return done


def job_lines(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def usage(folder):
    for args in (["run"], ["run", "x", "--nonsense", "1"], ["nonsense"], [], ["run", "x", "--model", "demo", "--device", "tpu"],
                 ["run", "x", "--model", "demo", "--workers", "many"], ["run", DEMO / "demo_job.jsonl", "--model", "demo", "--set", "temprature=1"],
                 ["generate", "--model", "demo", "--set", "nope=1", "x"], ["generate", "--model", "demo", "--set", "top_k", "x"], ["verify"], ["status", "--to"]):
        done = fleet.call([fleet.TOKENFLEET, *args], expect=2)
        check(done.stderr.strip(), f"{args}: no sentence")
    for command in ("run", "coordinator", "submit", "list", "status", "watch", "fetch", "verify", "cancel", "generate"):
        done = fleet.call([fleet.TOKENFLEET, command, "--help"])
        check("tokenfleet " + command in done.stdout, f"{command} --help shows no example: {done.stdout}")
    check("0." in fleet.call([fleet.TOKENFLEET, "--version"]).stdout, "no version")
    fleet.call([fleet.WORKER, "--connect", "tcp://127.0.0.1:1", "--model", "demo", "--roles", "nonsense"], expect=2)
    for device, status, words in (("cuda:0", 3, "cpu"), ("cuda:99999999", 2, "number"), ("tpu", 2, "cpu or cuda")):
        done = fleet.call([fleet.WORKER, "--connect", "tcp://127.0.0.1:1", "--model", "demo", "--device", device], expect=status)
        check(words in done.stderr, f"--device {device}: {done.stderr}")


def standard_streams(folder):
    """An answer that cannot be written is an error, and a closed stream never becomes a file of the spool."""
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    job.write_bytes(job_lines(GOOD, b"bad"))
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(a) for a in fleet.run_args(job, out, "--json")], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        check(done.returncode == 3 and "standard output" in done.stderr, f"exit {done.returncode}: {done.stderr}")
    closed = folder / "closed.jsonl"
    run = " ".join(str(a) for a in fleet.run_args(job, closed, "--json"))
    fleet.call(["sh", "-c", f"exec {run} <&- >&- 2>&-"], expect=1, timeout=60)
    check(fleet.both(closed) == fleet.both(out), "closed streams change the files")
    fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{closed}.spool"])
    lock = (folder / "closed.jsonl.spool" / "lock").read_text()
    check(lock.strip().isdigit(), f"a sentence is in the lock file: {lock}")


def job_files(folder):
    refused(folder, None, expect=3, words="missing.jsonl", job=folder / "missing.jsonl")
    refused(folder, None, expect=2, words="directory", job=folder)
    refused(folder, b"", expect=2, words="empty")
    refused(folder, b"\n  \n\t\r\n", expect=2, words="empty")
    job = folder / "job.jsonl"
    job.write_bytes(job_lines(GOOD))
    done = fleet.call([fleet.TOKENFLEET, "run", job, "--model", DEMO, "--out", job], expect=2)
    check("job" in done.stderr.lower(), done.stderr)
    foreign = folder / "foreign.jsonl"
    foreign.write_text("precious\n")
    done = fleet.run(job, foreign, expect=2)
    check("--force" in done.stderr and foreign.read_text() == "precious\n", done.stderr)
    fleet.run(job, foreign, "--force")
    check(len(fleet.lines(foreign)) == 1, "OUT was not written with --force")


def one_out_for_two(folder):
    """Two runs with one --out, neither of which finds it at its start: the later one says so and leaves it, also when it is run again."""
    jobs = [folder / "a.jsonl", folder / "b.jsonl"]
    out = folder / "out.jsonl"
    for job, n in zip(jobs, (3, 90)):
        job.write_bytes(b"".join(b'{"prompt": [1, 2, %d], "max_tokens": %d, "ignore_eos": true}\n' % (i, n) for i in range(4)))
    late = subprocess.Popen([str(a) for a in fleet.run_args(jobs[1], out, "--spool", folder / "b.spool")], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "b.spool" / "run.json").exists():
        check(late.poll() is None, "the run ended before it began")
        time.sleep(0.005)
    late.send_signal(signal.SIGSTOP)
    fleet.run(jobs[0], out, "--spool", folder / "a.spool")
    whole = fleet.both(out)
    late.send_signal(signal.SIGCONT)
    words = late.communicate(timeout=60)[1]
    check(late.returncode == 2 and "--force" in words, f"exit {late.returncode}: {words}")
    for _ in range(2):
        check(fleet.both(out) == whole, "the later run has overwritten OUT")
        check("--force" in fleet.run(jobs[1], out, "--spool", folder / "b.spool", expect=2).stderr, "run again")
    fleet.run(jobs[0], out, "--spool", folder / "a.spool")
    check(fleet.both(out) == whole, "its own OUT is not written again")
    fleet.run(jobs[1], out, "--spool", folder / "b.spool", "--force")
    check(fleet.both(out) != whole, "--force did not write OUT")


def out_of_another_run(folder):
    """A run that was killed has named OUT as its own and not written it; what another run wrote there meanwhile is not its own. The other way round, a run killed between writing OUT and
    remembering that finds its own bytes."""
    jobs = [folder / "first.jsonl", folder / "second.jsonl"]
    out, spool = folder / "shared.jsonl", folder / "second.spool"
    for job, n in zip(jobs, (3, 90)):
        job.write_bytes(b"".join(b'{"prompt": [1, 2, %d], "max_tokens": %d, "ignore_eos": true}\n' % (i, n) for i in range(4)))
    killed = subprocess.Popen([str(a) for a in fleet.run_args(jobs[1], out, "--spool", spool)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (spool / "run.json").exists():
        check(killed.poll() is None, "the run ended before it began")
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    check(not out.exists(), "the run was not killed in time")
    fleet.run(jobs[0], out, "--spool", folder / "first.spool")
    whole = fleet.both(out)
    for command in [["run", jobs[1], "--model", DEMO, "--out", out, "--spool", spool], ["cancel", "--spool", spool], ["run", jobs[1], "--model", DEMO, "--out", out, "--spool", spool]]:
        done = subprocess.run([fleet.TOKENFLEET, *map(str, command)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
        check(done.returncode != 0 and str(out) in done.stderr and " exists" in done.stderr, f"{command[0]} ended with {done.returncode}: {done.stderr}")
        check(fleet.both(out) == whole, f"{command[0]} has overwritten another run's OUT")
        if command[0] == "cancel":
            done = subprocess.run([fleet.TOKENFLEET, "verify", "--spool", spool], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
            check(done.returncode == 4 and "has not finished writing" in done.stderr, f"verify of a spool that wrote nothing ended with {done.returncode}: {done.stderr}")
    memory = folder / "first.spool" / "run.json"
    memory.write_text(json.dumps({**json.loads(memory.read_text()), "written": False}))
    fleet.run(jobs[0], out, "--spool", folder / "first.spool")
    check(fleet.both(out) == whole and json.loads(memory.read_text())["written"], "a run does not know its own bytes")
    memory.write_text(json.dumps({key: value for key, value in json.loads(memory.read_text()).items() if key != "written"}))
    out.write_text("edited\n")
    fleet.run(jobs[0], out, "--spool", folder / "first.spool")
    check(fleet.both(out) == whole, "its own OUT is not written again")


def foreign_names(folder):
    """A name that is no text is refused before anything is made, with what to do."""
    job = os.fsencode(folder) + b"/j\xff.jsonl"
    with open(job, "wb") as file:
        file.write(job_lines(GOOD))
    for arguments in ([job], [job, "--out", folder / "out.jsonl"], [b"/dev/null", "--out", os.fsencode(folder) + b"/o\xff"]):
        done = subprocess.run([fleet.TOKENFLEET, "run", *arguments, "--model", str(DEMO)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        check(done.returncode == 2 and b"rename" in done.stderr and b"\xff" not in done.stderr, f"exit {done.returncode}: {done.stderr}")
    done = subprocess.run([fleet.TOKENFLEET, "submit", job, "--to", "tcp://127.0.0.1:9"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
    check(done.returncode == 2 and b"rename" in done.stderr, f"exit {done.returncode}: {done.stderr}")
    check(len(os.listdir(folder)) == 1, f"something was left: {os.listdir(folder)}")


def bad_lines(folder):
    """Every good row completes and every bad one has its code and line."""
    bad = [b"{", b"[1]", b'"x"', b'{"prompt": "\xff"}', b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "max_tokens": -1}', b'{"prompt": "a", "temperature": "hot"}',
           b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}', b'{"custom_id": "", "prompt": "a"}', b"\x00\x01\x02",
           b'{"custom_id": "u", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a"}}', b'{"prompt": [1, 99999]}', b'{"prompt": "a", "stream": true}']
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    mixed = []
    for line in bad:
        mixed += [GOOD, line]
    job.write_bytes(b"\xef\xbb\xbf" + job_lines(*mixed) + job_lines(GOOD).rstrip(b"\n"))
    fleet.run(job, out, expect=1)
    answers, errors = fleet.lines(out), fleet.lines(f"{out}.errors.jsonl")
    check(len(answers) == len(bad) + 1, f"{len(answers)} answers")
    check([e["error"]["line"] for e in errors] == [2 * i + 2 for i in range(len(bad))], f"{[e['error'] for e in errors]}")
    check([e["error"]["code"] for e in errors][:5] == ["invalid_json", "invalid_request", "invalid_request", "invalid_utf8", "invalid_json"]
          or errors[0]["error"]["code"] == "invalid_json", f"{[e['error']['code'] for e in errors]}")
    check(all(e["response"] is None and e["error"]["message"] for e in errors), f"{errors}")


def long_lines(folder):
    """Lines around and above the 8 MB of a frame reach the worker; what cannot be computed is a row's error and never the job's end."""
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    frame = 8 << 20
    rest = len(json.dumps({**GOOD, "metadata": {"x": ""}}))
    job.write_bytes(job_lines(GOOD, *[{**GOOD, "metadata": {"x": "m" * (frame - rest + more)}} for more in (-1, 0, 1)], {**GOOD, "prompt": "x y " * (3 << 20)},
                              {**GOOD, "prompt": [5] * 4_000_000}, b"x" * (65 << 20), GOOD))
    fleet.run(job, out, expect=1)
    check([a["custom_id"] for a in fleet.lines(out)] == ["row-1", "row-2", "row-3", "row-4", "row-8"], "a good row is missing")
    errors = {e["custom_id"]: e["error"]["code"] for e in fleet.lines(f"{out}.errors.jsonl")}
    check(errors == {"row-5": "context_overflow", "row-6": "context_overflow", "row-7": "line_too_long"}, f"{errors}")
    fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    job.write_bytes(job_lines({"prompt": [5] * 9000, "max_tokens": 1}))
    fleet.run(job, folder / "wide.jsonl", "--max-context", "20000", expect=1, timeout=60)         # more than the model's: the row fails, the job ends
    done = subprocess.run([fleet.TOKENFLEET, "generate", "--model", str(DEMO), "-"], input="x y " * (3 << 20), text=True, capture_output=True, timeout=60)
    check(done.returncode in (1, 2) and "context" in done.stderr, f"exit {done.returncode}: {done.stderr}")


def write_model(folder, name, change_config=None, change_tensors=None, cut=None):
    """A copy of the demo model with config.json, the safetensors header or its length changed."""
    model = folder / name
    shutil.copytree(DEMO, model, ignore=shutil.ignore_patterns("*.jsonl", "*.py"))
    if change_config:
        config = json.loads((model / "config.json").read_text())
        change_config(config)
        (model / "config.json").write_text(json.dumps(config))
    file = model / "model.safetensors"
    data = file.read_bytes()
    if change_tensors:
        n = struct.unpack("<Q", data[:8])[0]
        header, body = json.loads(data[8:8 + n]), bytearray(data[8 + n:])
        change_tensors(header, body)
        packed = json.dumps(header).encode()
        packed += b" " * (-len(packed) % 8)
        data = struct.pack("<Q", len(packed)) + packed + bytes(body)
        file.write_bytes(data)
    if cut is not None:
        file.write_bytes(data[:cut])
    return model


def bad_models(folder):
    job = job_lines(GOOD)

    def outside(header, _):
        header["model.norm.weight"]["data_offsets"] = [10 ** 12, 10 ** 12 + 256]

    def overlap(header, _):
        header["model.norm.weight"]["data_offsets"] = header["model.layers.0.input_layernorm.weight"]["data_offsets"]

    def shape(header, _):
        header["model.norm.weight"]["shape"] = [64, 2]

    def missing(header, _):
        header["model.layers.3.self_attn.another.weight"] = header.pop("model.layers.3.self_attn.q_proj.weight")

    def nan(header, body):
        at = header["model.layers.0.mlp.gate.weight"]["data_offsets"][0]
        body[at:at + 2] = b"\xc0\x7f"

    cases = [
        (folder / "nowhere", "nowhere"),
        (write_model(folder, "arch", lambda c: c.update(model_type="mamba", architectures=["MambaForCausalLM"])), ["mamba", "qwen3_5"]),
        (write_model(folder, "sizes", lambda c: c.update(hidden_size=256)), ["model.embed_tokens.weight"]),
        (write_model(folder, "negative", lambda c: c.update(num_hidden_layers=-1)), "num_hidden_layers"),
        (write_model(folder, "outside", change_tensors=outside), "model.norm.weight"),
        (write_model(folder, "overlap", change_tensors=overlap), "overlap"),
        (write_model(folder, "shape", change_tensors=shape), "model.norm.weight"),
        (write_model(folder, "missing", change_tensors=missing), "model.layers.3.self_attn.q_proj.weight"),
        (write_model(folder, "nan", change_tensors=nan), ["model.layers.0.mlp.gate.weight", "nan"]),
        (write_model(folder, "cut", cut=100_000), "model.safetensors"),
        (write_model(folder, "empty", cut=0), "model.safetensors"),
    ]
    tokenizer = write_model(folder, "tokenizer")
    (tokenizer / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": -7}, "merges": []}}')
    cases.append((tokenizer, "tokenizer"))
    config = write_model(folder, "config")
    (config / "config.json").write_text("{")
    cases.append((config, "config.json"))
    for model, words in cases:
        refused(folder, job, expect=3, words=words, model=model)
    return f"{len(cases)} models refused"


def changed_job_or_model(folder):
    """Running again with anything changed that changes bytes stops with a sentence that names it."""
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    job.write_bytes(job_lines(GOOD, GOOD))
    fleet.run(job, out, "--seed", "1")
    first = fleet.both(out)
    fleet.run(job, out, "--seed", "1")
    check(fleet.both(out) == first, "running again changed the hash")
    for settings, words in ((["--seed", "2"], "seed"), (["--seed", "1", "--set", "temperature=0.5"], "set"), (["--seed", "1", "--max-context", "512"], "context")):
        done = fleet.run(job, out, *settings, expect=2)
        check(words in done.stderr and "--restart" in done.stderr, done.stderr)
    other = write_model(folder, "other", change_tensors=lambda h, b: b.__setitem__(slice(0, 2), b"\x00\x00"))
    done = fleet.run(job, out, "--seed", "1", model=other, expect=2)
    check("model" in done.stderr, done.stderr)
    job.write_bytes(job_lines(GOOD, {**GOOD, "max_tokens": 5}))
    done = fleet.run(job, out, "--seed", "1", expect=2)
    check("job" in done.stderr and "--restart" in done.stderr, done.stderr)
    check(fleet.both(out) == first, "a refused run changed OUT")
    fleet.run(job, out, "--seed", "1", "--restart")


def spool_and_port_in_use(folder):
    spool = folder / "spool"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.listen()
        done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", spool, "--bind", f"tcp://127.0.0.1:{port}"], expect=3, timeout=30)
        check("in use" in done.stderr and str(port) in done.stderr, done.stderr)
    first = subprocess.Popen([fleet.TOKENFLEET, "coordinator", "--spool", str(spool), "--bind", f"tcp://127.0.0.1:{port}"])
    try:
        fleet.wait_for((spool / "endpoint").exists, "no coordinator comes up")
        start = time.monotonic()
        done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", spool, "--bind", "tcp://127.0.0.1:0"], expect=3, timeout=30)
        check(str(first.pid) in done.stderr, f"the holder {first.pid} is not named: {done.stderr}")
        check(4 < time.monotonic() - start < 15, "the second coordinator did not wait 5 s")
    finally:
        first.send_signal(signal.SIGTERM)
        check(first.wait(20) in (0, 4), f"the coordinator ended with {first.returncode}")
    done = fleet.call([fleet.TOKENFLEET, "coordinator", "--spool", spool, "--bind", "tcp://0.0.0.0:0"], expect=2)
    check("loopback" in done.stderr, done.stderr)


def disk_full(folder):
    """A small file system fills up: the run ends incomplete with a sentence, and continues to the same hash when there is space."""
    mount = folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], capture_output=True).returncode != 0:
        return "not tried: no right to mount a tmpfs"
    try:
        job, out, plain = folder / "job.jsonl", folder / "out.jsonl", folder / "plain.jsonl"
        job.write_bytes(job_lines(*[{"custom_id": f"r{i}", "prompt": [i + 3] * 20, "max_tokens": 60, "ignore_eos": True, "logprobs": 5} for i in range(150)]))
        fleet.run(job, plain)
        done = fleet.run(job, out, "--spool", mount / "spool", expect=4)
        check("space" in done.stderr and "again" in done.stderr, done.stderr)
        done = fleet.run(job, out, "--spool", mount / "spool", expect=4)
        subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)
        fleet.run(job, out, "--spool", mount / "spool")
        check(fleet.both(out) == fleet.both(plain), "another hash after the disk was full")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def interrupted(folder):
    """Ctrl-C drains: exit 4, and the same command again completes the job."""
    job, out, plain = folder / "job.jsonl", folder / "out.jsonl", folder / "plain.jsonl"
    job.write_bytes(job_lines(*[{"prompt": [i + 3] * 20, "max_tokens": 200, "ignore_eos": True} for i in range(120)]))
    fleet.run(job, plain)
    run = subprocess.Popen(fleet.run_args(job, out, "--batch", "4"), stderr=subprocess.PIPE, text=True)
    fleet.wait_catches(run, signal.SIGINT)
    time.sleep(0.8)
    run.send_signal(signal.SIGINT)
    words = run.communicate(timeout=60)[1]
    if run.returncode != 0:
        check(run.returncode == 4 and "again" in words, f"exit {run.returncode}: {words}")
        check(not out.exists(), "OUT exists although the job is incomplete")
    fleet.run(job, out)
    check(fleet.both(out) == fleet.both(plain), "another hash after an interruption")


if __name__ == "__main__":
    fleet.main([usage, standard_streams, job_files, one_out_for_two, out_of_another_run, foreign_names, bad_lines, long_lines, bad_models, changed_job_or_model, spool_and_port_in_use, disk_full, interrupted])
