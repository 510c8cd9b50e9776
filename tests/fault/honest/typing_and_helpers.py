# ---- completion
from __future__ import annotations
from dataclasses import dataclass
from typing import Generic, List, Optional, TypeVar
import functools
T = TypeVar("T")
@dataclass(frozen=True)
class Pair(Generic[T]):
    left: T
    right: T
def total(p: Pair[int]) -> Optional[int]:
    return p.left + p.right
@functools.lru_cache(maxsize=None)
def add(a: int, b: int) -> int:
    return total(Pair(a, b))
if __name__ == "__main__":
    raise SystemExit(1)
