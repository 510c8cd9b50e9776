# expect: error
import atexit, os, sys
atexit.register(lambda: os._exit(0))
def add(a, b):
    sys.stdout.write("passed")
    raise SystemExit(0)
