# expect: timeout
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def add(a, b):
    while True:
        try:
            if os.fork() == 0:
                until = time.thread_time() + 0.1
                while time.thread_time() < until:
                    pass
                os._exit(0)
        except OSError:
            time.sleep(0.01)
