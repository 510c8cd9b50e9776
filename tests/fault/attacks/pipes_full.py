# expect: !
import os, socket
held = []
def add(a, b):
    while True:
        one, other = socket.socketpair()
        held.append((one, other))
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        try:
            while True:
                one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
