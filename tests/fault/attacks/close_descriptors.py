# expect: error
import os
def add(a, b):
    os.closerange(0, 1000)
    return a + b
