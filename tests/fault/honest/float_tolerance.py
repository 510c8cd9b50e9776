# ---- prompt
def mean(values):
    """The mean."""
# ---- canonical
    return sum(values) / len(values)
# ---- test
def check(candidate):
    assert abs(candidate([0.1] * 10) - 0.1) < 1e-9
    assert round(candidate([1, 2]), 3) == 1.5
# ---- completion
    import statistics
    return statistics.fmean(values)
