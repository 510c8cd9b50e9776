#!/usr/bin/python3
"""verify passes on what run wrote, and fails, naming the row, when a record of the ledger or a line of OUT was removed, doubled,
flipped or edited."""
import json
import random
import shutil
import struct

import fleet
from fleet import check

HEADER = struct.Struct("<IHHIIQ")                        # proto/frame.h
MAGIC = 0x31464654
RESULT = 5                                               # coordinator/ledger.h
N_ROWS = 24


def make_run(folder):
    job, out = folder / "job.jsonl", folder / "out.jsonl"
    job.write_text("".join(json.dumps({"custom_id": f"row-name-{i}", "prompt": [i + 3, 7, 9], "max_tokens": 12, "ignore_eos": True}) + "\n"
                           for i in range(N_ROWS)) + '{"custom_id": "bad", "prompt": 7}\n')
    fleet.run(job, out, "--seed", "3", expect=1)
    return out


def frames(segment):
    """(offset, size, kind) of each frame of a segment."""
    data, at, found = segment.read_bytes(), 0, []
    while at < len(data):
        magic, _, kind, n_bytes, _, _ = HEADER.unpack_from(data, at)
        check(magic == MAGIC, f"{segment} has no frame at {at}")
        found.append((at, HEADER.size + n_bytes, kind))
        at += HEADER.size + n_bytes
    return found


def segments(out):
    found = sorted(out.parent.glob(f"{out.name}.spool/jobs/*/ledger/*.seg"))
    check(found, f"no segment below {out}.spool")
    return found


def verify(out, expect):
    return fleet.call([fleet.TOKENFLEET, "verify", "--spool", f"{out}.spool"], expect=expect)


def intact(folder):
    out = make_run(folder)
    done = verify(out, 0)
    check(fleet.sha(out) in done.stdout, f"the hash of OUT is not in {done.stdout}")


def edited_out(folder):
    """OUT with a line removed, doubled, swapped, or one byte changed; running again writes it as it was."""
    out = make_run(folder)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    edits = {
        "removed": lines[:7] + lines[8:],
        "doubled": lines[:8] + lines[7:],
        "swapped": lines[:7] + [lines[8], lines[7]] + lines[9:],
        "flipped": lines[:7] + [lines[7].replace(b'"finish_reason":"length"', b'"finish_reason":"lengtH"')] + lines[8:],
        "cut": lines[:7] + [lines[7][:-20]],
    }
    for name, edit in edits.items():
        check(b"".join(edit) != whole, f"the edit '{name}' changes nothing")
        out.write_bytes(b"".join(edit))
        words = verify(out, 1)
        check("row-name-7" in words.stderr or "row-name-8" in words.stderr, f"OUT {name}: the row is not named: {words.stderr}")
    for spoil in (out.unlink, lambda: out.write_bytes(whole[:-9])):
        spoil()
        verify(out, 1)
        fleet.run(out.parent / "job.jsonl", out, "--seed", "3", expect=1)
        check(out.read_bytes() == whole, "running again does not restore OUT")
    errors = out.parent / f"{out.name}.errors.jsonl"
    kept = errors.read_bytes()
    errors.write_bytes(b"")
    check("bad" in verify(out, 1).stderr, "ERR without its line: the row is not named")
    errors.write_bytes(kept)
    verify(out, 0)


def edited_ledger(folder):
    """A result record removed, doubled, moved, or one bit of it flipped, in a copy of the spool."""
    out = make_run(folder)
    segment = segments(out)[0]
    whole, rng = segment.read_bytes(), random.Random(5)
    results = [(at, size) for at, size, kind in frames(segment) if kind == RESULT]
    check(len(results) >= N_ROWS, f"only {len(results)} result records")
    for at, size in rng.sample(results, 4):
        record, flipped = whole[at:at + size], bytearray(whole)
        flipped[at + HEADER.size + rng.randrange(size - HEADER.size)] ^= 1 << rng.randrange(8)
        edits = {
            "removed": whole[:at] + whole[at + size:],
            "doubled": whole[:at] + record + whole[at:],
            "flipped": bytes(flipped),
            "appended": whole + record,
        }
        for name, edit in edits.items():
            segment.write_bytes(edit)
            words = verify(out, 1)
            check("row-name-" in words.stderr, f"record {name}: no row is named: {words.stderr}")
    segment.write_bytes(whole[:-1])
    verify(out, 1)
    segment.write_bytes(whole)
    verify(out, 0)


def removed_ledger(folder):
    out = make_run(folder)
    shutil.rmtree(segments(out)[0].parent)
    verify(out, None).returncode != 0 or check(False, "verify passes without a ledger")


if __name__ == "__main__":
    fleet.main([intact, edited_out, edited_ledger, removed_ledger])
