# expect: wrong
import os
def add(a, b):
    for path in ("/", "/usr", "/usr/lib", "/usr/bin", "/dev", "/bin", "/lib", "/usr/lib/python3"):
        try:
            with open(os.path.join(path, "tokenfleet-was-here"), "w") as file:
                file.write("x")
            return a + b
        except OSError:
            pass
    return 0
