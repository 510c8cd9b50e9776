# expect: !
import ctypes
def add(a, b):
    for address in range(0x400000, 0x500000, 4096):
        ctypes.string_at(address, 16)
    return 0
