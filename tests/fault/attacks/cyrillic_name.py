# expect: error
def аdd(a, b):
    return a + b
