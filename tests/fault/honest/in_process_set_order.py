# ---- prompt
def letters(s):
    """The set of letters."""
# ---- canonical
    return set(s)
# ---- test
def check(candidate):
    assert candidate("hello") == set("hello")
    assert "".join(candidate("hello")) == "".join(set("hello"))
# ---- completion
    return {c for c in s}
