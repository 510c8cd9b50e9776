# expect: wrong
import os, signal
def add(a, b):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for pid in (-1, 0, 1, os.getppid()):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except OSError:
                pass
    return 0
