"""Parts of tokenizer.json as the model families have them."""
import copy

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LAGUNA = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
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
    "laguna": dict(bytes=True, pre_tokenizer=sequence("pretokenizers", split(r"[^\n]+|[\n]+"), split(LAGUNA), byte_level()), decoder=byte_level(True, True),
                   added=CHAT + [added("<assistant>", normalized=False), added("</assistant>", normalized=False)]),
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


def assemble(family, vocab, merges):
    """A whole tokenizer.json with this vocabulary; added tokens that it lacks are numbered on."""
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": merges, **family.get("model", {})}
    tokens, next_id = [], len(vocab)
    for token in family["added"]:
        tokens.append({"id": vocab.get(token["content"], next_id), **token})
        next_id += token["content"] not in vocab
    ids = {t["content"]: t["id"] for t in tokens}
    post = copy.deepcopy(family.get("post_processor"))
    for part in [] if post is None else post.get("processors", [post]):
        if "names" in part:
            part["special_tokens"] = {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in part.pop("names")}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": family.get("normalizer"), "pre_tokenizer": family.get("pre_tokenizer"),
            "post_processor": post, "decoder": family["decoder"], "model": model}
