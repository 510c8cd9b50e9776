#!/usr/bin/env python3
"""Write a job of chat rows for ingest_bench: every line has the same size, some custom_ids stand twice. The same arguments give the same bytes.

  tests/bench/make_ingest_job.py --rows 4000000 --bytes 260 --duplicates 0.03 job.jsonl      about 1 GB, a quarter of a minute
"""
import argparse
import random

WORDS = ("write read list sort tree graph night river stone paper light short story python function returns number string table kitchen garden "
         "explain compare describe why how when after before between under over quick careful simple strange useful caf\u00e9 na\u00efve").split()
BLOCK = 10000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--bytes", type=int, default=260, help="of each line, line feed included (at least 200)")
    parser.add_argument("--duplicates", type=float, default=0.03, help="share of rows that take the custom_id of an earlier one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("out")
    args = parser.parse_args()
    if args.bytes < 200:
        parser.error("--bytes must be at least 200")
    rng = random.Random(args.seed)
    text = (" ".join(rng.choice(WORDS) for _ in range(20000)) + " ").encode()
    offsets = [i for i in range(len(text) - args.bytes) if text[i] < 0x80 and text[i - 1] == 0x20]      # pieces begin at a word
    with open(args.out, "wb") as out:
        for first in range(0, args.rows, BLOCK):
            lines = []
            for row in range(first, min(first + BLOCK, args.rows)):
                name = rng.randrange(row) if row and rng.random() < args.duplicates else row
                head = b'{"custom_id":"request-%09d","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"' % name
                tail = b'"}],"max_tokens":%d,"temperature":0.7}}\n' % (16 + row % 64)
                room = args.bytes - len(head) - len(tail)
                at = rng.choice(offsets)
                content = bytearray(text[at:at + room])
                while content[-1] >= 0x80 or len(content) < room:                    # never half a character at the end
                    if content[-1] >= 0x80:
                        content.pop()
                    else:
                        content.extend(b"." * (room - len(content)))
                lines.append(head + bytes(content) + tail)
            out.write(b"".join(lines))


main()
