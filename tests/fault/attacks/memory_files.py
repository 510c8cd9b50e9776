# expect: !
import os
held = []
def add(a, b):
    while True:
        fd = os.memfd_create("x")
        held.append(fd)
        for _ in range(63):
            os.write(fd, bytes(1 << 20))
