# expect: timeout
def add(a, b):
    return 3 ** 10 ** 9
