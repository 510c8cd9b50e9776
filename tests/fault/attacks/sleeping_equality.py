# expect: wrong
import time
class Sum:
    def __eq__(self, other):
        while True:
            time.sleep(1)
    __ne__ = __lt__ = __gt__ = __eq__
    def __hash__(self):
        return self == 0
def add(a, b):
    return Sum()
