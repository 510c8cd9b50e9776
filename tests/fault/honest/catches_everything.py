# ---- completion
def add(a, b):
    try:
        raise SystemExit(3)
    except BaseException:
        pass
    finally:
        return a + b
