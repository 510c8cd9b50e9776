# expect: !
import os
body = b"Vt2;s0;l0;"
os.write(3, len(body).to_bytes(8, "little") + body)
def add(a, b):
    return 0
