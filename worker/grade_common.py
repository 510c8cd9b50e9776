# grade_common.py - what both interpreters of the grading sandbox share: plain data as bytes, frames on a descriptor, and how each kind of task is checked.
# It stands before grade_candidate.py or grade_checker.py in one program, carried in tokenfleet-worker (worker/grader.c).
#
# Plain data is None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range and Ellipsis, nested at most DEPTH_MAX deep; instances of their
# subclasses become the plain type. Iterators and dict views are sent with their elements. Anything else becomes an Opaque: equal to nothing, with no attributes. So an object
# that claims to equal everything is a mere name by the time that a test sees it.
import sys

DEPTH_MAX = 400
ITERATOR_ITEMS_MAX = 10000


class NotPlain(Exception):
    """A value that cannot cross the border (only where `strict` asks)."""


class BadBytes(Exception):
    """Bytes that are no value."""


class TooDeep(Exception):
    """A value nested deeper than DEPTH_MAX, as one that contains itself is."""


class Opaque:
    """Stands for an object that is no plain data."""
    __slots__ = ("type_name",)

    def __init__(self, type_name):
        self.type_name = type_name

    def __eq__(self, other):
        return False

    def __ne__(self, other):
        return True

    __hash__ = object.__hash__

    def __repr__(self):
        return "<%s object>" % self.type_name


KEYS_VIEW, VALUES_VIEW, ITEMS_VIEW = type({}.keys()), type({}.values()), type({}.items())
PLAIN_TYPES = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)


def put_items(tag, items, out, strict, depth):
    out.append(b"%c%x;" % (tag, len(items)))
    for item in items:
        put(item, out, strict, depth)


def put_blob(tag, blob, out):
    out.append(b"%c%x;" % (tag, len(blob)))
    out.append(blob)


def put_iterator(x, out, strict, depth):
    if strict:
        raise NotPlain(type(x).__name__)
    items, ended = [], False
    for _ in range(ITERATOR_ITEMS_MAX):
        try:
            items.append(next(x))
        except StopIteration:
            ended = True
            break
    put_items(73, items, out, strict, depth)                       # I
    out.append(b"T" if ended else b"F")


def put(x, out, strict, depth):
    if depth > DEPTH_MAX:
        raise TooDeep
    kind = type(x)
    if x is None:
        out.append(b"N")
    elif kind is bool:
        out.append(b"T" if x else b"F")
    elif kind is int:
        out.append(b"i%x;" % x)
    elif kind is str:
        put_blob(115, x.encode("utf-8", "surrogatepass"), out)       # s
    elif kind is float:
        out.append(b"f%s;" % x.hex().encode())
    elif kind is list:
        put_items(108, x, out, strict, depth + 1)                    # l
    elif kind is tuple:
        put_items(116, x, out, strict, depth + 1)                    # t
    elif kind is dict:
        out.append(b"d%x;" % len(x))
        for key, value in x.items():
            put(key, out, strict, depth + 1)
            put(value, out, strict, depth + 1)
    elif kind is set:
        put_items(83, x, out, strict, depth + 1)                     # S
    elif kind is frozenset:
        put_items(90, x, out, strict, depth + 1)                     # Z
    elif kind is bytes:
        put_blob(98, x, out)                                         # b
    elif kind is bytearray:
        put_blob(121, bytes(x), out)                                 # y
    elif kind is complex:
        out.append(b"c%s,%s;" % (x.real.hex().encode(), x.imag.hex().encode()))
    elif kind is range:
        out.append(b"r%x,%x,%x;" % (x.start, x.stop, x.step))
    elif x is Ellipsis:
        out.append(b"E")
    elif strict:
        raise NotPlain(kind.__name__)
    elif issubclass(kind, PLAIN_TYPES):
        put(base_value(x), out, strict, depth)
    elif kind is KEYS_VIEW:
        put_items(75, list(x), out, strict, depth + 1)               # K
    elif kind is VALUES_VIEW:
        put_items(86, list(x), out, strict, depth + 1)               # V
    elif kind is ITEMS_VIEW:
        put_items(77, list(x), out, strict, depth + 1)               # M
    elif hasattr(kind, "__next__"):
        put_iterator(x, out, strict, depth + 1)
    else:
        put_blob(79, str(kind.__name__)[:100].encode("utf-8", "replace"), out)     # O


def base_value(x):
    """The plain value inside an instance of a subclass, whatever methods that subclass has."""
    for base in PLAIN_TYPES:
        if isinstance(x, base) and issubclass(type(x), base):
            break
    if base is int:
        return int.__int__(x)
    if base is float:
        return float.fromhex(float.hex(x))
    if base is complex:
        return complex(complex.real.__get__(x), complex.imag.__get__(x))
    if base is str:
        return str.__str__(x) if type(str.__str__(x)) is str else "".join(str.__iter__(x))
    if base is bytes or base is bytearray:
        return base(base.__iter__(x))
    if base is dict:
        return dict(dict.items(x))
    return base(base.__iter__(x))


def encode(x, strict=False):
    out = []
    put(x, out, strict, 0)
    return b"".join(out)


def get_number(data, at):
    end = data.index(b";", at)
    return int(data[at:end], 16), end + 1


def get_items(data, at, depth):
    count, at = get_number(data, at)
    if not 0 <= count <= len(data) - at:
        raise BadBytes
    items = []
    for _ in range(count):
        item, at = get(data, at, depth)
        items.append(item)
    return items, at


def get_blob(data, at):
    count, at = get_number(data, at)
    if not 0 <= count <= len(data) - at:
        raise BadBytes
    return data[at:at + count], at + count


def unended(items):
    yield from items
    raise RuntimeError("the completion returned an iterator of more than %d items" % ITERATOR_ITEMS_MAX)


saw_opaque = False                           # a value that was no plain data came in


def get(data, at, depth=0):
    global saw_opaque
    if depth > DEPTH_MAX or at >= len(data):
        raise BadBytes
    tag = data[at]
    at += 1
    if tag == 78:                                                    # N
        return None, at
    if tag == 84:                                                    # T
        return True, at
    if tag == 70:                                                    # F
        return False, at
    if tag == 105:                                                   # i
        return get_number(data, at)
    if tag == 115:                                                   # s
        blob, at = get_blob(data, at)
        return blob.decode("utf-8", "surrogatepass"), at
    if tag == 102:                                                   # f
        end = data.index(b";", at)
        return float.fromhex(data[at:end].decode()), end + 1
    if tag == 108:                                                   # l
        return get_items(data, at, depth + 1)
    if tag == 116:                                                   # t
        items, at = get_items(data, at, depth + 1)
        return tuple(items), at
    if tag == 100:                                                   # d
        count, at = get_number(data, at)
        if not 0 <= count <= len(data) - at:
            raise BadBytes
        made = {}
        for _ in range(count):
            key, at = get(data, at, depth + 1)
            made[key], at = get(data, at, depth + 1)
        return made, at
    if tag == 83:                                                    # S
        items, at = get_items(data, at, depth + 1)
        return set(items), at
    if tag == 90:                                                    # Z
        items, at = get_items(data, at, depth + 1)
        return frozenset(items), at
    if tag == 98:                                                    # b
        return get_blob(data, at)
    if tag == 121:                                                   # y
        blob, at = get_blob(data, at)
        return bytearray(blob), at
    if tag == 99:                                                    # c
        end = data.index(b";", at)
        real, imag = data[at:end].decode().split(",")
        return complex(float.fromhex(real), float.fromhex(imag)), end + 1
    if tag == 114:                                                   # r
        end = data.index(b";", at)
        start, stop, step = data[at:end].split(b",")
        return range(int(start, 16), int(stop, 16), int(step, 16)), end + 1
    if tag == 69:                                                    # E
        return Ellipsis, at
    saw_opaque = True
    if tag == 75:                                                    # K
        items, at = get_items(data, at, depth + 1)
        return dict.fromkeys(items).keys(), at
    if tag == 86:                                                    # V
        items, at = get_items(data, at, depth + 1)
        return dict(enumerate(items)).values(), at
    if tag == 77:                                                    # M
        items, at = get_items(data, at, depth + 1)
        return dict(items).items(), at
    if tag == 73:                                                    # I
        items, at = get_items(data, at, depth + 1)
        ended, at = get(data, at, depth + 1)
        return (iter(items) if ended else unended(items)), at
    if tag == 79:                                                    # O
        blob, at = get_blob(data, at)
        return Opaque(blob.decode("utf-8", "replace")), at
    raise BadBytes


def decode(data, at=0):
    """(value, where it ends). Anything that is wrong with the bytes is BadBytes."""
    try:
        return get(data, at)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise BadBytes from None


# ---- frames: eight bytes of length, then as many ----

class Closed(BaseException):
    """The other side is gone. No `except Exception` of a test catches it."""


class TooLong(BaseException):
    """A frame longer than was allowed."""


def write_all(posix, fd, data):
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view[:1 << 20]):]


def read_exactly(posix, fd, n):
    parts = []
    while n:
        part = posix.read(fd, min(n, 1 << 20))
        if not part:
            raise Closed
        parts.append(part)
        n -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def send_frame(posix, fd, data):
    try:
        write_all(posix, fd, len(data).to_bytes(8, "little") + data)
    except OSError:
        raise Closed from None


def receive_frame(posix, fd, bytes_max):
    try:
        n = int.from_bytes(read_exactly(posix, fd, 8), "little")
        if n > bytes_max:
            raise TooLong
        return read_exactly(posix, fd, n)
    except OSError:
        raise Closed from None


# ---- checking ----

def is_memory(error):
    """MemoryError, or a system call that found none (mmap, say)."""
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno == 12


class Failed(Exception):
    """An input whose answer is not the canonical solution's."""


# EvalPlus's exceptions, by entry point (its module evalplus/eval/_special_oracle).
SET_TASKS = ("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array", "find_dissimilar", "Diff")
NOT_NONE_TASKS = ("check_str", "text_match_three", "text_starta_endb")


def pyramid_surface(base, height):
    """Of a square pyramid whose height is that of its apex, rounded."""
    return round(base * base + 2 * base * ((base / 2) ** 2 + height ** 2) ** 0.5)


def digit_distance(left, right):
    """The sum of the digits' distances, the shorter number filled with zeros."""
    left, right = str(left), str(right)
    width = max(len(left), len(right))
    return sum(abs(int(a) - int(b)) for a, b in zip(left.zfill(width), right.zfill(width)))


def all_floats(x):
    if isinstance(x, float):
        return True
    return isinstance(x, (list, tuple)) and bool(x) and all(isinstance(item, float) for item in x)


def are_close(got, want, atol):
    """numpy.allclose(got, want, rtol=1e-07, atol=atol), for numbers and (nested) lists of them."""
    if isinstance(want, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(got) == len(want) and all(are_close(g, w, atol) for g, w in zip(got, want))
    if isinstance(want, (str, bytes)) or isinstance(got, (str, bytes)):
        return False
    if got == want:
        return True
    return abs(got - want) <= atol + 1e-07 * abs(want) and abs(want) != float("inf")


def same_answer(task_id, entry, args, got, want, atol):
    """EvalPlus's oracle: equality, with its tolerance for floats and its exceptions. (does it hold, the tolerance from now on)."""
    import math
    exact = got == want
    if task_id.startswith("Mbpp/"):
        if entry == "are_equivalent":
            exact = True
        elif entry == "sum_div":
            exact = exact or got == 0
        elif entry == "surface_Area":
            exact = exact or abs(got - pyramid_surface(*args)) <= atol
        elif entry == "digit_distance_nums":
            exact = exact or got == digit_distance(*args)
        elif entry in SET_TASKS:
            exact = set(got) == set(want)
        elif entry in NOT_NONE_TASKS:
            exact = (got if isinstance(got, bool) else got is not None) == (want is not None)
    elif entry == "find_zero":
        return abs(sum(coefficient * math.pow(got, power) for power, coefficient in enumerate(args[0]))) <= atol, atol
    if atol == 0 and all_floats(want):
        atol = 1e-6
    if not exact and atol != 0:
        exact = type(got) is type(want) and are_close(got, want, atol)
    return bool(exact), atol


def run_canonical(job, names):
    """Put what the task itself defines (prompt and canonical solution) into `names`."""
    exec(compile(job["prompt"] + job["canonical"], "<canonical>", "exec", dont_inherit=True), names)


def check_inputs(job, call, names, report):
    """Both sets of inputs, each up to its first failure; `report(kind, index, exception)` hears of it."""
    import copy
    import json
    wanted = names[job["entry"]]
    for kind in ("base", "plus"):
        atol = job["atol"]
        for index, args in enumerate(json.loads(job[kind] or "[]")):
            if job["task_id"].startswith("Mbpp/"):
                args = mbpp_input(job["task_id"], args)
            want = wanted(*copy.deepcopy(args))
            try:
                got = call(*args)
                try:
                    holds, atol = same_answer(job["task_id"], job["entry"], args, got, want, atol)
                except Exception:                                    # an answer that cannot even be compared
                    holds = False
                if not holds:
                    raise Failed("%s input %d: the answer is not the canonical solution's" % (kind, index))
            except BaseException as failure:
                report(kind, index, failure)
                break


# JSON has no tuples, sets and complex numbers: what the inputs of these MBPP+ tasks are to hold, by task number (evalplus/data/mbpp).
MBPP_SHAPES = (
    ("arguments are tuples", (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809)),
    ("arguments are lists of tuples", (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    ("the first is a list of tuples", (75, 413, 444, 753)),
    ("the second is a tuple", (106, 750)),
    ("the first is a list of sets", (115,)),
    ("a float and a complex number", (124,)),
    ("the first is a tuple", (250, 307, 405, 446, 617, 720, 763, 808)),
    ("arguments are tuples of tuples", (259, 401, 445)),
    ("the first is a tuple that may hold tuples", (278,)),
    ("the first is a dict of tuples", (722,)),
    ("a complex number", (252,)),
    ("tuples all the way", (580, 615, 791)),
)


def all_tuples(x):
    return tuple(map(all_tuples, x)) if isinstance(x, list) else x


def mbpp_input(task_id, args):
    number = int(task_id.split("/")[-1])
    shape = next((name for name, numbers in MBPP_SHAPES if number in numbers), None)
    first, rest = (args[0], list(args[1:])) if args else (None, [])
    if shape == "arguments are tuples":
        return [tuple(a) for a in args]
    if shape == "arguments are lists of tuples":
        return [list(map(tuple, a)) for a in args]
    if shape == "the first is a list of tuples":
        return [list(map(tuple, first))] + rest
    if shape == "the second is a tuple":
        return [first, tuple(rest[0])]
    if shape == "the first is a list of sets":
        return [[set(item) if isinstance(item, list) and item else {} for item in first]]
    if shape == "a float and a complex number":
        return [float(first), complex(rest[0])]
    if shape == "the first is a tuple":
        return [tuple(first)] + rest
    if shape == "arguments are tuples of tuples":
        return [tuple(map(tuple, a)) for a in args]
    if shape == "the first is a tuple that may hold tuples":
        return [tuple(tuple(item) if isinstance(item, list) else item for item in first)]
    if shape == "the first is a dict of tuples":
        return [{key: tuple(value) for key, value in first.items()}] + rest
    if shape == "a complex number":
        return [complex(first)]
    if shape == "tuples all the way":
        return list(map(all_tuples, args))
    return args


def run_test(job, call, names):
    """What a task of mode check or asserts runs; returns when every check held."""
    code = compile(job["test"], "<test>", "exec", dont_inherit=True)
    names[job["entry"]] = call
    exec(code, names)
    if job["mode"] == "check":
        names["check"](call)
