# expect: wrong
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for key, value in list(frame.f_locals.items()):
            if isinstance(value, (bytes, str)) and ("check" in str(value)):
                print(key, value)
        frame.f_locals["reply"] = b"V"
        frame = frame.f_back
    return 0
