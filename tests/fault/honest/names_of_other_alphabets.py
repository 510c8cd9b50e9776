# ---- completion
def ａｄｄ(α, β):                       # Python reads the name as `add`
    Σ = α + β
    return Σ
