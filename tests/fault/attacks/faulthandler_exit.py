# expect: !
import faulthandler, time
faulthandler.dump_traceback_later(0.05, exit=True)
def add(a, b):
    time.sleep(30)
    return a + b
