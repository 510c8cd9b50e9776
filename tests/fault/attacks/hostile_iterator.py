# expect: !
class Endless:
    def __iter__(self):
        return self
    def __next__(self):
        while True:
            pass
def add(a, b):
    return Endless()
