# expect: !
def add(a, b):
    key = ()
    for _ in range(390):
        key = (key,)
    made = {}
    for i in range(2000):
        inner = i
        for _ in range(390):
            inner = (inner,)
        made[inner] = key
    return made
