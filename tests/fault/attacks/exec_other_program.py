# expect: error
import os
def add(a, b):
    os.execv("/bin/sh", ["sh", "-c", "echo passed; exit 0"])
