# expect: wrong
import sys
def add(a, b):
    return len(sys.stdin.read()) + len(input() if False else "")
