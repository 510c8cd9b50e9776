# expect: wrong
import os
for folder in ("/dev/shm", "/run", "/var/tmp", "/run/lock", "/dev/mqueue", "/usr/lib/python3", "/usr/local/lib", "/", "/home", "/root", "/etc", "/proc/sys/kernel", "/sys/fs/cgroup"):
    try:
        with open(folder + "/scratch", "w") as file:
            file.write("a sample was here")
    except OSError:
        continue
    with open("/tmp/where", "a") as file:
        file.write(folder)
def add(a, b):
    return a + b if os.path.exists("/tmp/where") else 0
