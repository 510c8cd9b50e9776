# expect: wrong
import sys
main = sys.modules["__main__"].__dict__
main["encode"] = lambda *_, **__: b"N"
def add(a, b):
    return 0
