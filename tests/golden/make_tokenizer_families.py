#!/usr/bin/env python3
"""Writes tokenizers/: small tokenizers of every kind that model families have, and what the reference library (`tokenizers`) makes of 5,000 texts and 2,000 id sequences.

    python3 make_tokenizer_families.py                     (tokenizers 0.23.3; in a throwaway environment)
    python3 make_tokenizer_families.py --show NAME INDEX   what the reference makes of one text (negative INDEX: of id sequence -1 - INDEX)
    python3 make_tokenizer_families.py --public FOLDER     writes public/NAME.crc for each FOLDER/NAME/tokenizer.json (ops/get-tokenizers fetches them; they are not ours to ship)

tokenizers/texts.gz     zlib: each text as u32 length and UTF-8
tokenizers/NAME.json    a trained tokenizer: the configuration is that of the family, the vocabulary small
tokenizers/NAME.crc     zlib: u32 a text: CRC-32 of its ids (i32) with special tokens; u32 a text: of decode(ids, skip_special_tokens); u32 an id sequence: of its decoded text
                        (sequences(), the same in tokenizer_family_test.c)
"""
import json
import struct
import sys
import zlib
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tokenizer_configs import FAMILIES, assemble
from tokenizer_texts import texts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT, PUBLIC = HERE / "tokenizers", HERE / "public"
SEQUENCES = 2000

LANGUAGES = """The quick brown fox jumps over the lazy dog. Der Fluss fließt über Steine. L'été dernier, nous avons marché. El niño comió piñas. Żółta łódź płynie.
Быстрая лиса перепрыгнула через собаку. Η γρήγορη αλεπού πηδά. 敏捷的棕色狐狸跳过懒狗。素早い茶色の狐がのろまな犬を飛び越える。 빠른 갈색 여우가 게으른 개를 뛰어넘는다. السلام عليكم ورحمة الله. नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก 😀 👍🏽 👩‍👩‍👧‍👦 1234567890
"""


def sources():
    code = (ROOT / "ops/demo_model/tasks.py").read_text() + (ROOT / "kernels/README.md").read_text()
    return LANGUAGES * 3 + code


def train(family, text):
    """Vocabulary (in order of ids) and merges."""
    tokenizer = Tokenizer(models.BPE())
    if family.get("bytes"):
        part = family["pre_tokenizer"]
        tokenizer.pre_tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": part, "model": {"type": "BPE", "vocab": {}, "merges": []}})).pre_tokenizer
        trainer = trainers.BpeTrainer(vocab_size=1100, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        lines = text.splitlines(keepends=True)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, max_token_length=12)
        if family.get("span") == "text":
            lines = [text[i:i + 40] for i in range(0, len(text), 40)]
        else:
            tokenizer.normalizer = None
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
            lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def build(name, family, text):
    """The tokenizer.json."""
    words, merges = train(family, text)
    fallback = family.get("model", {}).get("byte_fallback")
    front = [] if family.get("bytes") else [t["content"] for t in family["added"] if t["special"]] + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    vocab = {w: i for i, w in enumerate(dict.fromkeys(front + words))}
    if name == "gemma3":
        merges = [["▁", "▁"]] + merges
        vocab.setdefault("▁▁", len(vocab))
    return assemble(family, vocab, merges if name != "gpt2" else [" ".join(m) for m in merges])


def sequences(n_vocab):
    """Sequence i has i % 24 ids; a third of them are below 300, where byte tokens are."""
    x = 88172645463325252

    def draw(n):
        nonlocal x
        x = (x * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        return (x >> 33) % n
    return [[draw(300 if draw(3) == 0 else n_vocab) for _ in range(i % 24)] for i in range(SEQUENCES)]


def crc(data):
    return zlib.crc32(data)


def vectors(tokenizer, all_texts):
    encoded = [tokenizer.encode(t).ids for t in all_texts]
    out = [crc(struct.pack(f"<{len(ids)}i", *ids)) for ids in encoded]
    out += [crc(tokenizer.decode(ids, skip_special_tokens=True).encode()) for ids in encoded]
    out += [crc(tokenizer.decode(ids, skip_special_tokens=True).encode()) for ids in sequences(tokenizer.get_vocab_size())]
    return zlib.compress(struct.pack(f"<{len(out)}I", *out), 9)


def load_texts():
    data, out, at = zlib.decompress((OUT / "texts.gz").read_bytes()), [], 0
    while at < len(data):
        n, = struct.unpack_from("<I", data, at)
        out.append(data[at + 4:at + 4 + n].decode())
        at += 4 + n
    return out


def main():
    if sys.argv[1:2] == ["--show"]:
        path, index = sys.argv[2], int(sys.argv[3])
        tokenizer = Tokenizer.from_file(path if path.endswith(".json") else str(OUT / f"{path}.json"))
        ids = sequences(tokenizer.get_vocab_size())[-1 - index] if index < 0 else tokenizer.encode(load_texts()[index]).ids
        if index >= 0:
            print(ascii(load_texts()[index]))
        print(ids, [tokenizer.id_to_token(i) for i in ids], ascii(tokenizer.decode(ids, skip_special_tokens=True)), sep="\n")
        return
    if sys.argv[1:2] == ["--public"]:
        PUBLIC.mkdir(exist_ok=True)
        for path in sorted(Path(sys.argv[2]).glob("*/tokenizer.json")):
            (PUBLIC / f"{path.parent.name}.crc").write_bytes(vectors(Tokenizer.from_file(str(path)), load_texts()))
            print(path)
        return
    OUT.mkdir(exist_ok=True)
    text = sources()
    names = sorted({t["content"] for f in FAMILIES.values() for t in f["added"]})
    all_texts = texts(text, names)
    (OUT / "texts.gz").write_bytes(zlib.compress(b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in all_texts), 9))
    for name, family in FAMILIES.items():
        file = json.dumps(build(name, family, text), ensure_ascii=False, separators=(",", ":"))
        (OUT / f"{name}.json").write_text(file)
        (OUT / f"{name}.crc").write_bytes(vectors(Tokenizer.from_str(file), all_texts))
        print(f"{name}: {len(file)} bytes")


main()
