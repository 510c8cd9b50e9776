#!/usr/bin/env python3
"""Writes tokenizers/: small tokenizers of every kind that model families have, and what the reference library (`tokenizers`) makes of 5,000 texts and 2,000 id sequences.

    python3 make_tokenizer_families.py                     (tokenizers 0.23.3; in a throwaway environment)
    python3 make_tokenizer_families.py --show NAME INDEX   what the reference makes of one text (negative INDEX: of id sequence -1 - INDEX)
    python3 make_tokenizer_families.py --check FILE...     vectors of tokenizer.json files (ops/get-tokenizers): FILE's folder name gives tokenizers/NAME.crc

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

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tokenizer_texts import texts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = HERE / "tokenizers"
SEQUENCES = 2000

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LANGUAGES = """The quick brown fox jumps over the lazy dog. Der Fluss fließt über Steine. L'été dernier, nous avons marché. El niño comió piñas. Żółta łódź płynie.
Быстрая лиса перепрыгнула через собаку. Η γρήγορη αλεπού πηδά. 敏捷的棕色狐狸跳过懒狗。素早い茶色の狐がのろまな犬を飛び越える。 빠른 갈색 여우가 게으른 개를 뛰어넘는다. السلام عليكم ورحمة الله. नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก 😀 👍🏽 👩‍👩‍👧‍👦 1234567890
"""


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(*names, after=()):
    tokens = lambda names: [{"SpecialToken": {"id": n, "type_id": 0}} for n in names]
    single = [*tokens(names), {"Sequence": {"id": "A", "type_id": 0}}, *tokens(after)]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}], "names": [*names, *after]}


def added(content, special=False, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special, **flags}


BYTE_FALLBACK = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
SPM = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})
SPM_STRIP = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
CHAT = [added("<|endoftext|>", True), added("<|im_start|>", True), added("<|im_end|>", True), added("<tool_call>", normalized=False), added("</tool_call>", normalized=False)]
LLAMA = [added("<unk>", True), added("<s>", True), added("</s>", True)]

# name: what it is like, parts of tokenizer.json, added tokens, `bytes` (byte-level), how much of the text the merges may span
FAMILIES = {
    "qwen2": dict(bytes=True, normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(QWEN2), byte_level()), decoder=byte_level(True, True), added=CHAT),
    "qwen3_5": dict(bytes=True, normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(QWEN3_5), byte_level()), decoder=byte_level(True, True),
                    added=CHAT + [added("<think>", normalized=False), added("</think>", normalized=False)]),
    "llama3": dict(bytes=True, model={"ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level()), decoder=byte_level(True, True),
                   post_processor=sequence("processors", byte_level(True, True), template("<|begin_of_text|>")), added=[added("<|begin_of_text|>", True), added("<|eot_id|>", True)]),
    "gpt2": dict(bytes=True, pre_tokenizer=byte_level(False, True), decoder=byte_level(True, True), post_processor=byte_level(True, True), added=[added("<|endoftext|>", True, normalized=True)]),
    "smollm2": dict(bytes=True, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(False, True)), decoder=byte_level(True, True), added=CHAT),
    "o200k": dict(bytes=True, pre_tokenizer=sequence("pretokenizers", split(O200K), byte_level()), decoder=byte_level(True, True), added=CHAT),
    "tekken": dict(bytes=True, model={"ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(TEKKEN), byte_level()), decoder=byte_level(True, True), added=LLAMA,
                   post_processor=template("<s>", after=["</s>"])),
    "deepseek": dict(bytes=True, normalizer=sequence("normalizers"), pre_tokenizer=sequence("pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()),
                     decoder=byte_level(True, True), added=[added("<｜begin▁of▁sentence｜>", True, normalized=True), added("<｜User｜>"), added("<think>")]),
    "claude": dict(bytes=True, normalizer={"type": "NFKC"}, pre_tokenizer=byte_level(False, True), decoder=byte_level(True, True), added=[added("<EOT>", True), added("<META>", True)]),
    "gemma3": dict(normalizer=replace(" ", "▁"), pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"), decoder=SPM, model=BYTE_FALLBACK, post_processor=template("<bos>"), span="text",
                   added=[added("<pad>", True), added("<bos>", True), added("<start_of_turn>", True), added("<end_of_turn>", True), added("\n\n"), added("\n\n\n"), added("▁▁"), added("<table>", normalized=False)]),
    "llama2": dict(normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), decoder=SPM_STRIP, model=BYTE_FALLBACK, post_processor=template("<s>"), added=LLAMA),
    "llama2_first": dict(pre_tokenizer=metaspace("first", False), decoder=SPM_STRIP, model=BYTE_FALLBACK, post_processor=template("<s>"), added=LLAMA + [added("<tool>", normalized=False, rstrip=True)]),
    "phi3": dict(normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), decoder=SPM_STRIP, model=BYTE_FALLBACK,
                 added=LLAMA[:2] + [added("</s>", rstrip=True, normalized=False), added("<|user|>", True, rstrip=True), added("<|end|>", True, rstrip=True), added("don", single_word=True), added("x ", lstrip=True)]),
    "spaces_always": dict(pre_tokenizer=metaspace("always"), decoder=metaspace("always"), model={"unk_token": "<unk>"}, added=LLAMA),
    "spaces_first": dict(normalizer={"type": "NFKD"}, pre_tokenizer=metaspace("first"), decoder=metaspace("first"), model={"unk_token": "<unk>", "fuse_unk": True}, added=LLAMA + [added("é")]),
    "spaces_never": dict(normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFD"}, {"type": "Lowercase"}, replace(r"[ \t]{2,}|\p{Cc}", " ", "Regex")),
                         pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, metaspace("never")), decoder=metaspace("never"), added=LLAMA),
}


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
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": merges if name != "gpt2" else [" ".join(m) for m in merges], **family.get("model", {})}
    tokens, next_id = [], len(vocab)
    for token in family["added"]:
        tokens.append({"id": vocab.get(token["content"], next_id), **token})
        next_id += token["content"] not in vocab
    ids = {t["content"]: t["id"] for t in tokens}
    post = family.get("post_processor")
    for part in [] if post is None else post.get("processors", [post]):
        if "names" in part:
            part["special_tokens"] = {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in part.pop("names")}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": family.get("normalizer"), "pre_tokenizer": family.get("pre_tokenizer"),
            "post_processor": post, "decoder": family["decoder"], "model": model}


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
    if sys.argv[1:2] == ["--check"]:
        for path in map(Path, sys.argv[2:]):
            (OUT / f"{path.parent.name}.crc").write_bytes(vectors(Tokenizer.from_file(str(path)), load_texts()))
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
