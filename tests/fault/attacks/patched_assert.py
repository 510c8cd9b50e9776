# expect: wrong
import sys, types
for module in list(sys.modules.values()):
    for name in list(getattr(module, "__dict__", {})):
        if name in ("check", "run_test", "judge", "AssertionError"):
            setattr(module, name, lambda *_: None)
def add(a, b):
    return 0
