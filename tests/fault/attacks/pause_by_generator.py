# expect: error
def add(a, b):
    yield a
    raise GeneratorExit
