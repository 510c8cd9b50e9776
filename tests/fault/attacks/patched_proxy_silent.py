# expect: timeout
import sys
sys.modules["__main__"].__dict__["send_frame"] = lambda *_: None
def add(a, b):
    return a + b
