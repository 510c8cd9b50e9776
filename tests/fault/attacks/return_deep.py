# expect: output_limit
def add(a, b):
    deep = []
    for _ in range(100000):
        deep = [deep]
    return deep
