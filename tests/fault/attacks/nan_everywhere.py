# expect: wrong
def add(a, b):
    return float("nan")
