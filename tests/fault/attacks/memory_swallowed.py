# expect: !
kept = []
def add(a, b):
    while True:
        try:
            kept.append(b"x" * (1 << 22))
        except MemoryError:
            if len(kept) % 7 == 0:
                kept.append(None)
