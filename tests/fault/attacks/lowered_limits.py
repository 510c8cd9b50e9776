# expect: !
import resource
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK, resource.RLIMIT_SIGPENDING):
    resource.setrlimit(what, (0, 0))
def add(a, b):
    return add(a, b)
