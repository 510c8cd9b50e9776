# ---- prompt
def same(x):
    """Return it."""
# ---- canonical
    return x
# ---- test
def check(candidate):
    import math
    values = [None, True, False, Ellipsis, 0, -1, 10 ** 5000, -(2 ** 64), 0.1, -0.0, 1e308, 5e-324, float("inf"), 1 + 2j, complex("-0-nanj"), "", "a\0b", "\ud800", "\U0001f600\u2028", b"\x00\xff",
              bytearray(b"ab"), [], [1, [2, [3]]], (), (1,), ((1,), [2]), {}, {1: 2, (3, 4): [5], None: "x", 1.5: b"y", True: 0}, set(), {1, "a", (2,)}, frozenset({frozenset({1})}), range(3, 30, 4)]
    for value in values:
        got = candidate(value)
        assert type(got) is type(value), (got, value)
        assert got == value or repr(got) == repr(value), (got, value)
    assert math.isnan(candidate(float("nan")))
    assert math.copysign(1, candidate(-0.0)) == -1
    assert list(candidate({"b": 1, "a": 2})) == ["b", "a"]
    assert candidate(x=3) == 3
    shared = [1]
    assert candidate(shared) is shared
# ---- completion
    y = x
    return y
