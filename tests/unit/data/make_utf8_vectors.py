#!/usr/bin/env python3
"""Write utf8_vectors.txt beside this script: bytes and what Python's decode("utf-8", "replace") makes of them, both as hex.

Cases: every pair and many triples of bytes at the borders of the UTF-8 ranges, good characters with each byte cut, doubled or
replaced, and random mixtures. Made with CPython 3.11."""
import itertools
import pathlib
import random

EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4,
         0xF5, 0xF8, 0xFE, 0xFF]
LEADS = [0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4]
SECONDS = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2]
GOOD = ["a", "\u00e9", "\u0800", "\u20ac", "\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "\U0001f600", "\U0010ffff"]

cases = [b""]
cases += [bytes([a]) for a in EDGES]
cases += [bytes(p) for p in itertools.product(EDGES, repeat=2)]
cases += [bytes(p) for p in itertools.product(LEADS, SECONDS, [0x41, 0x80, 0xBF, 0xE0])]
cases += [bytes(p) for p in itertools.product([0xF0, 0xF1, 0xF4], SECONDS, [0x41, 0x80, 0xF0], [0x41, 0xBF])]
for text in GOOD:
    good = text.encode()
    for i in range(len(good)):
        cases += [good[:i], good[:i] + good[i + 1:], good[:i] + good[i:i + 1] + good[i:], good[:i] + b"\xff" + good[i + 1:], b"x" + good[:i] + b"y"]
rng = random.Random(20)
for _ in range(200):
    mixed = b"".join(rng.choice([rng.choice(GOOD).encode(), bytes([rng.choice(EDGES)])]) for _ in range(rng.randint(2, 9)))
    cases.append(mixed[: rng.randint(1, len(mixed))])
cases = list(dict.fromkeys(cases))

lines = [f"{case.hex() or '-'} {case.decode('utf-8', 'replace').encode().hex() or '-'}\n" for case in cases]
(pathlib.Path(__file__).parent / "utf8_vectors.txt").write_text("".join(lines))
print(len(lines), "cases")
