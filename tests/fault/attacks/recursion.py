# expect: error
def add(a, b):
    return add(a, b)
