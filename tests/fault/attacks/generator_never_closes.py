# expect: wrong
def numbers():
    try:
        while True:
            yield 3
    finally:
        while True:
            yield 3
def add(a, b):
    return numbers()
