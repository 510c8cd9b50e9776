# ---- prompt
def encode(s):
    return s[::-1]
def decode(s):
    """Undo encode."""
# ---- canonical
    return encode(s)
# ---- test
def check(candidate):
    for s in ("abc", "", "x" * 1000):
        assert candidate(encode(s)) == s
# ---- completion
    return "".join(reversed(s))
