# expect: !
import os, signal
def add(a, b):
    os.kill(0, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0
