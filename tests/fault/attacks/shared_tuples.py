# expect: !
def add(a, b):
    x = (a, b)
    for _ in range(40):
        x = (x, x)
    return x
