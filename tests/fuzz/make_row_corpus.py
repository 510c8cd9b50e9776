#!/usr/bin/python3
"""Write the seeds of fuzz_job_row and fuzz_rows_idx: one file a form of a line, and small indexes with a good layout."""
import pathlib
import struct

corpus = pathlib.Path(__file__).resolve().parent / "corpus"

LINES = {
    "plain_text": rb'{"prompt":"a\u00e9\ud83d\ude00\n\u0000z","seed":null,"stop":[]}',
    "plain_ids": b'{"custom_id":"c","prompt":[0, 2147483647 ,5]}',
    "all_fields": rb'{"prompt":"a","model":"m","temperature":0.7,"top_p":1.0,"top_k":-1,"min_p":0.05,"repetition_penalty":1.1,"presence_penalty":-2,'
                  rb'"frequency_penalty":2,"max_tokens":9,"max_completion_tokens":7,"min_tokens":7,"n":4,"seed":18446744073709551615,"stop":["\n\n","end"],'
                  rb'"stop_token_ids":[3,0],"ignore_eos":true,"echo":true,"logprobs":20,"prompt_logprobs":0,"return_token_ids":true,"best_of":4,"suffix":"",'
                  rb'"logit_bias":{},"response_format":{"type":"text"},"stream":false,"user":{},"metadata":[1e999],"store":1,"service_tier":2}',
    "batch_chat": b'{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"add_generation_prompt":false,"messages":[{"role":"user","content":'
                  b'[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"x":1.50}]}],"tools":[{"big":123456789012345678901234567890}],'
                  b'"chat_template_kwargs":{"enable_thinking":false},"logprobs":true,"top_logprobs":2,"tool_choice":"auto","extra":1}}',
    "batch_text": b'{"custom_id":"c","method":"POST","url":"/v1/completions","body":{"prompt":"a","max_tokens":5}}',
    "set": b'{"temperature":0.5,"max_tokens":40,"top_logprobs":0,"logprobs":true,"seed":-9,"stop":["x"]}',
    "duplicate_key": rb'{"prompt":"a","pr\u006fmpt":"b"}',
    "half_surrogate": rb'{"prompt":"\ud83d"}',
    "bad_utf8": b'{"prompt":"\xe2\x82"}',
    "bom": b'\xef\xbb\xbf{"prompt":"a"}',
    "deep": b'{"prompt":"a","user":' + b"[" * 127 + b"]" * 127 + b"}",
    "empty_objects": b'{"prompt":"a","user":[' + b",".join([b"{}"] * 50) + b"]}",
    "many_keys": b'{"prompt":"a","user":{' + b",".join(b'"%d":0' % i for i in range(40)) + b"}}",
    "numbers": b'{"prompt":"a","temperature":1e-5,"top_p":0.99E0,"seed":-9223372036854775808,"user":[-0,0.0e+0,1E400]}',
    "image": b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}',
    "unsupported": b'{"prompt":"a","response_format":{"type":"json_object"},"logit_bias":{"5":1},"stream":true}',
    "string_list": b'{"prompt":["a","b"]}',
    "not_object": b"[1,2]",
    "cr": b' {"prompt" : "a" , "echo":true,"max_tokens":0 }\r',
}

JOB = b'{"prompt":"a"}\n{"prompt":"b"}\n'


def header(rows):
    return struct.pack("<IHHQQQ16s16x", 0x31495254, 1, 0, rows, len(JOB), 0, b"h" * 16)


def entry(offset, n_bytes, samples, line):
    return struct.pack("<QIIQII", offset, n_bytes, samples, line, 17, 0)


INDEXES = {                                               # the first byte asks for a right checksum
    "two_rows": (1, header(2) + entry(0, 14, 1, 1) + entry(15, 14, 3, 2)),
    "bad_row": (1, header(2) + entry(0, 14, 0, 1) + entry(15, 14, 1024, 9)),
    "overlap": (1, header(2) + entry(0, 14, 1, 1) + entry(13, 14, 1, 2)),
    "outside": (1, header(1) + entry(20, 140, 1, 1)),
    "no_rows": (1, header(0)),
    "short": (1, header(2)[:40]),
    "no_checksum": (0, header(1) + entry(0, 14, 1, 1)),
}

for folder, seeds in (("job_row", LINES), ("rows_idx", {name: bytes([flag, len(JOB)]) + JOB + index for name, (flag, index) in INDEXES.items()})):
    (corpus / folder).mkdir(parents=True, exist_ok=True)
    for name, seed in seeds.items():
        (corpus / folder / name).write_bytes(seed)
