# ---- prompt
def twice(f, x):
    """f of f of x."""
# ---- canonical
    return f(f(x))
# ---- test
def check(candidate):
    assert candidate(lambda v: v + 1, 3) == 5
# ---- completion
    for _ in range(2):
        x = f(x)
    return x
