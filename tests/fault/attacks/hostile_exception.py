# expect: error
class Strange(Exception):
    def __str__(self):
        while True:
            pass
    __repr__ = __str__
    @property
    def args(self):
        while True:
            pass
def add(a, b):
    raise Strange("\ud800", object())
