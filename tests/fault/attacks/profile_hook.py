# expect: wrong
import sys, threading
def hook(frame, event, arg):
    for name in ("got", "want", "holds", "exact", "failures", "case"):
        frame.f_locals.pop(name, None)
sys.setprofile(hook)
threading.setprofile(hook)
def add(a, b):
    sys.setprofile(hook)
    return 0
