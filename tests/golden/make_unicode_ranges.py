#!/usr/bin/env python3
"""Writes engine/unicode_ranges.h: which characters the reference's regular expressions call letters, digits, marks and spaces.

The reference is the Python package `tokenizers`; its own answers for every code point are what is written, so its Unicode version decides.
The characters whose normalization differs between `tokenizers` and the libutf8proc on this machine are found the same way.

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


def utf8proc_nfc():
    lib, libc = ctypes.CDLL("libutf8proc.so.2"), ctypes.CDLL(None)
    lib.utf8proc_map.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    lib.utf8proc_map.restype = ctypes.c_ssize_t
    lib.utf8proc_version.restype = ctypes.c_char_p

    def nfc(text):
        data, out = text.encode(), ctypes.c_void_p()
        n = lib.utf8proc_map(data, len(data), ctypes.byref(out), 1 << 3 | 1 << 1)
        result = ctypes.string_at(out.value, n).decode()
        libc.free(out)
        return result
    return nfc, lib.utf8proc_version().decode()


def younger_than_reference():
    """Characters that reorder or compose for utf8proc and are inert for the reference, because its Unicode version is older."""
    nfc, version = utf8proc_nfc()
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
    return out, version


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
    young, utf8proc_version = younger_than_reference()
    print(f"""/* unicode_ranges.h - made by tests/golden/make_unicode_ranges.py from tokenizers {tokenizers.__version__} and utf8proc {utf8proc_version}; do not edit.
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
    show_ranges("unicode_young", young, "inert in the reference's NFC, not in utf8proc's")
    print("\n#endif")


main()
