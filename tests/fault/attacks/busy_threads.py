# expect: timeout
import threading
def spin():
    while True:
        pass
def add(a, b):
    for _ in range(4):
        threading.Thread(target=spin).start()
    spin()
