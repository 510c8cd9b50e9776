# expect: !
import os
def add(a, b):
    os.write(3, (0).to_bytes(8, "little"))
    os.write(3, (1 << 63).to_bytes(8, "little"))
    while True:
        os.write(3, bytes(65536))
