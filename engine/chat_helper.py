"""Renders chats with a model's Jinja2 template. chat_template.c starts this program and talks to it over the socket that is its standard input.

A message is its length (u32, little-endian) and its bytes. First comes the setup {"templates": {name: source}, "special": {name: text}}, answered "R" (ready) or "J" (no Jinja2, with
the reason). Then each request is now_s (u32) and a JSON object, and is answered "T" and the text, "E" and a sentence, or "M" (out of memory, after which this program ends).
The environment of templates is the one of transformers' chat templates.
"""
import sys

sys.path = [p for p in sys.path if p]            # never import from the working folder

import json
import os
import random
import re
import signal
import socket
import struct
from datetime import datetime

CPU_SECONDS = 5


def receive(sock, n):
    data = bytearray()
    while len(data) < n:
        part = sock.recv(min(n - len(data), 1 << 20))
        if not part:
            os._exit(0)                          # the parent is gone
        data += part
    return bytes(data)


def receive_message(sock):
    return receive(sock, struct.unpack("<I", receive(sock, 4))[0])


def send_message(sock, kind, data=b""):
    sock.sendall(struct.pack("<I", len(data) + 1) + kind + data)


def sentence(error):
    """What went wrong, the same in every process: no addresses, no line breaks."""
    what = "it calls itself without end" if isinstance(error, RecursionError) else error      # where Python gives up depends on its version
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", f"{type(error).__name__}: {what}")
    return re.sub(r"\s+", " ", text).encode("utf-8", "replace")[:300].decode("utf-8", "ignore")


class Renderer:
    def __init__(self, setup):
        self.special = setup["special"]
        self.now = 0
        self.sources = setup["templates"]
        self.prepared = {}                       # compiled when a row asks, under the row's limits

    def environment(self):
        from jinja2 import nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """{% generation %} marks the assistant's words for training; here it is its body."""
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

            def body(self, caller):
                return caller()

        def raise_exception(message):
            raise TemplateError(message)

        def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        env.filters["tojson"] = tojson
        env.globals["raise_exception"] = raise_exception
        env.globals["strftime_now"] = lambda form: datetime.fromtimestamp(self.now).strftime(form)
        return env

    def prepare(self, source):
        """The compiled template and whether it loops over message content."""
        env = self.environment()
        return env.from_string(source), loops_over_content(env.parse(source))

    def render(self, request):
        tools = request.get("tools") or None
        kwargs = dict(request.get("chat_template_kwargs") or {})
        name = kwargs.pop("chat_template", None)
        if name is None:
            name = "tool_use" if tools and "tool_use" in self.sources else "default"
        elif name not in self.sources:
            raise LookupError("chat_template_kwargs.chat_template names none of the model's templates: " + ", ".join(sorted(self.sources)))
        if name not in self.prepared:
            self.prepared[name] = self.prepare(self.sources[name])
        template, takes_lists = self.prepared[name]
        variables = dict(self.special)
        variables["add_generation_prompt"] = request.get("add_generation_prompt", True)
        variables.update(kwargs)
        messages = [m if takes_lists else joined(m) for m in request["messages"]]
        variables.update(messages=messages, tools=tools)
        variables.setdefault("documents", None)
        random.seed(0)                           # for |random and lipsum(): a row renders the same in every process
        try:
            return template.render(variables)
        except MemoryError:
            raise
        except Exception:
            variables["messages"] = [with_argument_objects(m) for m in messages]
            if variables["messages"] == messages:
                raise
            refused = sys.exc_info()[1]
        random.seed(0)
        try:
            return template.render(variables)
        except MemoryError:
            raise
        except Exception:
            raise refused


def with_argument_objects(message):
    """The message with the arguments of its tool calls as objects: OpenAI's rows carry them as a JSON string, and templates that walk over them refuse that."""
    def parsed(call):
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(arguments, str):
            return call
        try:
            value = json.loads(arguments)
        except ValueError:
            return call
        return {**call, "function": {**function, "arguments": value}} if isinstance(value, dict) else call

    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return {**message, "tool_calls": [parsed(c) for c in calls]} if isinstance(calls, list) else message


def joined(message):
    """The message with a list of text parts as one string."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


KEEP_ITEMS = {"list", "select", "reject", "selectattr", "rejectattr", "map", "sort", "reverse"}


def loops_over_content(tree):
    """Whether a {% for %} runs over a message's content, also through variables and macro parameters."""
    from jinja2 import nodes
    names = set()

    def is_content(node):
        if isinstance(node, nodes.Name):
            return node.name in names
        if isinstance(node, nodes.Getattr):
            return node.attr == "content"
        if isinstance(node, nodes.Getitem):
            if isinstance(node.arg, nodes.Const):
                return node.arg.value == "content"
            return isinstance(node.arg, nodes.Slice) and is_content(node.node)
        if isinstance(node, nodes.Filter):
            return node.name in KEEP_ITEMS and node.node is not None and is_content(node.node)
        if isinstance(node, nodes.CondExpr):
            return is_content(node.expr1) or (node.expr2 is not None and is_content(node.expr2))
        if isinstance(node, (nodes.Or, nodes.And)):
            return is_content(node.left) or is_content(node.right)
        return False

    macros = {m.name: m for m in tree.find_all(nodes.Macro)}
    while True:
        before = len(names)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and is_content(assign.node):
                names.add(assign.target.name)
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if not macro:
                continue
            names.update(a.name for a, value in zip(macro.args, call.args) if is_content(value))
            names.update(k.key for k in call.kwargs if is_content(k.value))
        if len(names) == before:
            return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def answer(renderer, message):
    """The kind and bytes of the answer to one request."""
    try:
        renderer.now = struct.unpack("<I", message[:4])[0]
        return b"T", renderer.render(json.loads(message[4:])).encode("utf-8")
    except MemoryError:
        return b"M", b""
    except Exception as error:
        return b"E", sentence(error).encode("utf-8")


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)         # the parent decides what an interrupt means
    signal.signal(signal.SIGPROF, signal.SIG_DFL)        # CPU time over: the kernel ends this program
    sock = socket.socket(fileno=0)
    setup = json.loads(receive_message(sock))
    try:
        import jinja2
        if tuple(map(int, jinja2.__version__.split(".")[:2])) < (3, 1):
            raise ImportError(f"it is version {jinja2.__version__}, and 3.1 is the least")
        import jinja2.ext, jinja2.sandbox
    except ImportError as error:
        send_message(sock, b"J", sentence(error).encode("utf-8"))
        return
    renderer = Renderer(setup)
    send_message(sock, b"R")
    while True:
        message = receive_message(sock)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        kind, data = answer(renderer, message)
        signal.setitimer(signal.ITIMER_PROF, 0)
        message = None
        send_message(sock, kind, data)
        data = None
        if kind == b"M":
            return


main()
