# expect: error
def add(a, b):
    raise StopIteration
