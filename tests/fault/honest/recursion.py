# ---- completion
def add(a, b):
    return a if b == 0 else add(a + 1, b - 1) if b > 0 else add(a - 1, b + 1)
