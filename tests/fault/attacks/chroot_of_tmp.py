# expect: wrong
import os
def add(a, b):
    try:
        os.symlink("/", "/tmp/root")
        os.mkfifo("/tmp/fifo")
        os.link("/usr/bin/python3", "/tmp/python")
    except OSError:
        pass
    return 0
