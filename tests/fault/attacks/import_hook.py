# expect: wrong
import sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        import os
        os.write(1, name.encode())
        return None
sys.meta_path.insert(0, Finder)
def add(a, b):
    return 0
