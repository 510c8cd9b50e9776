# expect: !
import threading, time
def add(a, b):
    while True:
        threading.Thread(target=time.sleep, args=(1000,)).start()
