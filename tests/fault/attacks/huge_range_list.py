# expect: memory
def add(a, b):
    return list(range(10 ** 12))
