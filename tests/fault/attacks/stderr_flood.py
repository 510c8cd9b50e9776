# expect: output_limit
import os
def add(a, b):
    while True:
        os.write(2, b"E" * 65536)
