# expect: wrong
class Yes(list):
    def __eq__(self, other):
        return True
    def __iter__(self):
        while True:
            yield 3
    def __len__(self):
        return 1
def add(a, b):
    return Yes()
