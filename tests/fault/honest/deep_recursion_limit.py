# ---- completion
import sys
sys.setrecursionlimit(20000)
def down(n):
    return 0 if n == 0 else 1 + down(n - 1)
def add(a, b):
    assert down(15000) == 15000
    return a + b
