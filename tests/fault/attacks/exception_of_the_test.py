# expect: error
class Failed(Exception):
    pass
class Closed(BaseException):
    pass
class NotPlain(Exception):
    pass
kinds = [Failed, Closed, NotPlain, AssertionError, GeneratorExit, KeyboardInterrupt]
def add(a, b):
    raise NotPlain("add")
