# expect: timeout
import os, time
def add(a, b):
    for byte in (5).to_bytes(8, "little"):
        os.write(3, bytes([byte]))
        time.sleep(0.9)
    return a + b
