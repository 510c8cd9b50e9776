# ---- completion
# coding: latin-1
def add(a, b):
    """La somme de a et b, écrite en UTF-8."""
    return a + b
