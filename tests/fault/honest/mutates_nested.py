# ---- prompt
def grow(tree):
    """Append 1 to every list in the dict of lists."""
# ---- canonical
    for branch in tree.values():
        branch.append(1)
    return tree
# ---- test
def check(candidate):
    branch = []
    tree = {"a": branch, "b": [2]}
    assert candidate(tree) is tree
    assert branch == [1] and tree == {"a": [1], "b": [2, 1]}
# ---- completion
    for key in tree:
        tree[key] += [1]
    return tree
