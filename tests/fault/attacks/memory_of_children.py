# expect: !
import os, time
def add(a, b):
    for _ in range(14):
        if os.fork() == 0:
            kept = [bytearray(b"x") * (150 << 20)]
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
    return 0
