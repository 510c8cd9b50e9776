# expect: wrong
class Yes:
    __class__ = int
    def __eq__(self, other):
        return True
    def __hash__(self):
        return 3
def add(a, b):
    return Yes()
