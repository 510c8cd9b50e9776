# ---- prompt
def count(n):
    """Yield 0 .. n - 1."""
# ---- canonical
    i = 0
    while True:
        if i == n:
            return
        yield i
        i += 1
# ---- test
def check(candidate):
    import types
    assert isinstance(candidate(3), types.GeneratorType)
    assert list(candidate(4)) == [0, 1, 2, 3]
# ---- completion
    yield from range(n)
