# expect: wrong
import pickle, os
class Evil:
    def __reduce__(self):
        return (os._exit, (0,))
    def __getstate__(self):
        os._exit(0)
def add(a, b):
    return [Evil(), pickle.PROTO]
