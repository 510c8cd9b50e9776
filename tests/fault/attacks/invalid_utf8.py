# expect: syntax
def add(a, b):
    return 'ÿşÀ'
