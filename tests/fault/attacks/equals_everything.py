# expect: wrong
class Yes:
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    __hash__ = None
    def __bool__(self):
        return True
def add(a, b):
    return Yes()
