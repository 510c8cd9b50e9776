# expect: wrong
class Many(tuple):
    def __len__(self):
        return 10 ** 9
    def __getitem__(self, i):
        return 3
def add(a, b):
    return Many((1,))
