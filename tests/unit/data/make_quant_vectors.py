#!/usr/bin/env python3
"""Writes quant_vectors.bin: blocks of every quantized type and what the reference makes of them.

    pip install gguf==0.19.0 && ./make_quant_vectors.py

Blocks are random bytes, so that all bits of a format are met, also scales that are negative, subnormal, infinite or NaN.
File: for each type its name (8 bytes, zero padded), blocks, bytes and values a block (uint32 each), the blocks, the values as float32.
"""
import os
import random
import struct

import gguf
import numpy as np

TYPES = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4".split()


def main():
    dice = random.Random(6)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "quant_vectors.bin"), "wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            values, size = gguf.GGML_QUANT_SIZES[kind]
            n = 24 if values <= 64 else 5
            blocks = np.frombuffer(dice.randbytes(n * size), dtype=np.uint8).reshape(n, size)
            with np.errstate(invalid="ignore"):
                expected = gguf.dequantize(blocks, kind).astype(np.float32)
            assert expected.shape == (n, values)
            out.write(struct.pack("<8sIII", name.lower().encode(), n, size, values) + blocks.tobytes() + expected.tobytes())


main()
