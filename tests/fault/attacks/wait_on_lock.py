# expect: timeout
import threading
def add(a, b):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
