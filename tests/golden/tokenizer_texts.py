"""The 5,000 strings that tokenizers are compared on: all planes, code, emoji, combining marks, CJK, control characters, long runs. Pure, seeded."""
import random

POOLS = [(32, 127), (0, 128), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x2000, 0x2070), (0x2100, 0x2200),
         (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB07), (0xFE00, 0xFE10), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F300, 0x1F700), (0x20000, 0x20100), (0xE0000, 0xE0080)]
WORDS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x85", "\u2028", "'s", "'\u017f", "'LL", "don't", "e\u0301", "\u0323", "\u0307", "1", "12345", "3.14", "٣", "²", "Ⅷ", "\u200d",
         "\ufe0f", "x", "The", "a", "▁", "▁▁", "<s>", "</s>", "<unk>", "<0x41>", "日本語", "한국어", "中文字符", "привет", "مرحبا", "שלום", "नमस्ते", "สวัสดี", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "½", "ﬁ", "Å", "İ", "ß", "ǅ", "\x00", "\x7f", "\ufffd",
         "\u1e9b\u0323", "각", "각", "http://x.y/z?q=1&r=%20", "snake_case_name", "CamelCaseName", "->", "!=", "/*", "*/", "...", "—", "“q”", "  \n", "\n  ", "𝒳", "𠀀", "e\u0301\u0323", "ΑΣ", "Σ"]


def _character(rng, pool=None):
    low, high = pool or rng.choice(POOLS)
    return chr(rng.randrange(low, high))


def _planes():
    """Every assigned region once, 256 neighbours a string, the surrogates left out."""
    starts = list(range(0, 0xD800, 256)) + list(range(0xE000, 0x20000, 256)) + list(range(0x20000, 0x110000, 16384)) + list(range(0xE0000, 0xE0200, 256))
    return ["".join(map(chr, range(s, min(s + 256, 0x110000)))) for s in starts]


def _one(rng, code, names):
    kind = rng.randrange(11)
    if kind == 0:
        pool = rng.choice(POOLS)
        return "".join(_character(rng, pool) for _ in range(rng.randrange(1, 25)))
    if kind == 1:
        return "".join(rng.choice([_character(rng), rng.choice(WORDS)]) for _ in range(rng.randrange(1, 25)))
    if kind == 2:
        return "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randrange(1, 12))) if not 0xD800 <= c < 0xE000)
    if kind in (3, 4):
        at = rng.randrange(len(code))
        return code[at:at + rng.randrange(1, 160)]
    if kind == 5:
        return "".join(rng.choice([rng.choice(names), rng.choice(WORDS), _character(rng)]) for _ in range(rng.randrange(1, 12)))
    if kind == 6:
        return rng.choice([_character(rng), rng.choice(WORDS)]) * rng.randrange(1, 60)
    if kind == 7:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(0, 20)))
    if kind == 8:
        return "".join(chr(rng.randrange(32)) for _ in range(rng.randrange(1, 20)))
    if kind == 9:
        base = "".join(_character(rng, (97, 123)) + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randrange(4))) for _ in range(rng.randrange(1, 12)))
        return base
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(0, 20)))


def texts(code, names, count=5000):
    rng = random.Random(31337)
    out = [""] + [c * n for c, n in (("a", 5000), (" ", 3000), ("\n", 2000), ("ab", 2000), ("日", 1000), ("▁", 1000), ("=", 2500), ("0123456789", 300), ("\u0301", 800), ("😀", 500), ("Ω ", 700))]
    out += ["".join(rng.choice("abcdefgh") for _ in range(9000)), "".join(rng.choice("ACGT") for _ in range(4000)), code[:6000]]
    out += _planes()
    while len(out) < count:
        out.append(_one(rng, code, names))
    return out[:count]
