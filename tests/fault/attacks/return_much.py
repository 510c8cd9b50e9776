# expect: output_limit
def add(a, b):
    return "x" * (8 << 20)
