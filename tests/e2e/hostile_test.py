#!/usr/bin/python3
"""Row isolation at the byte level: hostile lines among good rows.

HOSTILE holds a line for each rule of ops/DESIGN.md section 5 with what its error line must say; between them stand good rows at the rules' edges. Every good row
must answer as it does in a job of good rows alone, every bad one must have one error line with its code, line, byte and custom_id, and the bytes of OUT and ERR
must not depend on the workers, on how the job came in, or on a kill. Bodies are also read by the `openai` package's own types where it is there (openai_types.py)."""
import concurrent.futures
import gzip
import json
import pathlib
import re
import shutil
import struct
import subprocess
import time

import fleet
import openai_types
from fleet import DEMO, SANITIZED, check

CONTEXT, VOCAB = 8192, 1024            # of the demo model
START = 0                              # a fault of the whole line, or one that only the model shows: the place is the line's first byte
ROW = "row-{line}"                     # the custom_id of a line that has none, or none that can be read
COMPLETIONS, CHATS = b'"/v1/completions"', b'"/v1/chat/completions"'
USER = b'"messages":[{"role":"user","content":"hi"}]'


def envelope(method=b'"POST"', url=COMPLETIONS, body=b'{"prompt":"a"}', more=b""):
    return b'{"custom_id":"e{line}","method":%s,"url":%s,"body":%s%s}' % (method, url, body, more)


def text(fields):
    return b'{"prompt":"a",%s}' % fields


def chat(fields=b"", messages=USER):
    return b"{%s%s}" % (messages, b"," + fields if fields else b"")


def content(value):
    return b'{"messages":[{"role":"user","content":%s}]}' % value


# (line, code, where, words[, custom_id]): where is the byte in the line, or the bytes that stand there; words must be in the sentence. {line} becomes the line's number.
JSON_FAULTS = [
    (b'{"prompt":"a"', 13, "ends early"),
    (b'{', 1, "ends early"),
    (b'{"prompt":"a', b'"a', "string without an end"),
    (b'{"prompt":"a",}', b'}', "key in double quotes"),
    (b'{"prompt":[1,2,]}', b']', "a value"),
    (b'{"prompt":"a","temperature":NaN}', b'NaN', "a value"),
    (b'{"prompt":"a","temperature":-Infinity}', b'Infinity', "digit"),
    (b'{"prompt":"a","prompt":"b"}', b'"prompt":"b"', 'the key "prompt" twice'),
    (b'{"prompt":"a","pr\\u006fmpt":"b"}', b'"pr\\u', "twice"),
    (b'{"prompt":"a","metadata":{"k":[{"x":1,"x":2}]}}', b'"x":2', '"x" twice'),
    (b'{"prompt":"a","user":' + b"[" * 200 + b"]" * 200 + b"}", 21 + 127, "nested more than 128"),
    (b'{"prompt":"a"} {"prompt":"b"}', b'{"prompt":"b"', "its end"),
    (b'{"prompt":"a"}\r{"prompt":"b"}', b'{"prompt":"b"', "its end"),
    (b'{"prompt":"a"},', b',', "its end"),
    (b'{"prompt":"a\tb"}', b'\t', "\\u0009"),
    (b'{"prompt":"a\0b"}', b'\0', "0x00"),
    (b'\0\0\0\0', 0, "0x00"),
    (b'{"prompt":"x\\ud83d"}', b'\\ud83d', "half of a surrogate pair"),
    (b'{"prompt":"\\ude00"}', b'\\ude00', "half of a surrogate pair"),
    (b'{"prompt":"\\ud83dx"}', b'\\ud83d', "half of a surrogate pair"),
    (b'\xef\xbb\xbf{"prompt":"a"}', 0, "0xEF"),
    (b'{"prompt":\xe2\x80\xa8"a"}', b'\xe2', "0xE2"),
    (b'\xc2\xa0', 0, "0xC2"),
    (b'\x0b', 0, "0x0B"),
    (b"{'prompt':\"a\"}", b"'", "key in double quotes"),
    (b'{prompt:"a"}', b'p', "key in double quotes"),
    (b'{"prompt" "a"}', b'"a', "':'"),
    (b'{"prompt":"a" "n":1}', b'"n"', "',' or '}'"),
    (b'{"prompt":[1 2]}', b'2', "',' or ']'"),
    (b'{"n":01,"prompt":"a"}', b'01', "leading zero"),
    (b'{"n":+1,"prompt":"a"}', b'+', "a value"),
    (b'{"top_p":.5,"prompt":"a"}', b'.', "a value"),
    (b'{"top_p":1.,"prompt":"a"}', b',', "after the point"),
    (b'{"n":0x1,"prompt":"a"}', b'x', "',' or '}'"),
    (b'{"echo":True,"prompt":"a"}', b'T', "a value"),
    (b'{"prompt":"a\\x"}', b'\\x', "backslash"),
    (b'{"prompt":"\\u12g4"}', b'\\u', "four hex digits"),
    (b'{"a":/* c */1}', b'/', "a value"),
    (b'# a comment', 0, "a value"),
    (b'custom_id,prompt', 0, "a value"),
    (b'', None, None),                 # blank: no row at all
]

UTF8_FAULTS = [
    (b'{"prompt":"\xc0\x80"}', b'\xc0', "0xC0"),
    (b'{"prompt":"\xe0\x80\xaf"}', b'\xe0', "0xE0"),
    (b'{"prompt":"\xed\xa0\x80"}', b'\xed', "0xED"),
    (b'{"prompt":"\xf4\x90\x80\x80"}', b'\xf4', "0xF4"),
    (b'{"prompt":"caf\xe9"}', b'\xe9', "0xE9"),
    (b'{"prompt":"\x80"}', b'\x80', "0x80"),
    (b'{"prompt":"\xe2\x82', b'\xe2', "0xE2"),
    (b'{"\xff":1,"prompt":"a"}', b'\xff', "0xFF"),
    (b'{{{{ no JSON, but that is found later \xfe', b'\xfe', "0xFE"),
]

INVALID_REQUESTS = [
    (b'[]', 0, "must be a JSON object"),
    (b' 42', b'42', "must be a JSON object"),
    (b'"prompt"', 0, "must be a JSON object"),
    (b'null', 0, "must be a JSON object"),
    (b'{}', 0, "neither prompt nor messages"),
    (b'{"prompt":null}', 0, "neither prompt nor messages"),
    (b'{"prompt":"a",%s}' % USER, b'[{"role"', "both prompt and messages"),
    # custom_id
    (b'{"custom_id":"","prompt":"a"}', b'""', "custom_id"),
    (b'{"custom_id":7,"prompt":"a"}', b'7', "custom_id must be a string"),
    (b'{"custom_id":["a"],"prompt":"a"}', b'[', "custom_id must be a string"),
    (b'{"custom_id":"%s","prompt":"a"}' % (b"x" * 513), b'"x', "1 to 512 bytes"),
    (b'{"custom_id":"%s","prompt":"a"}' % ("\u00e9".encode() * 257), b'"\xc3', "1 to 512 bytes"),
    # the envelope
    (envelope(method=b'"GET"'), b'"GET"', 'method must be "POST"', "e{line}"),
    (envelope(method=b'"post"'), b'"post"', "method", "e{line}"),
    (envelope(method=b'null'), 0, "method is missing", "e{line}"),
    (envelope(url=b'null'), 0, "url is missing", "e{line}"),
    (envelope(url=b'5'), b'5,', "url must be a string", "e{line}"),
    (b'{"custom_id":"e{line}","method":"POST","url":"/v1/completions"}', 0, "body is missing", "e{line}"),
    (envelope(body=b'[]'), b'[]', "body must be an object", "e{line}"),
    (envelope(body=b'"{}"'), b'"{}"', "body must be an object", "e{line}"),
    (envelope(body=b'{}'), b'{}', "prompt is missing", "e{line}"),
    (envelope(body=b'{%s}' % USER), b'[{"role"', "messages does not belong", "e{line}"),
    (envelope(url=CHATS), b'"a"}', "prompt does not belong", "e{line}"),
    (envelope(url=CHATS, body=b'{}'), b'{}', "messages is missing", "e{line}"),
    (envelope(more=b',"prompt":"b"'), b'"prompt":"b"', "beside its body", "e{line}"),
    # prompts
    (b'{"prompt":1}', b'1', "prompt must be a string or a list"),
    (b'{"prompt":{"text":"a"}}', b'{"text', "prompt must be a string or a list"),
    (b'{"prompt":[]}', b'[', "prompt must hold at least one"),
    (b'{"prompt":[1,-1]}', b'-1', "prompt[1]"),
    (b'{"prompt":[2147483648]}', b'2147', "prompt[0]"),
    (b'{"prompt":[1.0]}', b'1.0', "prompt[0]"),
    (b'{"prompt":[5,1e3]}', b'1e3', "prompt[1]"),
    (b'{"prompt":[5,null]}', b'null', "prompt[1]"),
    (b'{"prompt":""}', START, "the prompt is empty"),
    (b'{"prompt":[5,%d]}' % VOCAB, START, f"prompt id {VOCAB} at position 1"),
    (b'{"prompt":[2147483647]}', START, "prompt id 2147483647 at position 0"),
    # messages
    (b'{"messages":[]}', b'[]', "messages must hold at least one"),
    (b'{"messages":"hi"}', b'"hi"', "messages must be a list"),
    (b'{"messages":["hi"]}', b'"hi"', "messages[0] must be an object"),
    (b'{"messages":[{"content":"a"}]}', b'{"content"', "messages[0].role"),
    (b'{"messages":[{"role":"","content":"a"}]}', b'{"role"', "messages[0].role"),
    (b'{"messages":[{"role":["user"],"content":"a"}]}', b'{"role"', "messages[0].role"),
    (b'{"messages":[{"role":"user"}]}', b'{"role"', "messages[0].content is missing"),
    (content(b'null'), b'{"role"', "messages[0].content is missing"),
    (content(b'7'), b'7', "messages[0].content"),
    (content(b'{"text":"a"}'), b'{"text"', "messages[0].content"),
    (content(b'[]'), b'[]}', "messages[0].content must hold at least one part"),
    (content(b'["a"]'), b'"a"', "content[0] must be an object"),
    (content(b'[{"text":"a"}]'), b'{"text"', "content[0].type"),
    (content(b'[{"type":"text"}]'), b'{"type"', "content[0].text"),
    (b'{"messages":[{"role":"assistant","tool_calls":{}}]}', b'{}', "tool_calls must be a list"),
    (chat(b'"tools":{}'), b'{}', "tools must be a list"),
    (chat(b'"chat_template_kwargs":[]'), b'[]', "chat_template_kwargs must be an object"),
    (chat(b'"add_generation_prompt":1'), b'1', "add_generation_prompt must be true or false"),
    (text(b'"tools":[]'), b'[]', "tools has no meaning for a prompt"),
    # sampling, below and above
    (text(b'"temperature":-0.01'), b'-0.01', "temperature must be a number from 0 to 100"),
    (text(b'"temperature":100.5'), b'100.5', "temperature"),
    (text(b'"temperature":"hot"'), b'"hot"', "temperature"),
    (text(b'"temperature":1e999'), b'1e999', "temperature"),
    (text(b'"top_p":0'), b'0', "top_p must be a number above 0"),
    (text(b'"top_p":1.01'), b'1.01', "top_p"),
    (text(b'"top_p":true'), b'true', "top_p"),
    (text(b'"top_k":-2'), b'-2', "top_k must be an integer from -1"),
    (text(b'"top_k":2147483648'), b'2147', "top_k"),
    (text(b'"top_k":1.5'), b'1.5', "top_k"),
    (text(b'"min_p":-0.1'), b'-0.1', "min_p"),
    (text(b'"min_p":1.1'), b'1.1', "min_p"),
    (text(b'"min_p":"0"'), b'"0"', "min_p"),
    (text(b'"repetition_penalty":0'), b'0', "repetition_penalty"),
    (text(b'"repetition_penalty":101'), b'101', "repetition_penalty"),
    (text(b'"repetition_penalty":[1]'), b'[1]', "repetition_penalty"),
    (text(b'"presence_penalty":-2.1'), b'-2.1', "presence_penalty"),
    (text(b'"presence_penalty":2.1'), b'2.1', "presence_penalty"),
    (text(b'"presence_penalty":{}'), b'{}', "presence_penalty"),
    (text(b'"frequency_penalty":-2.1'), b'-2.1', "frequency_penalty"),
    (text(b'"frequency_penalty":2.1'), b'2.1', "frequency_penalty"),
    (text(b'"frequency_penalty":"a"'), b'"a"}', "frequency_penalty"),
    (text(b'"seed":18446744073709551616'), b'1844', "seed must be an integer of 64 bits"),
    (text(b'"seed":-9223372036854775809'), b'-922', "seed"),
    (text(b'"seed":1.5'), b'1.5', "seed"),
    # lengths and counts
    (text(b'"max_tokens":0'), b'0', "max_tokens must be an integer from 1"),
    (text(b'"max_tokens":-1,"echo":true'), b'-1', "max_tokens must be an integer from 0"),
    (text(b'"max_tokens":2147483648'), b'2147', "max_tokens"),
    (text(b'"max_tokens":16.0'), b'16.0', "max_tokens"),
    (text(b'"max_tokens":"16"'), b'"16"', "max_tokens"),
    (text(b'"max_completion_tokens":0'), b'0', "max_completion_tokens"),
    (text(b'"max_completion_tokens":false'), b'false', "max_completion_tokens"),
    (text(b'"min_tokens":-1'), b'-1', "min_tokens"),
    (text(b'"min_tokens":17'), b'17', "min_tokens must be at most max_tokens, which is 16"),
    (text(b'"min_tokens":null,"max_tokens":4,"min_tokens2":1,"n":0'), b'0}', "n must be an integer from 1 to 1024"),
    (text(b'"n":1025'), b'1025', "n must be an integer from 1 to 1024"),
    (text(b'"n":"2"'), b'"2"', "n must be an integer"),
    (text(b'"best_of":1,"n":2'), b'1,', "best_of must not be below n"),
    (chat(b'"min_tokens":9000'), START, "min_tokens is 9000"),
    # logprobs
    (text(b'"logprobs":21'), b'21', "logprobs must be an integer from 0 to 20"),
    (text(b'"logprobs":-1'), b'-1', "logprobs"),
    (text(b'"logprobs":true'), b'true', "logprobs"),
    (text(b'"prompt_logprobs":21'), b'21', "prompt_logprobs"),
    (text(b'"prompt_logprobs":-1'), b'-1', "prompt_logprobs"),
    (text(b'"top_logprobs":1'), b'1', "top_logprobs has no meaning for a prompt"),
    (chat(b'"logprobs":3'), b'3', "logprobs must be true or false"),
    (chat(b'"top_logprobs":3'), b'3', "top_logprobs needs logprobs: true"),
    (chat(b'"logprobs":true,"top_logprobs":21'), b'21', "top_logprobs must be an integer from 0 to 20"),
    # stops and switches
    (text(b'"stop":""'), b'""', "stop string must have 1 to 1024 bytes"),
    (text(b'"stop":["x",""]'), b'""', "stop string must have 1 to 1024 bytes"),
    (text(b'"stop":"%s"' % (b"s" * 1025)), b'"ss', "stop string must have 1 to 1024 bytes"),
    (text(b'"stop":[%s]' % b",".join(b'"%d"' % i for i in range(17))), b'["0"', "stop must hold at most 16"),
    (text(b'"stop":[5]'), b'5', "stop must hold strings"),
    (text(b'"stop":5'), b'5', "stop must be a string or a list"),
    (text(b'"stop_token_ids":5'), b'5', "stop_token_ids must be a list"),
    (text(b'"stop_token_ids":[1,-1]'), b'-1', "stop_token_ids"),
    (text(b'"stop_token_ids":[%s]' % b",".join(b"%d" % i for i in range(65))), b'[0', "stop_token_ids must hold at most 64"),
    (text(b'"ignore_eos":1'), b'1', "ignore_eos must be true or false"),
    (text(b'"echo":"yes"'), b'"yes"', "echo must be true or false"),
    (text(b'"return_token_ids":0'), b'0', "return_token_ids must be true or false"),
    (text(b'"stream":"no"'), b'"no"', "stream must be true or false"),
    (text(b'"model":5'), b'5', "model must be a string"),
    (text(b'"model":"%s"' % (b"m" * 513)), b'"mm', "model must have at most 512 bytes"),
    (text(b'"response_format":"json"'), b'"json"', "response_format must be an object"),
    (text(b'"response_format":{}'), b'{}', "response_format"),
    (text(b'"logit_bias":[]'), b'[]', "logit_bias must be an object"),
    (text(b'"suffix":5'), b'5', "suffix must be a string"),
]

UNSUPPORTED = [
    (text(b'"stream":true'), b'true', "stream must be false"),
    (text(b'"response_format":{"type":"json_object"}'), b'{"type"', "response_format must be of type text"),
    (chat(b'"response_format":{"type":"json_schema","json_schema":{}}'), b'{"type"', "response_format must be of type text"),
    (text(b'"logit_bias":{"5":1}'), b'{"5"', "logit_bias"),
    (text(b'"suffix":"z"'), b'"z"', "suffix"),
    (text(b'"best_of":3,"n":2'), b'3', "best_of must be equal to n"),
    (chat(b'"echo":true'), b'true', "echo"),
    (chat(b'"tool_choice":"required"'), b'"required"', "tool_choice"),
    (chat(b'"tools":[],"tool_choice":{"type":"function","function":{"name":"f"}}'), b'{"type"', "tool_choice"),
    (b'{"prompt":["a","b"]}', b'"a"', "prompt must be one text or one list"),
    (b'{"prompt":[[1,2],[3]]}', b'[1,2]', "prompt must be one text or one list"),
    (b'{"prompt":[5,"a"]}', b'"a"', "prompt[1]"),
    (content(b'[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]'), b'"image_url","', "content[1].type must be text"),
    (content(b'[{"type":"input_audio","input_audio":{}}]'), b'"input_audio",', "content[0].type must be text"),
]

URLS = [
    (envelope(url=b'"/v1/embeddings"', body=b'{"input":"a"}'), b'"/v1/embeddings"', "url must be", "e{line}"),
    (envelope(url=b'"/v1/completions/"'), b'"/v1/completions/"', "url must be", "e{line}"),
    (envelope(url=b'"https://api.openai.com/v1/completions"'), b'"https', "url must be", "e{line}"),
]

OVERFLOWS = [
    (b'{"prompt":[%s],"max_tokens":1}' % b",".join([b"5"] * CONTEXT), START, f"{CONTEXT + 1}, above the context of {CONTEXT}"),
    (b'{"prompt":[5,6],"max_tokens":%d}' % (CONTEXT - 1), START, f"max_tokens {CONTEXT - 1}"),
    (b'{"prompt":[5],"max_tokens":2147483647}', START, "max_tokens 2147483647"),
    (b'{"prompt":[%s],"max_tokens":0,"echo":true}' % b",".join([b"5"] * (CONTEXT + 1)), START, f"above the context of {CONTEXT}"),
    (content(b'"%s"' % (b"0 1 " * CONTEXT)), START, f"context of {CONTEXT}"),
    (chat(b'"max_tokens":%d' % CONTEXT), START, f"max_tokens {CONTEXT}"),
]

TEMPLATE_FAULTS = [
    (b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[]}]}', START, "chat template: TypeError"),
]

DUPLICATES = [
    (b'{"custom_id":"good-0","prompt":"a"}', START, "line 1 has the same custom_id", "good-0"),
    (b'{"custom_id":"\\u0067ood-0","prompt":"a"}', START, "line 1 has the same custom_id", "good-0"),
    (b'{"custom_id":"row-2","prompt":"a"}', START, "line 2 has the same custom_id", "row-2"),                     # line 2 has no custom_id
    (b'{"prompt":"a"}', START, "same custom_id", "row-{line}"),                                                   # the line before took its name: see mixed_job
]

HOSTILE = [("invalid_json", *row) for row in JSON_FAULTS[:-1]] + [("invalid_utf8", *row) for row in UTF8_FAULTS] \
    + [("invalid_request", *row) for row in INVALID_REQUESTS] + [("unsupported_field", *row) for row in UNSUPPORTED] + [("url_mismatch", *row) for row in URLS] \
    + [("context_overflow", *row) for row in OVERFLOWS] + [("template_error", *row) for row in TEMPLATE_FAULTS] + [("duplicate_custom_id", *row) for row in DUPLICATES]

# Fields of good rows, most at the edge of a rule. Each stands behind {"custom_id":"good-<i>", (the first in line 1).
GOOD = [
    b'"prompt":"def f(x):\\n"', b'"prompt":[5,6,7],"max_tokens":4,"unknown":1', b'"prompt":"a\xe2\x80\xa8b\\u2029c","echo":true,"max_tokens":4',
    b'"prompt":"a\\u00e9\\ud83d\\ude00\\u0000z","max_tokens":3', b'"prompt":[0,%d],"echo":true,"logprobs":2,"max_tokens":0' % (VOCAB - 1),
    b'"prompt":"x","temperature":0,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":100,"presence_penalty":-2,"frequency_penalty":2,"max_tokens":5',
    b'"prompt":"x","temperature":100,"top_p":1e-30,"top_k":2147483647,"min_p":1,"max_tokens":5', b'"prompt":"x","seed":18446744073709551615,"max_tokens":5',
    b'"prompt":"x","seed":-9223372036854775808,"max_tokens":5', b'"prompt":"if x:\\n","n":3,"best_of":3,"max_tokens":6,"logprobs":20', b'"prompt":"x","max_tokens":9,"max_completion_tokens":2',
    b'"prompt":"x","stop":[%s],"max_tokens":5' % b",".join(b'"q%d"' % i for i in range(16)), b'"prompt":"x","stop":"%s","max_tokens":3' % (b"s" * 1024),
    b'"prompt":"x","stop_token_ids":[%s],"ignore_eos":true,"max_tokens":5' % b",".join(b"%d" % (VOCAB + i) for i in range(64)),
    b'"prompt":"x","min_tokens":16', b'"prompt":"x","prompt_logprobs":1,"return_token_ids":true,"max_tokens":2',
    b'"prompt":null,"messages":[{"role":"user","content":"hi"}],"max_tokens":4', b'"messages":[{"role":"wizard","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"max_tokens":4',
    b'"messages":[{"role":"user","content":"hi","name":"bob"},{"role":"assistant","content":""}],"max_completion_tokens":4,"n":2,"logprobs":true,"top_logprobs":20',
    b'"messages":[{"role":"user","content":"hi"}],"tools":[],"tool_choice":"none","logprobs":true,"max_tokens":3,"add_generation_prompt":false',
    b'"messages":[{"role":"user","content":"hi"}],"prompt_logprobs":0,"return_token_ids":true,"max_tokens":3',
    b'"method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"b","max_tokens":4,"user":{},"metadata":[1e999],"store":1,"service_tier":2,"stream":false}',
    b'"method":"POST","url":"/v1\\/chat/completions","body":{"messages":[{"role":"user","content":"c"}],"max_tokens":4,"response_format":{"type":"text"},"logit_bias":{}},"extra":[{}]',
    b'"prompt":"x","max_tokens":null,"temperature":null,"stop":null,"suffix":"","user":%s%s' % (b"[" * 127, b"]" * 127),
]


def good_line(i):
    ids = {1: b"null", 2: b'"%s"' % (b"i" * 512), 3: b'"\\u0000 \\"\\u2028\\n"'}             # null: row-2, see DUPLICATES
    return b'{"custom_id":%s,%s}' % (ids.get(i, b'"good-%d"' % i), GOOD[i % len(GOOD)])


class Job:
    """Lines as bytes, and what must become of each."""

    def __init__(self, head=b""):
        self.head, self.parts, self.line, self.offset = head, [], 0, len(head)
        self.good, self.errors = [], []            # good: the lines' bytes; errors: what the error file must hold

    def add(self, line, end=b"\n"):
        self.line += 1
        line = line.replace(b"{line}", b"%d" % self.line)
        start = self.offset
        self.parts.append(line + end)
        self.offset += len(line) + len(end)
        return line, start

    def add_good(self, line, end=b"\n"):
        self.good.append(self.add(line, end)[0])

    def add_bad(self, code, line, where, words, custom_id=ROW, end=b"\n"):
        line, start = self.add(line, end)
        at = line.index(where) if isinstance(where, bytes) else where
        if code == "invalid_json" and isinstance(where, bytes) and words == "key in double quotes" and where == b"}":
            at = line.rindex(where)
        self.errors.append({"code": code, "line": self.line, "offset": start + at, "custom_id": custom_id.replace("{line}", str(self.line)), "words": words})

    def bytes(self):
        return self.head + b"".join(self.parts)


def mixed_job():
    job = Job(head=b"\xef\xbb\xbf")
    n_good = 0
    for number, row in enumerate(HOSTILE):
        if row[0] == "duplicate_custom_id" and row[1] == DUPLICATES[-1][0]:
            job.add_good(b'{"custom_id":"row-%d","prompt":"a","max_tokens":2}' % (job.line + 2))
        else:
            for _ in range(2 if n_good < 4 else 1):
                job.add_good(good_line(n_good), end=b"\r\n" if n_good % 3 == 2 else b"\n")
                n_good += 1
        if number % 7 == 3:
            job.add((b"", b" \t ", b"\r", b"   ")[number // 7 % 4])
        job.add_bad(*row, end=b"\r\n" if number % 5 == 4 else b"\n")
    job.add_good(b'{"custom_id":"last","prompt":"z","max_tokens":2}', end=b"")
    return job


# ---- reading the answers ----

def strict_lines(path):
    """Every line of a file as Python's json reads it, nothing but JSON in UTF-8 with one line feed a line, no key twice, no NaN."""
    data = pathlib.Path(path).read_bytes()
    check(not data or data.endswith(b"\n"), f"{path} does not end with a line feed")
    check(b"\r" not in data and "\u2028".encode() not in data and "\u2029".encode() not in data, f"{path} has a raw line separator")

    def once(pairs):
        check(len({k for k, _ in pairs}) == len(pairs), f"{path}: a key stands twice in {pairs}")
        return dict(pairs)

    def never(word):
        raise fleet.Failure(f"{path} holds {word}")
    return [json.loads(line.decode("utf-8"), object_pairs_hook=once, parse_constant=never) for line in data.split(b"\n")[:-1]]


def check_errors(path, wanted):
    got = strict_lines(path)
    check(len(got) == len(wanted), f"{len(got)} error lines instead of {len(wanted)}")
    for line, want in zip(got, wanted):
        openai_types.check_error_line(line)
        error = line["error"]
        found = {"code": error["code"], "line": error["line"], "offset": error["offset"], "custom_id": line["custom_id"]}
        check(found == {k: want[k] for k in found} and want["words"] in error["message"], f"wanted {want}\n      got    {found} {error['message']}")
        check("/" not in error["message"].replace("/v1/", "") or "url" in error["message"] or "0x" in error["message"] or "'/'" in error["message"],
              f"a path in the sentence: {error['message']}")


def answers(path):
    """custom_id → the body of each answer, without its id (a hash of the whole job)."""
    found = {}
    for line in strict_lines(path):
        openai_types.check_answer_line(line)
        check(line["custom_id"] not in found, f"{line['custom_id']} is answered twice")
        body = dict(line["response"]["body"])
        body.pop("id")
        found[line["custom_id"]] = body
    return found


def custom_ids(lines):
    return [json.loads(line)["custom_id"] for line in lines]


reference = None                       # the hashes of the mixed job, made by the first test


def mixed_file(folder):
    path = folder / "mixed.jsonl"
    path.write_bytes(mixed_job().bytes())
    return path


def every_rule_once(folder):
    """Good rows answer as they do alone; every bad line has its code, line, byte, custom_id and sentence."""
    global reference
    job, out, alone = mixed_job(), folder / "out.jsonl", folder / "alone.jsonl"
    check(len(HOSTILE) >= 60, f"only {len(HOSTILE)} hostile lines")
    done = fleet.run(mixed_file(folder), out, "--workers", "1", "--threads", "1", expect=1)
    for name in ("unknown", "extra", "min_tokens2"):
        check(name in done.stderr, f"the unknown field {name} is not reported: {done.stderr}")
    check_errors(f"{out}.errors.jsonl", job.errors)
    mixed = answers(out)
    wanted = [i or "row-2" for i in custom_ids(job.good)]
    check(list(mixed) == wanted, f"rows missing or out of order: {[i for i in wanted if i not in mixed]}")
    good = folder / "good.jsonl"
    good.write_bytes(b"".join(line.replace(b'"custom_id":null', b'"custom_id":"row-2"') + b"\n" for line in job.good))
    fleet.run(good, alone, "--workers", "1", "--threads", "1")
    for custom_id, body in answers(alone).items():
        check(mixed[custom_id] == body, f"{custom_id[:40]} answers {mixed[custom_id]} among bad lines and {body} without them")
    verify = fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    reference = fleet.both(out)
    check(reference[0] in verify.stdout, f"verify does not print the hash: {verify.stdout}")
    return f"{len(job.errors)} bad lines, {len(job.good)} good rows; checked by {openai_types.describe()}"


def same_bytes(folder, out):
    hashes = fleet.both(out)
    check(hashes == reference, f"hashes {hashes} instead of {reference}")


def four_workers(folder):
    fleet.run(mixed_file(folder), folder / "out.jsonl", "--workers", "4", "--threads", "1", expect=1)
    same_bytes(folder, folder / "out.jsonl")


def packed_and_from_standard_input(folder):
    packed = folder / "mixed.jsonl.gz"
    packed.write_bytes(gzip.compress(mixed_file(folder).read_bytes(), 1))
    fleet.run(packed, folder / "packed.jsonl", "--workers", "2", expect=1)
    same_bytes(folder, folder / "packed.jsonl")
    with open(mixed_file(folder), "rb") as stdin:
        fleet.run("-", folder / "piped.jsonl", "--workers", "1", expect=1, stdin=stdin)
    same_bytes(folder, folder / "piped.jsonl")


def killed_and_run_again(folder):
    """SIGKILL the whole run in its middle, three times, then let it end. The middle is that of a run which nobody disturbs."""
    job, out, kills = mixed_file(folder), folder / "out.jsonl", 0
    settings = ["--workers", "2", "--threads", "1", "--batch", "4"]
    began = time.monotonic()
    fleet.run(job, folder / "plain.jsonl", *settings, expect=1)
    whole, shares = time.monotonic() - began, [0.3, 0.5, 0.7]
    while shares:
        run = subprocess.Popen(fleet.run_args(job, out, *settings), stderr=subprocess.DEVNULL)
        share = shares.pop(0)
        try:
            run.wait(share * whole)
            if kills == 0 and share > 0.02:                  # it was over already: earlier, with everything to do again
                shutil.rmtree(f"{out}.spool")
                out.unlink()
                pathlib.Path(f"{out}.errors.jsonl").unlink()
                shares = [share / 2]
        except subprocess.TimeoutExpired:
            below = fleet.children(run.pid)
            run.kill()
            run.wait()
            kills += 1
            fleet.wait_gone(below)
    fleet.run(job, out, "--workers", "2", "--threads", "1", expect=1)
    same_bytes(folder, out)
    fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"])
    check(kills > 0, "the job ended before it could be killed")
    return f"{kills} kills"


def too_long_lines(folder):
    """A line above 64 MB and one whose keys would need too much memory; a line of exactly 64 MB is read."""
    most, out = 64 << 20, folder / "out.jsonl"
    job = Job()
    job.add_good(good_line(0))
    job.add_bad("line_too_long", b'{"prompt":"a"}' + b" " * (most - 13), most, f"at most {most} are read")
    job.add_good(good_line(4))
    job.add(b" " * (most + 100))                             # blank, so no row at all
    many = b",".join(b'"%x":0' % i for i in range((1 << 20) + 8))
    job.add_bad("line_too_long", b'{"prompt":"a","user":{%s}}' % many, b'"ffffe"', "more than 1048576 keys")                # two keys of the row itself are open too
    if not SANITIZED:
        edge = b'{"custom_id":"edge","prompt":"a","max_tokens":2,"metadata":{"x":"%s"}}'
        job.add_good(edge % (b"m" * (most - len(edge) + 2)), end=b"\r\n")
    job.add_good(good_line(5))
    packed = folder / "long.jsonl.gz"
    packed.write_bytes(gzip.compress(job.bytes(), 1))
    fleet.run(packed, out, expect=1)
    check_errors(f"{out}.errors.jsonl", job.errors)
    check(list(answers(out)) == custom_ids(job.good), f"{list(answers(out))}")


# ---- other models ----

def write_model(folder, name, template=None, without=(), body=None):
    """A copy of the demo model with another chat template, without some files, or with other bytes in its tensors."""
    model = folder / name
    shutil.copytree(DEMO, model, ignore=shutil.ignore_patterns("*.jsonl", "*.py", *without))
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    if body:
        data = bytearray((model / "model.safetensors").read_bytes())
        n = struct.unpack("<Q", data[:8])[0]
        body(json.loads(data[8:8 + n]), memoryview(data)[8 + n:])
        (model / "model.safetensors").write_bytes(data)
    return model


def run_on(folder, job, model, workers=(1, 2)):
    """Run a job on another model with each number of workers, at once; the same bytes, the errors as wanted. Returns the answers."""
    path = folder / "job.jsonl"
    path.write_bytes(job.bytes())

    def run(n):
        out = folder / f"{pathlib.Path(model).name}-{n}.jsonl"
        fleet.run(path, out, "--workers", str(n), "--threads", "1", model=model, expect=1)
        check_errors(f"{out}.errors.jsonl", job.errors)
        return fleet.both(out), out
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(run, workers))
    check(len({hashes for hashes, _ in done}) == 1, f"other bytes with other workers: {done}")
    return answers(done[0][1])


HOSTILE_TEMPLATE = """{%- set what = messages[0].content -%}
{%- if what == 'raise' %}{{ raise_exception('no\nsuch ' ~ what) }}
{%- elif what == 'long' %}{{ raise_exception('x' ~ '\u00e9' * 300) }}
{%- elif what == 'undefined' %}{{ nowhere.to.go }}
{%- elif what == 'object' %}{{ raise_exception(namespace) }}
{%- elif what == 'unsafe' %}{{ ''.__class__.__mro__ }}
{%- elif what == 'surrogate' %}{{ '\\ud800' }}
{%- elif what == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif what == 'bomb' %}{{ what * 400000000 }}
{%- elif what == 'empty' %}
{%- else %}<|im_start|>{{ what }}{% endif %}"""


def templates_that_fail(folder):
    """A template that raises, hangs or eats memory costs its row alone, with the same sentence everywhere."""
    job = Job()
    faults = [("raise", "TemplateError: no such raise"), ("undefined", "UndefinedError: 'nowhere' is undefined"), ("long", "x\u00e9\u00e9"), ("object", "TemplateError"), ("unsafe", "SecurityError"),
              ("surrogate", "UnicodeEncodeError"), ("bomb", "rendering took more than 512 MB"), ("loop", "rendering took more than 5 s")]
    for number, (what, words) in enumerate(faults):
        job.add_good(b'{"custom_id":"chat-%d","messages":[{"role":"user","content":"hi"}],"max_tokens":4}' % number)
        job.add_good(b'{"custom_id":"text-%d","prompt":"hi","max_tokens":40,"ignore_eos":true}' % number)
        job.add_bad("template_error", content(b'"%s"' % what.encode()), START, words)
    job.add_bad("invalid_request", content(b'"empty"'), START, "the prompt is empty")
    job.add_good(b'{"custom_id":"chat-last","messages":[{"role":"user","content":"hi"}],"max_tokens":4}')
    found = run_on(folder, job, write_model(folder, "template", HOSTILE_TEMPLATE))
    check(list(found) == custom_ids(job.good), f"{list(found)}")


def templates_that_cannot_be_read(folder):
    """A broken template, or none, fails chat rows and no others."""
    rows = [b'{"custom_id":"text","prompt":"hi","max_tokens":4}', b'{"custom_id":"ids","prompt":[5],"max_tokens":4}']
    cut = write_model(folder, "cut", "{% for m in messages %}")
    none = write_model(folder, "none", without=["tokenizer_config.json"])
    config = write_model(folder, "config")
    (config / "tokenizer_config.json").write_text('{"chat_template": ')
    latin = write_model(folder, "latin")
    (latin / "chat_template.jinja").write_bytes(b"caf\xe9")
    unnamed = write_model(folder, "unnamed")
    (unnamed / "tokenizer_config.json").write_text('{"chat_template": [{"name": "tool_use", "template": "x"}]}')
    for model, words in ((cut, "TemplateSyntaxError"), (none, "no chat template"), (config, "tokenizer_config.json"), (latin, "UTF-8"), (unnamed, "default")):
        job = Job()
        job.add_good(rows[0])
        job.add_bad("template_error", content(b'"hi"'), START, words)
        job.add_good(rows[1])
        check(list(run_on(folder, job, model, workers=(1,))) == ["text", "ids"], f"{model}: a good row is missing")


def model_without_tokenizer(folder):
    job = Job()
    job.add_good(b'{"custom_id":"ids","prompt":[5,6],"max_tokens":4,"return_token_ids":true}')
    job.add_bad("no_tokenizer", b'{"custom_id":"t","prompt":"a"}', START, "tokenizer.json", "t")
    job.add_bad("no_tokenizer", chat(), START, "tokenizer.json")
    job.add_good(b'{"custom_id":"more","prompt":[7],"max_tokens":4,"stop_token_ids":[9]}')
    found = run_on(folder, job, write_model(folder, "ids-only", without=["tokenizer.json", "tokenizer_config.json"]))
    check(list(found) == ["ids", "more"] and found["ids"]["choices"][0]["text"] == "" and len(found["ids"]["choices"][0]["token_ids"]) > 0, f"{found}")


def model_whose_logits_are_no_numbers(folder):
    """Weights so large that sums overflow, which the loader cannot see: every row gets nan_logits, and bad lines keep their own codes."""
    def spoil(header, tensors):
        low, high = header["model.norm.weight"]["data_offsets"]
        tensors[low:high] = b"\x7f\x7f" * ((high - low) // 2)               # the largest bf16: sums of both signs overflow

    job = Job()
    for number in range(4):
        job.add_bad("nan_logits", b'{"custom_id":"n%d","prompt":[5,6],"max_tokens":4,"n":%d}' % (number, number + 1), START, "not numbers", f"n{number}")
    job.add_bad("invalid_json", b'{', 1, "ends early")
    job.add_bad("nan_logits", b'{"custom_id":"c",%s}' % USER, START, "not numbers", "c")
    run_on(folder, job, write_model(folder, "nan", body=spoil))


def documentation_names_every_code_and_field(folder):
    """ops/JOBS.md lists what the program has, and HOSTILE has a line for each code that a line or a model can earn."""
    page = (fleet.ROOT / "ops" / "JOBS.md").read_text()
    codes = set(re.findall(r'X\(ROW_\w+, +\d+, "(\w+)"\)', (fleet.ROOT / "proto" / "row_error.h").read_text()))
    fields = set(re.findall(r'X\([A-Z_]+, "(\w+)", BODY_\w+\)', (fleet.ROOT / "proto" / "body_fields.h").read_text()))
    check(len(codes) >= 16 and len(fields) >= 30, f"{codes} {fields}")
    missing = [name for name in sorted(codes | fields) if f"`{name}`" not in page]
    check(not missing, f"ops/JOBS.md does not name {missing}")
    earned = {row[0] for row in HOSTILE} | {"line_too_long", "no_tokenizer", "nan_logits"}
    others = {"engine_crash_quarantined", "disk_full", "batch_cancelled", "batch_expired", "request_timeout"}         # never of a line or a model
    check(earned == codes - others, f"no hostile line for {codes - others - earned}")


def helper_that_cannot_start(folder):
    """Without Python chat rows wait, with a sentence; they are never row errors, and the same job ends well when Python is back."""
    job, out, plain = folder / "job.jsonl", folder / "out.jsonl", folder / "plain.jsonl"
    job.write_bytes(b'{"prompt":"a","max_tokens":4}\n{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}\n{"prompt":"b","max_tokens":4}\n')
    done = fleet.run(job, out, env={"TOKENFLEET_PYTHON": str(folder / "nowhere")}, expect=None, timeout=60)
    check(done.returncode == 4 and "python3-jinja2" in done.stderr and "nowhere" in done.stderr, f"exit {done.returncode}: {done.stderr}")
    fleet.run(job, out)
    fleet.run(job, plain)
    check(fleet.both(out) == fleet.both(plain) and len(answers(out)) == 3, "another hash after Python was missing")


if __name__ == "__main__":
    fleet.main([every_rule_once, four_workers, packed_and_from_standard_input, killed_and_run_again, too_long_lines, templates_that_fail, templates_that_cannot_be_read,
                model_without_tokenizer, model_whose_logits_are_no_numbers, helper_that_cannot_start,
                documentation_names_every_code_and_field])
