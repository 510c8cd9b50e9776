#!/usr/bin/python3
"""Real GGUF files (ops/get-model) against llama.cpp's own answers (tests/golden/real, by make_llama_cpp_vectors.py): ids of texts; behind llama.cpp's greedy tokens the best token of its run of
the same file with products in F32 (its OpenBLAS build), wherever that leads by more than 0.1; perplexity within 0.05 % of that run's and, over all 10,000 tokens, within 0.5 % of the usual
build's; and MT-Bench's questions as chats, answered by two workers with the same bytes twice.

The usual build rounds to 8 bits, and its own other ways (in one batch, with flash attention, with keys and values in F32) have another best token than its greedy run at 3 to 13 of the
positions that it led by more than 0.1, more than these. So there the test holds our differences to what those ways differ by.

Skipped where the models are not in $TOKENFLEET_MODELS or build/models: `ops/get-model smollm2` and `ops/get-model gemma3` fetch them. REAL_MODEL_ALL=1 takes all prompts, windows and
questions; without it a part that takes seconds."""
import json
import math
import os
import sys

import fleet
from fleet import check

MODELS = fleet.pathlib.Path(os.environ.get("TOKENFLEET_MODELS") or fleet.ROOT / "build/models")
ALL = os.environ.get("REAL_MODEL_ALL") == "1"
MARGIN = 0.1
VECTORS = {name: json.loads((fleet.HERE.parent / f"golden/real/{name}.json").read_text()) for name in ("smollm2", "gemma3")}
PRESENT = {name: v for name, v in VECTORS.items() if (MODELS / v["file"]).exists()}


def answers(folder, model, rows):
    """Completions of these rows, in order."""
    job, out = folder / "real.jsonl", folder / "real.out.jsonl"
    for old in folder.glob("real.*"):
        fleet.shutil.rmtree(old) if old.is_dir() else old.unlink()
    job.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fleet.call([fleet.TOKENFLEET, "run", job, "--model", MODELS / model["file"], "--out", out], timeout=1200)
    return [line["response"]["body"] for line in fleet.lines(out)]


def ids_are_those_of_llama_cpp(folder):
    for name, model in PRESENT.items():
        texts = [t for t in model["texts"] if t["text"] and "\0" not in t["text"]]
        for text, body in zip(texts, answers(folder, model, [{"prompt": t["text"], "max_tokens": 1, "return_token_ids": True} for t in texts])):
            check(body["prompt_token_ids"] == text["ids"], f"{name}: {text['text']!r} is {body['prompt_token_ids']}, llama.cpp's ids are {text['ids']}")


def lead_of(place, token):
    return place[token]["logprob"] - max(p["logprob"] for i, p in place.items() if i != token)


def top_1_is_llama_cpps_wherever_it_leads(folder):
    notes = []
    for name, model in PRESENT.items():
        cases = model["greedy"] if ALL else model["greedy"][::5]
        bodies = answers(folder, model, [{"prompt": c["ids"] + c["greedy"], "prompt_logprobs": 2, "max_tokens": 1} for c in cases])
        n_led = n_unled = n_usual = 0
        off = 0.0
        for c, body in zip(cases, bodies):
            places = body["choices"][0]["prompt_logprobs"][len(c["ids"]):]
            for token, usual_lead, exact, place in zip(c["greedy"], c["leads"], c["exact"], places):
                want, lead = exact if isinstance(exact, list) else (token, exact)
                best = max(place, key=lambda i: place[i]["logprob"])
                check(int(best) == want or lead <= MARGIN, f"{name}, {c['prompt']!r}: our best is {place[best]}, llama.cpp's is {want} with a lead of {lead}")
                n_led += lead > MARGIN
                n_unled += int(best) != want
                n_usual += usual_lead > MARGIN and int(best) != token
                if int(best) == want:
                    off = max(off, abs(lead_of(place, best) - lead))
        check(off < MARGIN / 5, f"{name}: a lead is {off} from llama.cpp's")
        check(not ALL or n_usual <= max(model["ways"].values()), f"{name}: {n_usual} others than the usual build's greedy tokens; its own ways have {model['ways']}")
        notes.append(f"{name}: {n_led} of {len(cases) * len(cases[0]['greedy'])} positions are led by more than {MARGIN} in F32, all equal; {n_unled} of the rest differ, leads by {off:.4f} at most; "
                     f"of those that llama.cpp's usual build leads so, {n_usual} differ ({', '.join(f'{way}: {n}' for way, n in model['ways'].items())} of that build itself, of all {20 * 64})")
    return "; ".join(notes)


def perplexity_is_llama_cpps(folder):
    notes = []
    for name, model in PRESENT.items():
        windows = model["windows"] if ALL else model["windows"][:2]
        bodies = answers(folder, model, [{"prompt": w["ids"], "prompt_logprobs": 0, "max_tokens": 1} for w in windows])
        ours = 0.0
        for w, body in zip(windows, bodies):
            places = body["choices"][0]["prompt_logprobs"][1:]
            ours -= sum(place[str(i)]["logprob"] for place, i in zip(places, w["ids"][1:])) / len(places)
        ours, theirs, exact = (math.exp(sum(v) / len(windows)) for v in ([ours], [w["nll"] for w in windows], [w["exact"] for w in windows]))
        notes.append(f"{name}: perplexity {ours:.4f} over {sum(len(w['ids']) for w in windows)} tokens, llama.cpp's {theirs:.4f} ({100 * (ours / theirs - 1):+.3f} %), with products in F32 {exact:.4f} "
                     f"({100 * (ours / exact - 1):+.4f} %)")
        check(abs(ours / exact - 1) < 0.0005, f"{name}: perplexity {ours}, llama.cpp's with products in F32 {exact}")
        check(not ALL or abs(ours / theirs - 1) < 0.005, f"{name}: perplexity {ours}, llama.cpp's {theirs}")
    return "; ".join(notes)


def questions_are_answered_with_the_same_bytes_twice(folder):
    if "smollm2" not in PRESENT:
        return
    questions = [json.loads(line) for line in (fleet.HERE / "data/mt_bench_questions.jsonl").read_text().splitlines()]
    job, hashes = folder / "questions.jsonl", set()
    job.write_text("".join(json.dumps({"custom_id": f"q{q['question_id']}", "messages": [{"role": "user", "content": q["turns"][0]}], "max_tokens": 512 if ALL else 4, "temperature": 0}) + "\n"
                           for q in questions))
    for number in (1, 2):
        out = folder / f"questions.{number}.jsonl"
        fleet.call([fleet.TOKENFLEET, "run", job, "--model", MODELS / PRESENT["smollm2"]["file"], "--workers", number, "--out", out], timeout=3600)
        hashes.add(fleet.sha(out))
        texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in fleet.lines(out)]
        check(len(texts) == len(questions) == 80, f"{len(texts)} answers to {len(questions)} questions")
        letters = sum(c.isalpha() or c.isspace() for t in texts for c in t) / max(1, sum(map(len, texts)))
        check(all(texts) and letters > 0.7, f"answers are no text: {texts[:3]}")
    check(len(hashes) == 1, "one and two workers give other bytes")


if __name__ == "__main__":
    if fleet.SANITIZED:
        print("skipped: real models take minutes under a sanitizer; mutated_gguf_test and gguf_golden_test run there")
        sys.exit(77)
    if not PRESENT:
        print(f"skipped: neither {' nor '.join(v['file'] for v in VECTORS.values())} is in {MODELS}; ops/get-model smollm2 and ops/get-model gemma3 fetch them")
        sys.exit(77)
    fleet.main([ids_are_those_of_llama_cpp, top_1_is_llama_cpps_wherever_it_leads, perplexity_is_llama_cpps, questions_are_answered_with_the_same_bytes_twice])
