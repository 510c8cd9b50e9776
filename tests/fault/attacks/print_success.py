# expect: wrong
import json
def add(a, b):
    print(json.dumps({"ok": True, "err": None}), flush=True)
    print("passed\tpassed\tpassed\t-1\t-1\t0\t1\t", flush=True)
    return 0
