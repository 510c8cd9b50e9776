# expect: !
import builtins
builtins.len = lambda x: 0
builtins.isinstance = lambda *_: True
builtins.AssertionError = type("AssertionError", (Exception,), {})
builtins.__build_class__ = None
def add(a, b):
    return 0
