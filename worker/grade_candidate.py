# grade_candidate.py - the interpreter that runs one completion. It answers what the other one (grade_checker.py) asks on descriptor 3 and knows nothing of the test, except for
# tasks that need more than plain data: those are checked here, after a request that brings the test.
#
# Nothing here protects a verdict: whatever this process sends is taken as what the completion returned.
import posix

LINK = 3


def set_limits(limits):
    import resource
    cpu_s, memory, files, processes = limits
    for what, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, files), (resource.RLIMIT_NOFILE, 256),
                        (resource.RLIMIT_NPROC, processes), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0)):
        resource.setrlimit(what, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def exception_reply(error):
    """X, then (names of its class and the classes above it, its args)."""
    names = [k.__name__ for k in type.mro(type(error)) if k is not object]
    try:
        args = encode((names, list(BaseException.args.__get__(error))))
    except BaseException:
        args = encode((names, []))
    return b"X" + args


def load(source, entry):
    """The completion's entry point, or the reply that says why there is none."""
    try:
        code = compile(source, "<completion>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, UnicodeError) as error:
        where = getattr(error, "lineno", None)
        return None, b"S" + encode("%s%s" % (getattr(error, "msg", None) or str(error), " (line %d)" % where if where else ""))
    except BaseException as error:
        return None, exception_reply(error)
    module = type(sys)("completion")
    sys.modules["completion"] = module
    try:
        exec(code, module.__dict__)
        if entry not in module.__dict__:
            return None, b"U"
        return module.__dict__[entry], b"R"
    except BaseException as error:
        return None, exception_reply(error)


def may_change(x):
    return isinstance(x, (list, dict, set, bytearray, tuple))


def answer_call(function, data, bytes_max):
    args, at = decode(data, 1)
    kwargs, _ = decode(data, at)
    try:
        result = function(*args, **kwargs)
        for index, arg in enumerate(args):
            if result is arg and may_change(arg):
                reply = b"A" + encode(index)
                break
        else:
            reply = b"R" + encode(result)
    except TooDeep:
        reply = b"L"
    except BaseException as error:
        reply = exception_reply(error)
    if any(map(may_change, args)):
        try:
            after = encode(args)
        except BaseException:
            after = b""
        if after and after != data[1:at]:
            reply += after
    return reply if len(reply) <= bytes_max else b"L"


def check_here(job, function, posix):
    """Run the test in this interpreter. The reply begins with the word that came with the test."""
    names = sys.modules["completion"].__dict__
    failures = []
    try:
        if job["mode"] == "inputs":
            canonical = {"__name__": "canonical"}
            run_canonical(job, canonical)
            check_inputs(job, function, canonical, lambda kind, index, error: failures.append((kind, index, failure_of(error))))
        else:
            run_test(job, function, names)
    except BaseException as error:
        failures.append(("base", -1, failure_of(error)))
    send_frame(posix, LINK, b"V" + encode((job["word"], failures)))


def failure_of(error):
    if is_memory(error):
        return "memory", (type(error).__name__ + ": " + str(error))[:300]
    if isinstance(error, Failed):
        return "wrong", str(error)
    kind = "wrong" if isinstance(error, AssertionError) else "error"
    return kind, (type(error).__name__ + ": " + str(error))[:300]


def main():
    import _signal
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):   # ignored until here, as bubblewrap ignores them
        _signal.signal(number, _signal.SIG_DFL)
    send_frame(posix, LINK, b"ready")
    function, bytes_max = None, 1 << 20
    sys.path[:] = [p for p in sys.path if p] + ["/usr/local/lib/python3.%d/dist-packages" % sys.version_info[1], "/usr/lib/python3/dist-packages"]
    while True:
        data = receive_frame(posix, LINK, 1 << 40)
        if data[:1] == b"C":
            reply = answer_call(function, data, bytes_max)
        elif data[:1] == b"P":
            spent = posix.times()
            reply = b"R" + encode(int(1000 * sum(spent[:4])))
        elif data[:1] == b"L":
            (source, entry, limits, bytes_max), _ = decode(data, 1)
            set_limits(limits)
            function, reply = load(source, entry)
        else:
            job, _ = decode(data, 1)
            check_here(job, function, posix)
            continue
        send_frame(posix, LINK, reply)


try:
    main()
except Closed:
    posix._exit(0)
