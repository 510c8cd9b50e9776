# ---- prompt
def evens(n):
    """The even numbers below n."""
# ---- canonical
    return [i for i in range(0, n, 2)]
# ---- test
def check(candidate):
    assert list(candidate(7)) == [0, 2, 4, 6]
    assert sorted(candidate(3)) == [0, 2]
# ---- completion
    return (i for i in range(n) if i % 2 == 0)
