# ---- prompt
import math
from typing import List
def norm(values: List[float]) -> float:
    """The length of a vector."""
# ---- canonical
    return math.sqrt(sum(v * v for v in values))
# ---- test
def check(candidate):
    assert abs(candidate([3.0, 4.0]) - 5.0) < 1e-6
    assert math.isclose(candidate([1, 1]), 2 ** 0.5, rel_tol=1e-12)
# ---- completion
    squares: List[float] = [v ** 2 for v in values]
    return math.hypot(*values) if squares else 0.0
