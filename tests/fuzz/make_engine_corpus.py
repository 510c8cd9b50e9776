#!/usr/bin/python3
"""Write the seeds of fuzz_safetensors and fuzz_model_config into corpus/: small good files and near misses."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def weights(entries, data, cut=0):
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    whole = struct.pack("<Q", len(header)) + header + data
    return whole[:len(whole) - cut]


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "good": weights({"__metadata__": {"format": "pt"}, "a": entry("BF16", [2, 4], 0, 16), "b": entry("F32", [2], 16, 24), "c": entry("I64", [1], 24, 32)}, bytes(32)),
    "fp8": weights({"a_scale": entry("F32", [2, 2], 0, 16), "b_scale": entry("BF16", [4, 1], 16, 24), "a": entry("F8_E4M3", [4, 6], 24, 48), "b": entry("F8_E4M3", [4, 2], 48, 56)},
                   struct.pack("<4f", 0.5, 1, 2, 3) + b"\x80\x3f" * 4 + bytes(range(32))),
    "empty_tensor": weights({"a": entry("F16", [0, 3], 0, 0), "b": entry("F16", [1], 0, 2)}, bytes(2)),
    "nan": weights({"a": entry("F32", [1], 0, 4)}, b"\0\0\xc0\x7f"),
    "overlap": weights({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, bytes(8)),
    "hole": weights({"a": entry("F32", [1], 4, 8)}, bytes(8)),
    "truncated": weights({"a": entry("F32", [4], 0, 16)}, bytes(16), cut=3),
    "huge_shape": weights({"a": entry("F32", [1 << 40, 1 << 40], 0, 8)}, bytes(8)),
    "huge_header": struct.pack("<Q", (1 << 64) - 1) + b"{}",
}


def main():
    for name, data in SAFETENSORS.items():
        (HERE / "corpus/safetensors" / name).write_bytes(data)
    models = {"demo": ROOT / "ops/demo_model", **{path.name: path for path in (ROOT / "tests/golden/models").iterdir()}}
    for name, folder in models.items():
        generation = folder / "generation_config.json"
        seed = (folder / "config.json").read_bytes() + (b"\0" + generation.read_bytes() if generation.exists() else b"")
        (HERE / "corpus/model_config" / name).write_bytes(seed)
    nested = {"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": json.loads((ROOT / "ops/demo_model/config.json").read_text())}
    (HERE / "corpus/model_config/nested").write_text(json.dumps(nested))


if __name__ == "__main__":
    main()
