# expect: !
import array, os, socket
def add(a, b):
    link = socket.socket(fileno=3)
    fds = array.array("i", [1] * 200)
    while True:
        link.sendmsg([b"R"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
