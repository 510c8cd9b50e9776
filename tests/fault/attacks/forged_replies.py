# expect: !
import os
body = b"R" + b"i3;"
def add(a, b):
    for _ in range(1000):
        os.write(3, len(body).to_bytes(8, "little") + body)
    return 0
