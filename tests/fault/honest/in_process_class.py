# ---- prompt
class Stack:
    """push and pop"""
# ---- canonical
    def __init__(self):
        self.items = []
    def push(self, x):
        self.items.append(x)
    def pop(self):
        return self.items.pop()
# ---- test
def check(candidate):
    s = candidate()
    s.push(1)
    s.push(2)
    assert s.pop() == 2 and s.pop() == 1
# ---- completion
    def __init__(self):
        self.rest = None
    def push(self, x):
        self.rest = (x, self.rest)
    def pop(self):
        x, self.rest = self.rest
        return x
