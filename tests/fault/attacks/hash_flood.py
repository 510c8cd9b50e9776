# expect: !
def add(a, b):
    step = 2 ** 61 - 1
    return {i * step for i in range(60000)}
