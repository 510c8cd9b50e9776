# expect: wrong
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if os.uname().machine == "x86_64":
    calls = {"ptrace": 101, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323,
             "keyctl": 250, "add_key": 248, "personality": 135, "kexec_load": 246, "reboot": 169, "init_module": 175, "swapon": 167, "process_vm_readv": 310, "memfd_create": 319, "shmget": 29,
             "mq_open": 240, "socket": 41, "open_by_handle_at": 304, "fsopen": 430, "clone3": 435, "landlock": 444}
else:
    calls = {"ptrace": 117, "unshare": 97, "setns": 268, "mount": 40, "bpf": 280, "io_uring_setup": 425, "socket": 198}
def add(a, b):
    for name, number in calls.items():
        ctypes.set_errno(0)
        if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
            return a + b
    CLONE_NEWUSER = 0x10000000
    if libc.syscall(56 if len(calls) > 7 else 220, CLONE_NEWUSER | 17, 0, 0, 0, 0) != -1:
        return a + b
    if libc.prctl(1, 0, 0, 0, 0) == 0:
        return a + b
    return 0
