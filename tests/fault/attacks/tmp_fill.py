# expect: wrong
def add(a, b):
    try:
        for number in range(1000):
            with open("/tmp/%d" % number, "wb") as file:
                file.write(b"x" * (1 << 20))
    except OSError:
        pass
    return 0
