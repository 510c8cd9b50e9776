# expect: output_limit
import os
def add(a, b):
    block = b"x" * (1 << 20)
    for _ in range(10 * 1024):
        os.write(2, block)
    return 0
