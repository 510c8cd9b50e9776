# expect: wrong
def add(a, b):
    a = b = 0
    return None
