# expect: !
import itertools
def add(a, b):
    return itertools.count()
