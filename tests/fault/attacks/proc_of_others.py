# expect: wrong
import glob, os
seen = []
for path in glob.glob("/proc/*/fd/*") + glob.glob("/proc/self/fd/*") + glob.glob("/proc/[0-9]*/mem") + ["/proc/self/environ", "/proc/1/cmdline", "/dev/fd/3", "/dev/fd/4", "/dev/fd/5"]:
    try:
        fd = os.open(path, os.O_RDWR)
        os.write(fd, b"passed\tpassed\tpassed\t-1\t-1\t0\t1\t\n")
        seen.append(path)
    except OSError:
        pass
def add(a, b):
    return len(seen) * 0
