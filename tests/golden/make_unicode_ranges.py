#!/usr/bin/env python3
"""Writes engine/unicode_ranges.h: which characters the reference's regular expressions call letters, digits, marks and spaces.

The reference is the Python package `tokenizers`; its own answers for every code point are what is written, so its Unicode version decides.
The characters whose normalization or lower case differs between `tokenizers` and the libutf8proc on this machine are found the same way.

    python3 make_unicode_ranges.py > ../../engine/unicode_ranges.h        (needs `pip install tokenizers`, libutf8proc.so.2; about two minutes)
"""
import ctypes
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co".split()
SCRIPTS = "Han Hiragana Katakana Hangul".split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern):
    """The code points that `pattern` matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    out = set()
    for i in range(0, len(CODE_POINTS), 4096):
        part = CODE_POINTS[i:i + 4096]
        kept = {c for piece, _ in split.pre_tokenize_str("".join(map(chr, part))) for c in piece}
        out.update(c for c in part if chr(c) not in kept)
    return out


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


FORMS = {"NFC": 1 << 3, "NFD": 1 << 4, "NFKC": 1 << 2 | 1 << 3, "NFKD": 1 << 2 | 1 << 4}      # utf8proc's options beside STABLE


def utf8proc():
    lib = ctypes.CDLL("libutf8proc.so.2")
    lib.utf8proc_map.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    lib.utf8proc_map.restype = ctypes.c_ssize_t
    lib.utf8proc_version.restype = ctypes.c_char_p
    return lib


def utf8proc_form(form):
    lib, libc = utf8proc(), ctypes.CDLL(None)

    def normalize(text):
        data, out = text.encode(), ctypes.c_void_p()
        n = lib.utf8proc_map(data, len(data), ctypes.byref(out), FORMS[form] | 1 << 1)
        result = ctypes.string_at(out.value, n).decode()
        libc.free(out)
        return result
    return normalize


def younger_decompositions():
    """Characters that utf8proc decomposes in some form and the reference in none."""
    out = set()
    for form in FORMS:
        reference, ours = getattr(normalizers, form)().normalize_str, utf8proc_form(form)
        for c in CODE_POINTS:
            if reference(chr(c)) != ours(chr(c)):
                if reference(chr(c)) != chr(c):
                    sys.exit(f"U+{c:04X} in {form}: not a question of age")
                out.add(c)
    return out


def other_lower_case():
    """Characters whose lower case is another one for the reference than for utf8proc: (character, lower case)."""
    reference, lib = normalizers.Lowercase().normalize_str, utf8proc()
    pairs = [(c, [ord(x) for x in reference(chr(c))]) for c in CODE_POINTS if reference(chr(c)) != chr(lib.utf8proc_tolower(c))]
    if any(len(lower) > 1 for c, lower in pairs if c != 0x130) or dict(pairs)[0x130] != [0x69, 0x307]:
        sys.exit("more than U+0130 has a lower case of several characters")
    return [(c, lower[0]) for c, lower in pairs if c != 0x130]


def numeric_beyond_n():
    """What Digits takes for a digit beyond \\p{N} (the reference uses another Unicode version there)."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    numbers = members(r"\p{N}")
    return {c for c in CODE_POINTS if c not in numbers and len(digits.pre_tokenize_str("a" + chr(c))) == 2}


def younger_than_reference():
    """Characters that reorder or compose for utf8proc and are inert for the reference, because its Unicode version is older."""
    nfc = utf8proc_form("NFC")
    reference = normalizers.NFC().normalize_str
    out = set()
    for c in CODE_POINTS:
        if reference(chr(c)) != nfc(chr(c)):
            sys.exit(f"U+{c:04X} alone normalizes differently: not a question of age")
    for mark in (0x301, 0x323, 0x334, 0x5B0, 0x345, 0x94D, 0x93C, 0x302A, 0x315, 0x35C, 0x35D):
        for c in CODE_POINTS:
            for text in ("q" + chr(mark) + chr(c), "q" + chr(c) + chr(mark)):
                if reference(text) != nfc(text):
                    out.add(c)
    for c in CODE_POINTS:           # compositions of two characters: the second one must be inert where the reference does not compose
        parts = decomposition(c)
        if len(parts) == 2 and reference("".join(parts)) != nfc("".join(parts)):
            out.add(ord(parts[1]))
    return out


def decomposition(c):
    import unicodedata
    text = unicodedata.decomposition(chr(c))
    return [] if not text or text.startswith("<") else [chr(int(x, 16)) for x in text.split()]


def show_ranges(name, points, comment):
    items = [f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(points)]
    print(f"\n/* {comment} */\nstatic const unicode_range {name}[] = {{")
    for i in range(0, len(items), 8):
        print("    " + ", ".join(items[i:i + 8]) + ",")
    print("};")


def main():
    of = {}
    sets = {}
    for index, name in enumerate(CATEGORIES):
        sets[name] = members(r"\p{%s}" % name)
        for c in sets[name]:
            of[c] = index
    print(f"""/* unicode_ranges.h - made by tests/golden/make_unicode_ranges.py from tokenizers {tokenizers.__version__} and utf8proc {utf8proc().utf8proc_version().decode()}; do not edit.
 * Included by unicode.c alone. */
#ifndef ENGINE_UNICODE_RANGES_H
#define ENGINE_UNICODE_RANGES_H

#include "engine/unicode.h"

static const char unicode_category_names[][3] = {{ {", ".join('"%s"' % c for c in CATEGORIES)} }};

/* Runs of one general category: first code point << 5 | category. Surrogates count as Cn. */
static const uint32_t unicode_runs[] = {{""")
    unassigned = CATEGORIES.index("Cn")
    line, last = [], None
    for c in range(0x110000):
        category = of.get(c, unassigned)
        if category != last:
            line.append(f"0x{c << 5 | category:X}")
            last = category
        if len(line) == 16:
            print("    " + ",".join(line) + ",")
            line = []
    print("    " + ",".join(line) + "\n};")
    word = members(r"\w")
    base = set().union(*(sets[c] for c in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl Pc".split()))
    if base - word:
        sys.exit("a letter, mark, digit or connector is not \\w")
    show_ranges("unicode_spaces", members(r"\s"), "\\s")
    show_ranges("unicode_word_extra", word - base, "\\w beyond L, M, Nd, Nl and Pc")
    for name in SCRIPTS:
        show_ranges("unicode_" + name.lower(), members(r"\p{%s}" % name), "\\p{%s}" % name)
    show_ranges("unicode_young", younger_than_reference(), "inert in the reference's NFC, not in utf8proc's")
    show_ranges("unicode_young_decompositions", younger_decompositions(), "decomposed by utf8proc in some form, never by the reference")
    pairs = [f"{{0x{a:X}, 0x{b:X}}}" for a, b in other_lower_case()]
    print("\n/* The reference's lower case where utf8proc has another; U+0130 becomes two characters. */\nstatic const unicode_range unicode_lower_cases[] = {")
    for i in range(0, len(pairs), 8):
        print("    " + ", ".join(pairs[i:i + 8]) + ",")
    print("};")
    numeric = "".join(f"\\\\x{{{a:x}}}-\\\\x{{{b:x}}}" for a, b in ranges(numeric_beyond_n()))
    print(f'\n/* What Digits takes for a digit. */\nstatic const char unicode_numeric_class[] = "[\\\\p{{N}}{numeric}]";')
    print("\n#endif")


main()
