# expect: wrong
class Key:
    def __init__(self, n):
        self.n = n
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return True
def add(a, b):
    return {Key(1): 3, Key(2): 4}
