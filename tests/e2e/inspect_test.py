#!/usr/bin/python3
"""`tokenfleet inspect`: every reference model, the demo, what is no model, what is not supported, and memory figures that are the engine's own."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess

import fleet
from fleet import check

MODELS = fleet.ROOT / "tests" / "golden" / "models"
FAMILIES = {"llama", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "laguna", "gemma3"}


def inspect(path, *more, expect=0):
    return json.loads(fleet.call([fleet.TOKENFLEET, "inspect", path, "--json", *more], expect=expect).stdout)


def header(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + n])
    tensors.pop("__metadata__", None)
    return tensors


def every_reference_model(folder):
    seen = set()
    for model in sorted(MODELS.iterdir()):
        if not (model / "config.json").exists():
            continue
        report, config, tensors = inspect(model), json.loads((model / "config.json").read_text()), header(model / "model.safetensors")
        text = config.get("text_config", config)
        check(report["supported"] and report["problems"] == [], f"{model.name}: {report['problems']}")
        seen.add(report["architecture"])
        check(report["layers"]["count"] == text["num_hidden_layers"] and report["hidden_size"] == text["hidden_size"], f"{model.name}: {report}")
        check(report["vocabulary"] == text["vocab_size"] and report["kv_heads"] == text["num_key_value_heads"], f"{model.name}: {report}")
        layers = report["layers"]
        check(sum(layers.get(k, 0) for k in ("full_attention", "sliding_attention", "linear_attention")) == layers["count"], f"{model.name}: {layers}")
        check(layers.get("dense", 0) + layers.get("mixture", 0) == layers["count"], f"{model.name}: {layers}")
        dtypes = {}
        for tensor in tensors.values():
            entry, values = dtypes.setdefault(tensor["dtype"], {"tensors": 0, "parameters": 0, "bytes": 0}), 1
            for size in tensor["shape"]:
                values *= size
            entry["tensors"] += 1
            entry["parameters"] += values
            entry["bytes"] += tensor["data_offsets"][1] - tensor["data_offsets"][0]
        check(report["weights"]["dtypes"] == dtypes, f"{model.name}: {report['weights']['dtypes']} instead of {dtypes}")
        check(report["memory"]["weights_mapped"] == sum(d["bytes"] for d in dtypes.values()), f"{model.name}: {report['memory']}")
        words = fleet.call([fleet.TOKENFLEET, "inspect", model]).stdout
        check(words.startswith(f"{model}: {report['architecture']}, supported\n") and report["fingerprint"] in words, words)
    check(seen == FAMILIES, f"families: {seen}")


def demo_is_whole(folder):
    report = inspect("demo")
    check(report["tokenizer"]["vocabulary"] == report["vocabulary"] == 1024 and report["tokenizer"]["pre_tokenizer"] == "Split, ByteLevel", f"{report['tokenizer']}")
    check(report["tokenizer"]["named_tokens"]["eos_token"] == "<|endoftext|>" and report["chat_templates"] == ["default"], f"{report}")
    check(report["generation"]["temperature"] == 0.7 and report["generation"]["end_ids"] == [0, 2] and report["notes"] == [], f"{report}")
    job = folder / "one.jsonl"
    job.write_text('{"prompt": "def", "max_tokens": 2}\n')
    fleet.run(job, folder / "one.out.jsonl", model="demo")
    pinned = [line["response"]["body"]["tokenfleet"] for line in fleet.lines(folder / "one.out.jsonl")][0]
    check(report["fingerprint"] in json.dumps(pinned), f"a job is pinned to {pinned}, inspect says {report['fingerprint']}")


def log_of_engine(model, *flags):
    """What the engine logs when it opens the model: the words of its memory plan."""
    ours, its = socket.socketpair()
    worker = subprocess.Popen([fleet.WORKER, "--serve", str(its.fileno()), "--model", str(model), "--threads", "1", *flags], pass_fds=[its.fileno()],
                              stderr=subprocess.PIPE, text=True, env={**os.environ, "TOKENFLEET_LOG": "info"})
    its.close()
    ours.recv(1)
    ours.close()
    return worker.communicate(timeout=60)[1]


def memory_is_what_the_engine_plans(folder):
    for name, n, length in (("small_qwen3_5", 3, 200), ("odd_f8", 64, 512), ("small_laguna", 7, 1000), ("odd_gemma3", 1, 64), ("odd_f8_moe", 16, 100), ("demo", 5, 8192)):
        model = "demo" if name == "demo" else MODELS / name
        memory = inspect(model, "--sequences", str(n), "--context", str(length))["memory"]
        length = memory["tokens_each"]
        log = log_of_engine(model, "--batch", str(n), "--max-context", str(length), "--kv-tokens", str(n * ((length + 63) // 64 * 64)))
        found = re.search(r"weights ([\d.]+) MB mapped, ([\d.]+) MB made anew and [\d.]+ MB random, tables ([\d.]+) MB, activations ([\d.]+) MB \(\d+ rows\), logits ([\d.]+) MB"
                          r".*KV ([\d.]+) MB \((\d+) tokens\), states ([\d.]+) MB \((\d+) slots\)", log, re.S)
        check(found, f"{name}: no memory plan in {log}")
        keys = ("weights_mapped", "weights_expanded", "tables", "activations", "logits", "kv", None, "states")
        for key, said in zip(keys, found.groups()):
            check(key is None or f"{memory[key] / 1e6:.1f}" == said, f"{name}: {key} is {memory.get(key)}, the engine logs {said} MB")
        check(int(found.group(9)) == n and memory["kv"] == n * memory["kv_each"] and memory["states"] == n * memory["state_each"], f"{name}: {memory}")
        parts = ("weights_mapped", "weights_expanded", "tables", "activations", "logits", "kv", "states")
        check(memory["total"] == sum(memory[p] for p in parts), f"{name}: {memory}")


def what_is_no_model_is_usage(folder):
    for args, part in (([folder / "nowhere"], "there is no"), ([MODELS / "small_llama" / "config.json"], "is a file; name the directory"), ([folder], "neither a config.json nor weights"),
                       (["demo", "--sequences", "0"], "--sequences"), (["demo", "--context", "x"], "--context"), ([], "PATH"), (["demo", "demo"], "demo")):
        done = fleet.call([fleet.TOKENFLEET, "inspect", *args], expect=2)
        check(part in done.stderr and done.stderr.count("\n") == 1 and done.stdout == "", f"{args}: {done.stderr}")


def copy_of(folder, name, **changes):
    """The reference model with fields of its config changed."""
    made = folder / "changed"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(MODELS / name, made)
    config = json.loads((made / "config.json").read_text())
    config.update(changes)
    (made / "config.json").write_text(json.dumps(config))
    return made


def what_is_not_supported_is_named(folder):
    cases = ({"model_type": "mamba"}, 'the architecture "mamba" is unknown'), ({"hidden_act": "relu"}, 'hidden_act "relu" is not supported'), \
        ({"rope_scaling": {"rope_type": "longrope"}}, 'rope_type "longrope" is not supported'), ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.quant_method"), \
        ({"num_hidden_layers": 10 ** 9}, "num_hidden_layers must be a whole number from 1 to 1024"), ({"hidden_size": 2 ** 31}, "hidden_size must be a whole number")
    for change, part in cases:
        made = copy_of(folder, "small_llama", **change)
        report = inspect(made, expect=3)
        check(not report["supported"] and len(report["problems"]) == 1 and part in report["problems"][0], f"{change}: {report['problems']}")
        check("BF16" in report["weights"]["dtypes"] and len(report["fingerprint"]) == 32 and report["config"]["vocab_size"] == 256, f"{change}: {report}")
        words = fleet.call([fleet.TOKENFLEET, "inspect", made], expect=3).stdout
        check(f"not supported: {report['problems'][0]}" in words and "parameters" in words, words)
        check(part in fleet.call([fleet.TOKENFLEET, "generate", "--model", made, "x"], expect=3).stderr, "the engine says something else")
    made = copy_of(folder, "small_llama", intermediate_size=127)
    report = inspect(made, expect=3)
    check("has shape [128, 64], config.json asks for [127, 64]" in report["problems"][0] and report["intermediate_size"] == 127 and "memory" not in report, f"{report}")
    (made / "model.safetensors").write_bytes((made / "model.safetensors").read_bytes()[:-10])
    check("truncated" in inspect(made, expect=3)["problems"][0], "a cut file")
    (made / "model.safetensors").unlink()
    report = inspect(made, expect=3)
    check("neither model.safetensors nor" in report["problems"][0] and report["architecture"] == "llama" and "weights" not in report, f"{report}")
    made = copy_of(folder, "small_llama")
    (made / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}, "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}}')
    (made / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}, {"name": "\\u001b[2J", "template": "z"}]}')
    report = inspect(made, expect=3)
    check("\x1b" not in fleet.call([fleet.TOKENFLEET, "inspect", made], expect=3).stdout, "a template's name drives the terminal")
    check("WordPiece" in report["problems"][0] and report["tokenizer"]["model"] == "WordPiece" and report["chat_templates"] == ["default", "tool_use", "\x1b[2J"], f"{report}")


def context_no_machine_holds_is_refused(folder):
    """A config may ask for a context whose caches are beyond this machine: a sentence, not a crash; with a shorter one the model runs."""
    made = copy_of(folder, "wide_gemma3", max_position_embeddings=1 << 24)
    report = inspect(made, "--sequences", "1", "--context", str(1 << 24))
    check(report["supported"] and report["memory"]["kv_each"] >= 1 << 33, f"{report['memory']}")
    if report["memory"]["total"] > report["memory"]["machine"]:
        check("this machine has" in report["notes"][-1], f"{report['notes']}")
        refused = fleet.call([fleet.TOKENFLEET, "generate", "--model", made, "x"], expect=3).stderr
        check("lower --max-context" in refused and refused.count("\n") == 1, refused)
    check("KV" in log_of_engine(made, "--max-context", "128"), "it does not open with a short context")


if __name__ == "__main__":
    fleet.main([every_reference_model, demo_is_whole, memory_is_what_the_engine_plans, what_is_no_model_is_usage, what_is_not_supported_is_named, context_no_machine_holds_is_refused])
