# expect: error
import sys, os
sys.excepthook = lambda *_: os._exit(0)
def add(a, b):
    raise ValueError("x" * 100000)
