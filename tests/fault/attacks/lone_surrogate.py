# expect: wrong
def add(a, b):
    return "\ud800\udfff\x00"
