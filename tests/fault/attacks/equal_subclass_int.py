# expect: wrong
class Yes(int):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __hash__(self):
        return 3
def add(a, b):
    return Yes(1000)
