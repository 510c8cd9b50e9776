# expect: !
import os, time
def add(a, b):
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    while True:
        time.sleep(1000)
