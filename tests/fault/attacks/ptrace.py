# expect: wrong
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def add(a, b):
    if libc.ptrace(0, 0, 0, 0) == 0:
        return a + b
    return 0
