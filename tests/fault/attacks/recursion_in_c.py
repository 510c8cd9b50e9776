# expect: !
import sys
sys.setrecursionlimit(10 ** 9)
class Loop:
    def __repr__(self):
        return repr(self)
    def __getattr__(self, name):
        return getattr(self, name + "x")
def add(a, b):
    return str(Loop().x) + repr(Loop())
