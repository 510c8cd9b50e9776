# expect: wrong
def add(a, b):
    return 7 ** 100000
