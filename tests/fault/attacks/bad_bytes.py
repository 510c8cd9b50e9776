# expect: error
import os
body = b"Rl7fffffffffffffff;" + b"N" * 100
def add(a, b):
    os.write(3, len(body).to_bytes(8, "little") + body)
    os._exit(0)
