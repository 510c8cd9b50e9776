# ---- completion
def äddiere(α, β):
    """  😀 中文"""
    return α + β
add = äddiere
