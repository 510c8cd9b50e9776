# expect: syntax
def add(a, b):
    return a +
