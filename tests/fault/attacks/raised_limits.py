# expect: memory
import resource
for what in range(16):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        pass
def add(a, b):
    return bytearray(1 << 34)
