# expect: syntax
def add(a, b):
    x = 1
  return x
