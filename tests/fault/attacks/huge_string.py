# expect: memory
def add(a, b):
    return "x" * 10 ** 12
