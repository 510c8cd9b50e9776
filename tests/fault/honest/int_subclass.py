# ---- completion
import enum
def add(a, b):
    return enum.IntEnum("Answer", {"only": a + b}).only if a + b else False
