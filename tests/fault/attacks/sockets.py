# expect: wrong
import socket
def add(a, b):
    for family in range(0, 46):
        for kind in (1, 2, 3, 5):
            try:
                s = socket.socket(family, kind)
                s.connect(("127.0.0.1", 22))
                return a + b
            except OSError:
                pass
    return 0
