#!/usr/bin/env python3
"""Writes chats/: 100 chat requests (requests.jsonl) and what transformers renders of each with every template (vectors.json).

    python3 make_chat_vectors.py FOLDER                 (transformers 5.17.0, jinja2 3.1.6; FOLDER is what ops/get-tokenizers filled, its templates are not ours to ship)
    python3 make_chat_vectors.py FOLDER --show NAME I   what is rendered of request I

vectors.json: {"now": s, "templates": {NAME: [CRC-32 of the text, null where rendering fails]}}. A template that does not iterate message content gets text parts joined with newlines, as
ops/DESIGN.md says, and one that refuses the JSON string of a tool call's arguments gets the object; all else is handed to apply_chat_template as it is.
"""
import json
import re
import sys
import tempfile
import zlib
from datetime import datetime, timezone
from pathlib import Path

import transformers.utils.chat_template_utils as chat_template_utils
from transformers import PreTrainedTokenizerFast

from chat_conversations import requests

HERE = Path(__file__).resolve().parent
OUT = HERE / "chats"
NOW = 1753963200
CONFIG = {"bos_token": "<bos>", "eos_token": {"content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "__type": "AddedToken"}, "pad_token": None}
LISTS = re.compile(r"for \w+ in (message|m|msg|msg_obj)(\.content|\[['\"]content['\"]\])|for \w+ in (content|text)\b")


class Clock(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.fromtimestamp(NOW, timezone.utc).replace(tzinfo=None)


def joined(message):
    content = message.get("content")
    return {**message, "content": "\n".join(p["text"] for p in content)} if isinstance(content, list) else message


def with_argument_objects(message):
    """The message with the arguments of its tool calls as objects."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append({**call, "function": {**call["function"], "arguments": value}})
    return {**message, "tool_calls": calls}


def render(tokenizer, source, request):
    messages = request["messages"] if LISTS.search(source) else [joined(m) for m in request["messages"]]
    rest = dict(tools=request.get("tools"), add_generation_prompt=request.get("add_generation_prompt", True), tokenize=False, **request.get("chat_template_kwargs", {}))
    try:
        return tokenizer.apply_chat_template(messages, **rest)
    except Exception as error:  # noqa: BLE001  what a template raises is part of what is recorded
        try:
            return tokenizer.apply_chat_template([with_argument_objects(m) for m in messages], **rest)
        except Exception:  # noqa: BLE001
            return error


def main():
    chat_template_utils.datetime = Clock
    public, show = Path(sys.argv[1]) / "templates", sys.argv[3:5] if sys.argv[2:3] == ["--show"] else None
    all_requests = requests()
    paths = sorted(OUT.glob("*.jinja")) + sorted(public.glob("*.jinja"))
    vectors = {"now": NOW, "templates": {}}
    for path in paths:
        if show and path.stem != show[0]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_text((HERE / "tokenizers/qwen2.json").read_text())
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps(CONFIG))
            (Path(folder) / "chat_template.jinja").write_text(path.read_text())
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        texts = [render(tokenizer, path.read_text(), r) for r in all_requests]
        if show:
            print(json.dumps(all_requests[int(show[1])], ensure_ascii=False, indent=1), repr(texts[int(show[1])]), texts[int(show[1])], sep="\n")
            return
        vectors["templates"][path.stem] = [zlib.crc32(t.encode()) if isinstance(t, str) else None for t in texts]
        failed = [t for t in texts if not isinstance(t, str)]
        print(f"{path.stem}: {len(failed)} of {len(texts)} fail {set(type(f).__name__ + ': ' + str(f)[:50] for f in failed)}")
    (OUT / "requests.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in all_requests))
    (OUT / "vectors.json").write_text(json.dumps(vectors, separators=(",", ":")))


main()
