# ---- completion
def add(a, b):
    for _ in range(2000):
        print("thinking about", a, b)
    return a + b
