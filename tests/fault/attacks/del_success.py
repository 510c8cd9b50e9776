# expect: wrong
import os
class Last:
    def __del__(self):
        os.write(1, b"passed")
        os._exit(0)
keep = Last()
def add(a, b):
    return 0
