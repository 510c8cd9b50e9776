#!/usr/bin/env python3
"""Writes tokenizer_vectors.json: what the reference library (`tokenizers`, as transformers uses it) makes of texts and of ids.

The tokenizer is the demo model's, as it is and with parts of its tokenizer.json replaced (`patch`), so that the parts other models have are covered too.

    python3 make_tokenizer_vectors.py [OUT]           (tokenizers 0.23.3, transformers 5.17.0)

{"variants": [{"name", "patch", "add_special", "texts": [text], "ids": [[id]]}], "decode": [{"ids": [id], "text": text}]}
"""
import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "ops/demo_model/tokenizer.json"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CASES = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'ll)?|\p{Han}+|\w+|\s"


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def added(content, **flags):
    return {"id": 9999, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags}


def variants(base):
    yield "demo", {}, 2000, False
    yield "gpt2", {"pre_tokenizer": byte_level(True, True)}, 250, False
    yield "nfc", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}, 400, False
    yield "llama3", {"pre_tokenizer": sequence(split(LLAMA3), byte_level())}, 250, False
    yield "classes", {"pre_tokenizer": sequence(split(CASES), byte_level())}, 250, False
    yield "digits", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level(False, True))}, 150, False
    yield "ranges", {"pre_tokenizer": sequence(split("[一-龥぀-ゟ゠-ヿ]+"), split(r"\p{N}{1,3}"), split(r"(?<=\p{Ll})(?=\p{Lu})|[^\p{P}\p{S}]++"), byte_level())}, 200, False
    for behavior in ("Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        yield behavior, {"pre_tokenizer": sequence(split(r"\s+|\d|x", behavior), byte_level())}, 60, False
        yield behavior + "-inverted", {"pre_tokenizer": sequence(split("a", behavior, True, "String"), byte_level(True))}, 60, False
    yield "ignore_merges", {"model": {"ignore_merges": True}}, 100, False
    yield "template", {"post_processor": {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]},
                            "<|im_end|>": {"id": "<|im_end|>", "ids": [2, 3], "tokens": ["<|im_end|>", "!"]}}}]}}, 40, True
    yield "added", {"normalizer": {"type": "NFC"}, "added_tokens": base["added_tokens"] + [
        added("<a>", lstrip=True), added("<b>", rstrip=True), added("<c>", lstrip=True, rstrip=True), added("ab", single_word=True), added("  "), added("<a><b>"),
        added("é", normalized=True), added("e\u0301x"), added("the"), added("Ġq"), added("q q", special=True)]}, 400, False


def text_of(rng, code, names):
    pools = [(32, 127), (0, 128), (0xA0, 0x250), (0x300, 0x370), (0x590, 0x700), (0x900, 0xA00), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0x1100, 0x1200), (0x1F300, 0x1F700)]
    words = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\x85", "'s", "'\u017f", "'LL", "e\u0301", "\u0323", "1", "٣", "²", "Ⅷ", "\u200d", "\ufe0f", "x", "The", "a"]

    def character(pool=None):
        low, high = pool or rng.choice(pools)
        return chr(rng.randrange(low, high))

    kind = rng.randrange(7)
    if kind == 0:
        pool = rng.choice(pools)
        return "".join(character(pool) for _ in range(rng.randrange(1, 25)))
    if kind == 1:
        return "".join(rng.choice([character(), rng.choice(words)]) for _ in range(rng.randrange(1, 25)))
    if kind == 2:
        return "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randrange(1, 12))) if not 0xD800 <= c < 0xE000)
    if kind == 3:
        at = rng.randrange(len(code))
        return code[at:at + rng.randrange(1, 120)]
    if kind == 4:
        return "".join(rng.choice([rng.choice(names), rng.choice(words), character()]) for _ in range(rng.randrange(1, 12)))
    if kind == 5:
        return rng.choice([character(), rng.choice(words)]) * rng.randrange(1, 40)
    return "".join(rng.choice(words) for _ in range(rng.randrange(0, 20)))


def main():
    rng = random.Random(20486)
    base = json.loads(DEMO.read_text())
    code = (ROOT / "ops/demo_model/tasks.py").read_text()
    out = {"variants": [], "decode": []}
    for name, patch, count, add_special in variants(base):
        changed = {**base, **{k: {**base["model"], **v} if k == "model" else v for k, v in patch.items()}}
        tokenizer = Tokenizer.from_str(json.dumps(changed))
        names = [t["content"] for t in changed["added_tokens"]]
        texts = [text_of(rng, code, names) for _ in range(count)]
        out["variants"].append({"name": name, "patch": patch, "add_special": add_special, "texts": texts,
                                "ids": [tokenizer.encode(t, add_special_tokens=add_special).ids for t in texts]})
    with tempfile.TemporaryDirectory() as folder:        # decoding, with added tokens that are and are not special, and the ids of half characters
        path = Path(folder) / "tokenizer.json"
        changed = {**base, "added_tokens": base["added_tokens"] + [added("<a b>"), added("Ġq"), added("é", special=True)]}
        path.write_text(json.dumps(changed))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        out["decode_patch"] = {"added_tokens": changed["added_tokens"]}
        for _ in range(400):
            ids = [rng.choice([rng.randrange(1024), rng.randrange(1024), rng.randrange(4), rng.randrange(1024, 1027), rng.randrange(90, 300)]) for _ in range(rng.randrange(0, 12))]
            out["decode"].append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)})
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("tokenizer_vectors.json")
    path.write_text(json.dumps(out, separators=(",", ":")))
    print(f"{path}: {path.stat().st_size} bytes")


main()
