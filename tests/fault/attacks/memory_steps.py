# expect: memory
def add(a, b):
    kept = []
    while True:
        kept.append(bytearray(1 << 20))
