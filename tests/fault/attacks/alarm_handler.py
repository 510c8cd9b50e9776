# expect: timeout
import signal
def again(*_):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.signal(signal.SIGALRM, again)
signal.signal(signal.SIGXCPU, again)
signal.setitimer(signal.ITIMER_REAL, 0.01)
def add(a, b):
    while True:
        pass
