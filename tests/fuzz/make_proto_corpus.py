#!/usr/bin/env python3
"""Write the seeds of the fuzz targets wire, packed, frame, token_block, result and detok into corpus/NAME/ beside this script.

Needs nothing but Python: msgpack and LZ4 are spelled out in their simplest form, and checksums are left zero because
the fuzz targets make them right before they decode."""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def pack(value):
    """msgpack of unsigned integers, str, lists and dicts."""
    if isinstance(value, int):
        for limit, form in ((0x80, ">B"), (0x100, ">xB"), (0x10000, ">xH"), (1 << 32, ">xI"), (1 << 64, ">xQ")):
            if value < limit:
                out = bytearray(struct.pack(form, value))
                if len(out) > 1:
                    out[0] = {2: 0xCC, 3: 0xCD, 5: 0xCE, 9: 0xCF}[len(out)]
                return bytes(out)
    if isinstance(value, str):
        raw = value.encode()
        return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else struct.pack(">BH", 0xDA, len(raw))) + raw
    if isinstance(value, list):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else struct.pack(">BH", 0xDC, len(value))
        return head + b"".join(map(pack, value))
    return bytes([0x80 | len(value)]) + b"".join(pack(k) + pack(v) for k, v in value.items())


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def lz4_literals(raw):
    """An LZ4 block of one run of literals."""
    if len(raw) < 15:
        return bytes([len(raw) << 4]) + raw
    rest = len(raw) - 15
    return b"\xF0" + b"\xFF" * (rest // 255) + bytes([rest % 255]) + raw


def lz4_zeros(n):
    """An LZ4 block of n zero bytes, n >= 60: one literal, a match at distance 1, five literals at the end."""
    rest = n - 1 - 5 - 4 - 15
    return b"\x1F\x00\x01\x00" + b"\xFF" * (rest // 255) + bytes([rest % 255]) + b"\x50" + b"\x00" * 5


def block(magic, count, raw, packed=None):
    flags = 0 if packed is None else 1
    packed = raw if packed is None else packed
    return magic + struct.pack("<HHIIIIQ", 1, flags, count, len(raw), len(packed), 0, 0) + packed


def tokens(ids):
    return block(b"TTB1", len(ids), b"".join(map(varint, ids)))


def floats(values):
    raw = struct.pack(f"<{len(values)}f", *values)
    return block(b"TFB1", len(values), b"".join(raw[plane::4] for plane in range(4)))


def frame(kind, payload):
    return b"TFF1" + struct.pack("<HHIIQ", 1, kind, len(payload), 0, 0) + payload


def detok(tokens_of):
    raw = b"".join(varint(len(t) * 2 + special) for t, special in tokens_of) + b"".join(t for t, _ in tokens_of)
    return b"TDT1" + struct.pack("<HHIIQ", 1, 0, len(tokens_of), len(raw), 0) + lz4_literals(raw)


HELLO = {0: 2, 1: 1, 3: 0xF00DF00DF00DF00D, 4: "0.1.0", 5: "demo", 6: "ab" * 32, 7: "cpu-avx2/1/bf16/f32", 8: 512, 9: 2048, 10: 65536, 11: 1 << 20,
         12: [1, 2, 300], 13: "host, pid 7, cpu", 14: 1}
GRANT = {0: 2, 1: 5, 2: 3, 3: 77, 4: 12, 5: 60000, 6: [0, 1, 70000], 7: [0, 0, 1], 8: [1, 4, 2], 9: [1, 2, 70001], 10: [0, 1, 0]}
ANSWER = {0: 2, 1: 10, 3: [1] * 20, 4: [2] * 20, 5: list(range(20)), 6: [0] * 19 + [0xFFFFFFFF], 7: [1] * 20}
REPLY = {0: 2, 1: 15, 2: 1, 3: 5, 4: 6, 5: '{"error": "no such job"}', 40: {1: [2, "later"]}}



def packed(header, *parts):
    """One frame a message: the header, the size of each part, the parts."""
    return pack(header) + b"".join(struct.pack("<I", len(part)) for part in parts) + b"".join(parts)


SEEDS = {
    "packed": {"hello": packed(HELLO), "grant": packed(GRANT, b'{"prompt":"a"}', b"", b'{"prompt":[1,2]}'), "answer": packed(ANSWER), "reply": packed(REPLY, b"line\n" * 9),
               "result": packed({0: 2, 1: 7, 2: 1, 3: 9, 4: 8, 5: 7, 6: 3, 8: 1, 9: 40}, b"body"), "cut": packed({0: 2, 1: 7, 2: 1, 8: 1}, b"body")[:-1],
               "longer": packed({0: 2, 1: 12}) + b"x"},
    "wire": {"hello": b"\x00" + pack(HELLO), "grant": b"\x03" + pack(GRANT), "answer": b"\x00" + pack(ANSWER), "reply": b"\x01" + pack(REPLY),
             "stop": b"\x00" + pack({0: 2, 1: 12}), "result": b"\x01" + pack({0: 2, 1: 7, 2: 1, 3: 9, 4: 8, 5: 7, 6: 3, 8: 1, 9: 40})},
    "frame": {"one": b"\x01" + frame(1, b"payload"), "three": b"\x01" + frame(1, b"") + frame(2, b"x" * 40) + frame(65535, b"end"),
              "cut": b"\x01" + frame(1, b"payload")[:-3], "unsummed": b"\x00" + frame(3, b"payload")},
    "token_block": {"ids": b"\x01" + tokens([0, 5, 127, 128, 20000, 248319, 2**31 - 1]), "none": b"\x01" + tokens([]),
                    "zeros": b"\x01" + block(b"TTB1", 400, b"\x00" * 400, lz4_zeros(400)),
                    "floats": b"\x01" + floats([-0.5, 0.0, -9999.0, 1e-30]), "unsummed": b"\x00" + tokens([1, 2])},
    "result": {"plain": pack({0: 1, 4: 4, 5: 3}) + tokens([5, 9, 0]),
               "stop": pack({0: 1, 1: 1, 2: 3, 3: 2, 4: 4, 5: 3, 6: 18}) + tokens([5, 9, 0]),
               "scored": pack({0: 1, 1: 1, 2: 1, 3: 10, 4: 4, 5: 2, 7: 3, 8: 2, 9: 1}) + tokens([5, 9]) + floats([-0.5, -1.0])
               + tokens([6, 7, 10, 0]) + floats([-0.5, -0.75, -1.0, -9999.0]) + tokens([1, 2, 3, 4]) + floats([-1.0, -2.0, -3.0])
               + tokens([2, 3, 4]) + floats([-1.0, -1.0, -1.0]),
               "empty": pack({0: 1, 4: 1}) + tokens([])},
    "detok": {"table": detok([(b"a", 0), (b"\xc3", 0), (b"\xa9", 0), (b"<eos>", 1), (b"", 0), (b" the", 0)]), "none": detok([]),
              "text": "aé€😀".encode() + b"\xed\xa0\x80\xf4\x90\xe2\x82",
              "zeros": b"TDT1" + struct.pack("<HHIIQ", 1, 0, 400, 400, 0) + lz4_zeros(400)},
}

for name, seeds in SEEDS.items():
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed, content in seeds.items():
        (folder / seed).write_bytes(content)
