# ---- prompt
class TooSmall(ValueError):
    pass
def root(x):
    """The square root; TooSmall below 0, TypeError for text, KeyError for None."""
# ---- canonical
    if x is None:
        raise KeyError("none")
    if isinstance(x, str):
        raise TypeError("text")
    if x < 0:
        raise TooSmall("small", x)
    return x ** 0.5
# ---- test
def check(candidate):
    assert candidate(4) == 2
    for value, kind, args in ((-1, TooSmall, ("small", -1)), ("a", TypeError, ("text",)), (None, KeyError, ("none",))):
        try:
            candidate(value)
        except kind as error:
            assert error.args == args, error.args
        else:
            assert False
    try:
        candidate(-2)
    except ValueError as error:
        assert type(error).__name__ == "TooSmall"
# ---- completion
    if x is None:
        return {}["none"]
    if type(x) is str:
        raise TypeError("text")
    if x < 0:
        raise TooSmall("small", x)
    return x ** 0.5
