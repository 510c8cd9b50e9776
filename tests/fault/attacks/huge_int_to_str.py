# expect: !
def add(a, b):
    return str(10 ** 10 ** 6)
