"""Answer and error lines as a client of OpenAI's batch format reads them.

Where the `openai` package is (the folder OPENAI_PACKAGE names, or build/pypi, which ops/setup --tests fills where the package index can be reached), each body must validate
strictly as that package's own type. In any case the shape below must hold, which has the same required fields."""
import os
import sys

import fleet
from fleet import check

PACKAGE = os.environ.get("OPENAI_PACKAGE") or str(fleet.ROOT / "build" / "pypi")
if os.path.isdir(os.path.join(PACKAGE, "openai")):
    sys.path.append(PACKAGE)
try:
    import openai
    from openai.types import Completion
    from openai.types.batch_error import BatchError
    from openai.types.chat import ChatCompletion
except ImportError as problem:
    openai, missing = None, problem

NUMBER, NONE = (int, float), type(None)
TOP_LOGPROB = {"token": str, "logprob": NUMBER, "bytes": [int]}
USAGE = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
TEXT = {"id": str, "object": "text_completion", "created": int, "model": str, "usage": USAGE, "choices": [{
    "text": str, "index": int, "finish_reason": ("stop", "length"),
    "logprobs": (NONE, {"text_offset": [int], "token_logprobs": [NUMBER], "tokens": [str], "top_logprobs": (NONE, [dict])})}]}
CHAT = {"id": str, "object": "chat.completion", "created": int, "model": str, "usage": USAGE, "choices": [{
    "index": int, "finish_reason": ("stop", "length"), "message": {"role": "assistant", "content": str, "refusal": NONE},
    "logprobs": (NONE, {"content": [{**TOP_LOGPROB, "top_logprobs": [TOP_LOGPROB]}], "refusal": NONE})}]}


def describe():
    return f"openai {openai.__version__}'s types and the shape of our own" if openai else f"the shape of our own; the openai package is not in {PACKAGE} ({missing})"


def fits(value, shape):
    """Whether a value has a shape: a type, a literal, a list of one shape, an object of fields that must be there (more may be), or a choice."""
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], one) for key, one in shape.items())
    if isinstance(shape, type):
        return isinstance(value, shape) and not (isinstance(value, bool) and shape is not bool)
    return value == shape


def without_first_null(body):
    """An echoed prompt's first token has no log-probability: null, as the service itself answers, where the package's type knows numbers only."""
    choices = []
    for choice in body["choices"]:
        logprobs = choice.get("logprobs")
        if logprobs and (logprobs.get("token_logprobs") or [0])[0] is None:
            logprobs = {**logprobs, "token_logprobs": logprobs["token_logprobs"][1:]}
            if logprobs["top_logprobs"]:
                check(logprobs["top_logprobs"][0] is None, "the first token's top_logprobs are not null")
                logprobs["top_logprobs"] = logprobs["top_logprobs"][1:]
            choice = {**choice, "logprobs": logprobs}
        choices.append(choice)
    return {**body, "choices": choices}


def validated(kind, value):
    try:
        return kind.model_validate(value, strict=True)
    except ValueError as problem:
        raise fleet.Failure(f"not a {kind.__name__}: {problem}\n{value}") from None


def check_line(line):
    check(list(line) == ["id", "custom_id", "response", "error"], f"the line has the fields {list(line)}")
    check(fits(line["id"], str) and line["id"] and fits(line["custom_id"], str) and line["custom_id"], f"{line['id']} {line['custom_id']}")


def check_answer_line(line):
    check_line(line)
    response = line["response"]
    check(line["error"] is None and list(response) == ["status_code", "request_id", "body"], f"{line}")
    check(response["status_code"] == 200 and fits(response["request_id"], str), f"{response}")
    is_chat = response["body"].get("object") == "chat.completion"
    body = without_first_null(response["body"])
    check(fits(body, CHAT if is_chat else TEXT), f"not the shape of a {'chat' if is_chat else 'text'} completion: {body}")
    if openai:
        read = validated(ChatCompletion if is_chat else Completion, body)
        first = read.choices[0]
        check(isinstance(first.message.content if is_chat else first.text, str), f"{read}")


def check_error_line(line):
    check_line(line)
    error = line["error"]
    check(line["response"] is None and list(error) == ["code", "message", "line", "offset"], f"{line}")
    check(fits(error, {"code": str, "message": str, "line": int, "offset": int}) and error["code"] and error["message"] and error["line"] > 0, f"{error}")
    if openai:
        validated(BatchError, error)
