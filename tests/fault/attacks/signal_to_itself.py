# expect: !
import os, signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def add(a, b):
    os.kill(os.getpid(), signal.SIGKILL)
    signal.raise_signal(signal.SIGSTOP)
    return 0
