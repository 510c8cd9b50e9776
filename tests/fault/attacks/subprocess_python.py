# expect: wrong
import subprocess
def add(a, b):
    subprocess.run(["/usr/bin/python3", "-c", "import os; os.kill(-1, 9)"])
    return 0
