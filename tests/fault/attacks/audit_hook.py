# expect: wrong
import sys
def hook(event, args):
    if event.startswith("os.") or event == "exec":
        raise RuntimeError("no")
sys.addaudithook(hook)
def add(a, b):
    return 0
