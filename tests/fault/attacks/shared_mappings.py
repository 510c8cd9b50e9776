# expect: memory
import mmap
held = []
def add(a, b):
    while True:
        m = mmap.mmap(-1, 1 << 25)
        for at in range(0, len(m), 4096):
            m[at] = 1
        held.append(m)
