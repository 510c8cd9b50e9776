# ---- prompt
def double_all(values):
    """Double each value in place and return nothing."""
# ---- canonical
    for i, v in enumerate(values):
        values[i] = 2 * v
# ---- test
def check(candidate):
    values = [1, 2, 3]
    assert candidate(values) is None
    assert values == [2, 4, 6]
    nested = {"a": [1], "b": {2}}
    inner = nested["a"]
    candidate(inner)
    assert nested == {"a": [2], "b": {2}}
# ---- completion
    values[:] = [v * 2 for v in values]
