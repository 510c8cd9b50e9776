#!/usr/bin/python3
"""Write a model directory again in another form that checkpoints come in; its meaning stays, so the same golden.json holds.

usage: rewrite_model.py SOURCE TARGET FORM
  older    config.json as transformers 4 wrote it (rope_theta, rope_scaling, torch_dtype, rope_local_base_freq, intervals for lists, num_experts for
           num_local_experts and back), experts fused in one tensor, laguna's other tensor names
  shards   two files and model.safetensors.index.json
  nested   the text model inside a vision model: text_config, a prefix before its tensors, vision and mtp tensors beside them, several end ids
  f16 f32  every tensor in that dtype. A bfloat16 from 2^-17 to 65504 is a float16 as well; smaller ones are rounded by 2^-25 at most
Standard library only."""
import json
import pathlib
import re
import shutil
import struct
import sys

PLAIN = {"rope_type", "rope_theta", "partial_rotary_factor"}


# ---- safetensors: name -> (dtype, shape, bytes) ----

def read_tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for name, t in header.items()}


def write_tensors(path, tensors):
    width = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2}
    header, at, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors, key=lambda name: (-width.get(tensors[name][0], 1), name)):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def to_f32(data):
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def to_f16(data):
    n = len(data) // 2
    return struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", to_f32(data)))


# ---- forms ----

def older_rope(config):
    rope = config.pop("rope_parameters")
    if "full_attention" not in rope:
        config["rope_theta"] = rope["rope_theta"]
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if set(rope) - PLAIN:
            config["rope_scaling"] = {"type": rope["rope_type"], **{key: value for key, value in rope.items() if key not in PLAIN}}
    elif config["model_type"] == "gemma3_text":
        full = rope["full_attention"]
        config["rope_theta"], config["rope_local_base_freq"] = full["rope_theta"], rope["sliding_attention"]["rope_theta"]
        if full["rope_type"] != "default":
            config["rope_scaling"] = {key: value for key, value in full.items() if key != "rope_theta"}
    else:                                                # two rotations of which one turns a part of the heads: only the nested form says it
        for one in rope.values():
            one["type"] = one.pop("rope_type")
        config["rope_scaling"] = rope


def older_layers(config):
    types, n = config.get("layer_types"), config["num_hidden_layers"]
    if not types or config["model_type"] == "laguna":
        return
    every = next((i + 1 for i, kind in enumerate(types) if kind == "full_attention"), n + 1)
    first = types[0] if every > 1 else "full_attention"
    assert types == ["full_attention" if (i + 1) % every == 0 else first for i in range(n)], "these layers have no period"
    del config["layer_types"]
    config.pop("_sliding_window_pattern", None)
    if first == "linear_attention":
        config["full_attention_interval"] = every
    if first == "sliding_attention":
        config["sliding_window_pattern"] = every


def fuse_experts(tensors):
    """gate above up of all experts in one tensor, down in another."""
    rows = {}
    for name in list(tensors):
        found = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if found:
            rows.setdefault(found[1], {})[int(found[2]), found[3]] = tensors.pop(name)
    for base, parts in rows.items():
        n = 1 + max(e for e, _ in parts)
        dtype, (ff, hidden), _ = parts[0, "gate"]
        tensors[base + ".gate_up_proj"] = (dtype, [n, 2 * ff, hidden], b"".join(parts[e, part][2] for e in range(n) for part in ("gate", "up")))
        tensors[base + ".down_proj"] = (dtype, [n, hidden, ff], b"".join(parts[e, "down"][2] for e in range(n)))
    return tensors


def older(config, tensors):
    older_rope(config)
    older_layers(config)
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version", None)
    a, b = ("num_experts", "num_local_experts") if "num_experts" in config else ("num_local_experts", "num_experts")
    if a in config:
        config[b] = config.pop(a)
    if config.get("gating") is True:
        config["gating"] = "per-head"
    tensors = fuse_experts(tensors)
    return config, {name.replace(".experts.e_score", ".gate.e_score").replace(".shared_expert.", ".shared_experts.") if config["model_type"] == "laguna" else name: value
                    for name, value in tensors.items()}


def nested(config, tensors):
    kind = config["model_type"].removesuffix("_text")
    is_gemma = kind == "gemma3"
    outer = {"model_type": kind if is_gemma or kind.startswith("qwen3_5") else "llava", "eos_token_id": [1, 2], "tie_word_embeddings": config.pop("tie_word_embeddings"),
             "text_config": config, "vision_config": {"model_type": "a_tower", "hidden_size": 8}, "image_token_id": 3}
    config.pop("eos_token_id")
    config.pop("architectures")
    out = {}
    for name, value in tensors.items():
        if is_gemma:
            out["language_model." + name] = value
        else:
            out["model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name] = value
    out["model.visual.patch_embed.proj.weight"] = ("BF16", [3, 2, 2, 5], b"\0" * 120)
    out["model.visual.pos_embed.weight"] = ("F32", [7], b"\x01" * 28)
    out["mtp.layers.0.self_attn.q_proj.weight"] = ("BF16", [4, 4], b"\xff" * 32)           # NaN, which nobody must look at
    out["mtp.position_ids"] = ("I64", [3], b"\0" * 24)
    return outer, out


def main():
    source, target, form = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    target.mkdir(parents=True)
    for name in ("golden.json", "generation_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    config, tensors = json.loads((source / "config.json").read_text()), read_tensors(source / "model.safetensors")
    if form == "older":
        config, tensors = older(config, tensors)
    elif form == "nested":
        config, tensors = nested(config, tensors)
    elif form in ("f16", "f32"):
        convert, dtype = (to_f16, "F16") if form == "f16" else (to_f32, "F32")
        tensors = {name: (dtype, shape, convert(data)) for name, (_, shape, data) in tensors.items()}
    elif form != "shards":
        sys.exit(f"rewrite_model.py: the form {form} is unknown")
    (target / "config.json").write_text(json.dumps(config, indent=1))
    if form != "shards":
        write_tensors(target / "model.safetensors", tensors)
        return
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = sorted(tensors)
    for i, file in enumerate(files):
        write_tensors(target / file, {name: tensors[name] for name in names[i::2]})
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": {name: files[i % 2] for i, name in enumerate(names)}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
