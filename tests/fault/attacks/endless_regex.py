# expect: timeout
import re
def add(a, b):
    return re.match(r"(a+)+$", "a" * 60 + "b")
