# expect: !
import sys
sys.setrecursionlimit(10 ** 9)
def add(a, b):
    return add(a, [b])
