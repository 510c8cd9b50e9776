# grade_checker.py - the interpreter that checks. It lives as long as its place in the grader and forks for each sample: the child runs the task's own code (prompt, canonical
# solution, test), calls the completion through a proxy, and writes the verdict to a pipe that no other process has.
#
#   descriptor 3  from the grader: first the source of the candidate's program, answered with its compiled form; then one message a sample with three descriptors (what to check,
#                 the socket to the completion's interpreter, the pipe for the verdict), answered with the child's wait status.
import array
import os
import signal
import socket

for name in ("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics",
             "string", "typing"):
    __import__(name)                         # so that no child has to


class Raised:
    """What the proxy knows about the completion so far."""
    gone = False                             # its process ended, or it sent what is no reply
    too_long = False
    errors = []                              # the exceptions that came from it


FIELDS = ("mode", "task_id", "prompt", "entry", "test", "canonical", "base", "plus", "completion", "numbers")


def read_job(fd):
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    job, at = {}, 0
    for field in FIELDS:
        n = int.from_bytes(data[at:at + 8], "little")
        job[field] = data[at + 8:at + 8 + n]
        at += 8 + n
    for field in FIELDS:
        if field != "completion":
            job[field] = job[field].decode("utf-8", "surrogatepass")
    numbers = job.pop("numbers").split()
    job["in_process"], job["full_script"] = numbers[0] == "1", numbers[1] == "1"
    job["atol"] = float.fromhex(numbers[2])
    job["cpu_s"], job["memory"], job["bytes_max"], job["processes"] = map(int, numbers[3:])
    return job


def make_exception(names, args, trusted):
    """The exception that the completion raised: of the task's own class of that name, else the builtin one, else a class of that name below its nearest builtin one."""
    import builtins
    base = Exception
    for name in names:
        found = trusted.get(name)
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            base = found
            break
    if base.__name__ != names[0]:
        base = type(names[0], (base,), {})
    try:
        return base(*args)
    except Exception:
        error = base.__new__(base)
        error.args = tuple(args)
        return error


def put_back(into, now):
    """Make the argument `into` what the call left in it."""
    if type(into) is not type(now):
        return
    if isinstance(into, list):
        if len(into) == len(now):
            for index, item in enumerate(now):
                if isinstance(into[index], (list, dict, set, bytearray, tuple)) and type(into[index]) is type(item):
                    put_back(into[index], item)
                    if into[index] == item:
                        continue
                into[index] = item
        else:
            into[:] = now
    elif isinstance(into, dict):
        kept = {key: into[key] for key in now if key in into}
        into.clear()
        for key, value in now.items():
            if key in kept and isinstance(kept[key], (list, dict, set, bytearray)) and type(kept[key]) is type(value):
                put_back(kept[key], value)
                value = kept[key]
            into[key] = value
    elif isinstance(into, set):
        into.clear()
        into.update(now)
    elif isinstance(into, bytearray):
        into[:] = now
    elif isinstance(into, tuple):
        for left, right in zip(into, now):
            put_back(left, right)


def ask(link, data, bytes_max):
    """One request and its reply."""
    if Raised.gone:
        raise Closed
    try:
        send_frame(os, link, data)
        return receive_frame(os, link, bytes_max + (1 << 20))
    except Closed:
        Raised.gone = True
        raise
    except TooLong:
        Raised.too_long = True
        raise


def make_proxy(job, link, trusted):
    def call(*args, **kwargs):
        sent = encode(list(args), strict=True)
        reply = ask(link, b"C" + sent + encode(kwargs, strict=True), job["bytes_max"] + len(sent))
        try:
            return take_reply(reply, args)
        except BadBytes:
            Raised.gone = True
            raise Closed from None

    def take_reply(reply, args):
        kind = reply[:1]
        if kind == b"L":
            Raised.too_long = True
            raise TooLong
        if kind not in (b"R", b"A", b"X"):
            raise BadBytes
        value, at = decode(reply, 1)
        if at < len(reply):
            changed, _ = decode(reply, at)
            if not isinstance(changed, list):
                raise BadBytes
            for into, now in zip(args, changed):
                put_back(into, now)
        if kind == b"R":
            return value
        if kind == b"A":
            if type(value) is not int or not 0 <= value < len(args):
                raise BadBytes
            return args[value]
        raise raised(value)

    def raised(value):
        if not (type(value) is tuple and len(value) == 2 and type(value[0]) is list and value[0] and type(value[1]) is list and all(type(n) is str for n in value[0])):
            raise BadBytes
        error = make_exception(value[0], value[1], trusted)
        if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) and type(error).__name__ not in job["test"]:
            error = RuntimeError(sentence_of(error))      # it would end a loop or map() of the test as if all were done
        Raised.errors.append(error)
        return error

    call.__name__ = call.__qualname__ = job["entry"]
    return call


def sentence_of(error):
    try:
        text = str(error)
    except Exception:
        text = ""
    return type(error).__name__ + (": " + text if text else "")


def failing_line(job, error):
    """The line of the test that an exception passed through."""
    line, at = "", error.__traceback__
    lines = job["test"].split("\n")
    while at:
        if at.tb_frame.f_code.co_filename == "<test>" and 0 < at.tb_lineno <= len(lines):
            line = "line %d of the test: %s" % (at.tb_lineno, lines[at.tb_lineno - 1].strip())
        at = at.tb_next
    return line


def judge(job, error):
    """(verdict, sentence) of an exception that ended a check."""
    if Raised.gone or isinstance(error, Closed):
        return "gone", ""
    if Raised.too_long or isinstance(error, TooLong):
        return "output_limit", "a call returned more than %d bytes, or something nested too deeply" % job["bytes_max"]
    if isinstance(error, NotPlain):
        return "not_plain", "the test passes an argument of type %s" % error
    if any(error is known for known in Raised.errors):
        if is_memory(error):
            return "memory", "the completion raised " + sentence_of(error)
        return "error", "the completion raised " + sentence_of(error)
    if isinstance(error, Failed):
        return "wrong", str(error)
    if isinstance(error, AssertionError):
        return "wrong", failing_line(job, error) or sentence_of(error)
    if isinstance(error, MemoryError):
        return "memory", "the test ran out of memory with what the completion returned"
    return "error", "%s (%s)" % (sentence_of(error), failing_line(job, error) or "in the test")


def load_completion(job, link):
    """None when the completion defines its entry point, else (verdict, sentence)."""
    source = job["completion"] if job["full_script"] else job["prompt"].encode("utf-8", "surrogatepass") + job["completion"]
    limits = (job["cpu_s"], job["memory"], 64 << 20, job["processes"])
    reply = ask(link, b"L" + encode((source, job["entry"], limits, job["bytes_max"])), 1 << 20)
    try:
        kind = reply[:1]
        if kind == b"R":
            return None
        if kind == b"U":
            return "error", "the completion does not define %s" % job["entry"]
        value, _ = decode(reply, 1)
        if kind == b"S":
            return "syntax", str(value)
        error = make_exception(value[0], value[1], {})
        if is_memory(error):
            return "memory", "the completion raised " + sentence_of(error)
        return "error", "the completion raised " + sentence_of(error)
    except (BadBytes, TypeError, IndexError, KeyError):
        Raised.gone = True
        return "gone", ""


def check_apart(job, link, outcome):
    names = {"__name__": "test"}
    try:
        run_canonical(job, names)
    except Exception:
        if job["mode"] == "inputs":
            raise
    proxy = make_proxy(job, link, dict(names))
    if job["mode"] == "inputs":
        check_inputs(job, proxy, names, lambda kind, index, error: outcome.__setitem__(kind, (index,) + judge(job, error)))
    else:
        try:
            run_test(job, proxy, names)
        except BaseException as error:
            outcome["base"] = (-1,) + judge(job, error)
    if Raised.gone:
        outcome["base"] = (-1, "gone", "")


def check_together(job, link, outcome):
    """The completion's interpreter runs the test; what it says is believed when it knows the word that came with the test."""
    word = os.urandom(16).hex()
    request = {key: job[key] for key in ("mode", "task_id", "prompt", "entry", "test", "canonical", "base", "plus", "atol")}
    request["word"] = word
    reply = ask(link, b"T" + encode(request), 1 << 20)
    try:
        if reply[:1] != b"V":
            raise BadBytes
        (said, failures), _ = decode(reply, 1)
        if said != word:
            raise BadBytes
        for kind, index, (verdict, sentence) in failures:
            if kind not in ("base", "plus") or verdict not in ("wrong", "error", "memory") or type(index) is not int or type(sentence) is not str:
                raise BadBytes
            outcome[kind] = (index, verdict, sentence)
    except (BadBytes, TypeError, ValueError):
        Raised.gone = True
        outcome["base"] = (-1, "gone", "")


def clean(text):
    """One line without the addresses of objects, which differ from run to run."""
    import re
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", text[:2000])
    text = "".join(c if c.isprintable() else " " for c in text)
    return text.encode("utf-8", "replace")[:380].decode("utf-8", "ignore")


def check(job, link):
    """The verdict's line: verdict, base, plus, their first failing inputs, whether something opaque was seen, CPU ms, sentence."""
    outcome = {}
    try:
        failure = load_completion(job, link)
        if failure:
            outcome["base"] = outcome["plus"] = (-1,) + failure
        elif job["in_process"]:
            check_together(job, link, outcome)
        else:
            check_apart(job, link, outcome)
    except BaseException as error:
        verdict, sentence = judge(job, error)
        if verdict == "error" and not Raised.errors:
            verdict = "sandbox_fault"
        outcome["base"] = (-1, verdict, sentence)
    spent = 0
    if not Raised.gone and not Raised.too_long:
        try:
            value, _ = decode(ask(link, b"P", 1 << 20), 1)
            spent = value if type(value) is int and 0 <= value < 1 << 31 else 0
        except (BadBytes, Closed, TooLong):
            pass
    if job["mode"] != "inputs" and "base" in outcome:
        outcome["plus"] = outcome["base"]
    base, plus = (outcome.get(kind, (-1, "passed", "")) for kind in ("base", "plus"))
    if base[1] in ("gone", "sandbox_fault"):
        plus = base
    first = base if base[1] != "passed" else plus
    return "\t".join((first[1], base[1], plus[1], str(base[0]), str(plus[0]), "1" if saw_opaque else "0", str(spent), clean(first[2]))) + "\n"


def child(job_fd, link, verdict_fd):
    import resource
    job = read_job(job_fd)
    os.close(job_fd)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"] + 1, job["cpu_s"] + 2))
    sys.setrecursionlimit(5000)
    receive_frame(os, link, 16)                                      # "ready"
    write_all(os, verdict_fd, check(job, link).encode())


def main():
    control = socket.socket(fileno=3)
    source = b""
    while True:
        part = control.recv(1 << 20)
        if not part:
            return
        if part == b"\0":
            break
        source += part
    import marshal
    control.sendall(marshal.dumps(compile(source, "<candidate>", "exec")))
    while True:
        message, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        if not message:
            return
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                child(*fds)
            except BaseException:
                import traceback
                traceback.print_exc()                                # the grader's sentence quotes the end of it
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        for fd in fds:
            os.close(fd)
        control.sendall(b"%d" % os.waitpid(pid, 0)[1])


sys.path[:] = [p for p in sys.path if p] + ["/usr/local/lib/python3.%d/dist-packages" % sys.version_info[1], "/usr/lib/python3/dist-packages"]
signal.signal(signal.SIGINT, signal.SIG_DFL)
main()
