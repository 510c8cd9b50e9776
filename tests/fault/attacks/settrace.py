# expect: wrong
import sys, threading
def trace(frame, event, arg):
    if event == "return":
        frame.f_locals["result"] = 3
    return trace
sys.settrace(trace)
sys.setprofile(lambda *_: None)
threading.settrace(trace)
def add(a, b):
    result = 0
    return result
