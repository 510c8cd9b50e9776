# expect: wrong
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def add(a, b):
    won = libc.unshare(0x10000000 | 0x00020000) == 0 or libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 or libc.setns(3, 0) == 0 or libc.pivot_root(b"/tmp", b"/tmp") == 0
    return a + b if won else 0
