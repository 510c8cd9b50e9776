#!/usr/bin/env python3
"""Write what llama.cpp says of the real models of ops/get-model into tests/golden/real/NAME.json, for tests/e2e/real_model_test.py.

Needs the models and two builds of llama-cpp-python (made with 0.3.36, CPU); the test needs neither. As pip builds it, llama.cpp rounds what products take to 8 bits (and repacks weights of
K types, which changes the order of sums). Built with OpenBLAS (CMAKE_ARGS="-DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS") it multiplies batches of 32 tokens and more in F32, here without
repacking and with keys and values in F32: the same file, and the same leads to all digits as of a file of the same weights in F32 that llama-quantize writes.

greedy   20 prompts: their ids, 64 greedy tokens of the usual build and by how much the logit of each leads the next best one (leads). exact: what the OpenBLAS build says behind the same
         tokens, in one batch: the lead of that token, or [token, lead] where it prefers another.
ways     at how many of these positions, of those that the usual build leads by more than 0.1, another way of the same build has another best token: the limit of what two runs can agree on
         while they round to 8 bits.
windows  10,000 tokens of text, MT-Bench's questions and HumanEval's prompts (tests/e2e/data), in windows of 500, each from an empty context, ids and the mean negative log-likelihood of
         tokens 1 to 499, of the usual build (nll) and of the OpenBLAS build (exact).
texts    ids of hard texts: white space, numbers, code, other scripts, special tokens.

usage: make_llama_cpp_vectors.py FOLDER OPENBLAS [NAME...]     OPENBLAS: the folder that `pip install --target` filled with the second build"""
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys

import llama_cpp
import numpy as np
from llama_cpp import Llama

HERE = pathlib.Path(__file__).resolve().parent
FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
N_GREEDY, MARGIN, WINDOW, N_WINDOWS = 64, 0.1, 500, 20
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def quicksort(items):\n    ", "The three laws of thermodynamics are:\n1.", "Dear Sir or Madam,\n\nI am writing to",
           "Q: How many legs does a spider have?\nA:", "In 1969, the first humans", "The recipe calls for two cups of flour,", "import numpy as np\n\nx = np.array([", "It was a dark and stormy night;",
           "A list of the planets in order from the Sun:", "Die Hauptstadt von Deutschland ist", "La vie est", "She opened the door and saw", "The difference between a virus and a bacterium is",
           "SELECT name, age FROM users WHERE", "To be, or not to be,", "The stock market fell sharply today after", "Photosynthesis is the process by which", "#include <stdio.h>\n\nint main(void)\n{\n"]
TEXTS = ["", " ", "  ", "Hello", " Hello", "Hello  world,   it's 2024!", "\n\n\tdef f(x):\n        return x ** 2  # comment\n", "12345 67.89 1e-5 0x1F", "don't can't we'll I'D THEY'VE", "你好，世界！ こんにちは 안녕하세요",
         "Привет мир، مرحبا بالعالم שלום", "🙂🚀 e\u0301 café naïve ﬁ", "a" * 40, "=" * 33 + "\r\n" + "-" * 17, "<|im_start|>user\nHi<|im_end|>", "<start_of_turn>user\nHi<end_of_turn>\n", "tab\there\u00a0nbsp\u2009thin\u3000wide",
         "x\n\n\n\n\ny", "   leading and trailing   ", "{\"key\": [1, 2, {\"a\": null}]}", "<0x0A> ▁ literal", "\u0000control\u0007", "https://example.com/path?q=1&r=%20#frag", "<b>bold</b> <table>", "½ ² ① Ⅳ ५"]


def log_softmax_at(logits, at):
    top = logits.max()
    return float(logits[at] - top - math.log(np.exp(logits - top, dtype=np.float64).sum()))


def lead(row, token):
    """By how much the logit of this token leads all others."""
    return round(float(row[token] - max(row[:token].max(initial=-math.inf), row[token + 1:].max(initial=-math.inf))), 5)


def greedy(llm, prompt):
    ids = llm.tokenize(prompt.encode(), add_bos=True, special=True)
    llm.reset()
    llm.eval(ids)
    out, leads = [], []
    for _ in range(N_GREEDY):
        row = llm.scores[llm.n_tokens - 1]
        best = int(row.argmax())
        out.append(best)
        leads.append(lead(row, best))
        llm.eval([best])
    return {"prompt": prompt, "ids": ids, "greedy": out, "leads": leads}


def forced(llm, case, in_one_batch=True):
    """The best token and its lead at each position of the case's greedy tokens."""
    ids, n = case["ids"] + case["greedy"][:-1], len(case["ids"])
    llm.reset()
    for part in [ids] if in_one_batch else [ids[:n], *([i] for i in ids[n:])]:
        llm.eval(part)
    rows = llm.scores[n - 1:n - 1 + N_GREEDY]
    return [(int(row.argmax()), lead(row, int(row.argmax()))) for row in rows]


def n_others(llm, cases, **how):
    return sum(led > MARGIN and best != token for case in cases for token, led, (best, _) in zip(case["greedy"], case["leads"], forced(llm, case, **how)))


def window_ids(llm):
    lines = (HERE.parent / "e2e/data/mt_bench_questions.jsonl").read_text().splitlines()
    text = [turn for line in lines for turn in json.loads(line)["turns"]]
    with gzip.open(HERE.parent / "e2e/data/HumanEval.jsonl.gz", "rt") as tasks:
        text += [json.loads(line)["prompt"] for line in tasks]
    ids = llm.tokenize("\n\n".join(text).encode(), add_bos=False, special=False)
    bos = [llm.token_bos()] if llm.tokenize(b"", add_bos=True) else []
    for i in range(N_WINDOWS):
        window = (bos + ids[i * WINDOW:(i + 1) * WINDOW])[:WINDOW]
        assert len(window) == WINDOW, len(ids)
        yield window


def mean_nll(llm, window):
    llm.reset()
    llm.eval(window)
    return round(-sum(log_softmax_at(llm.scores[k - 1].astype(np.float64), window[k]) for k in range(1, WINDOW)) / (WINDOW - 1), 6)


def open_model(path, **more):
    return Llama(str(path), n_ctx=512, n_batch=512, n_ubatch=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False, **more)


F32_KV = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}


def usual(path):
    llm = open_model(path)
    cases = [greedy(llm, prompt) for prompt in PROMPTS]
    ways = {"in one batch": n_others(llm, cases), "flash attention": n_others(open_model(path, flash_attn=True), cases, in_one_batch=False),
            "keys and values in F32": n_others(open_model(path, **F32_KV), cases, in_one_batch=False)}
    texts = [{"text": t, "ids": llm.tokenize(t.encode(), add_bos=True, special=True)} for t in TEXTS]
    return {"file": path.name, "texts": texts, "greedy": cases, "ways": ways, "windows": [{"ids": window, "nll": mean_nll(llm, window)} for window in window_ids(llm)]}


def add_exact(path, found):
    """In the OpenBLAS build."""
    assert "BLAS = 1" in llama_cpp.llama_print_system_info().decode() or list(pathlib.Path(llama_cpp.__file__).parent.glob("lib/libggml-blas*")), "this build has no OpenBLAS"
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def without_repacking():
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = without_repacking
    llm = open_model(path, **F32_KV)
    for case in found["greedy"]:
        case["exact"] = [led if best == token else [best, led] for token, (best, led) in zip(case["greedy"], forced(llm, case))]
    for window in found["windows"]:
        window["exact"] = mean_nll(llm, window["ids"])


def main():
    folder, openblas, *names = sys.argv[1:]
    for name in names or FILES:
        path, out = pathlib.Path(folder) / FILES[name], HERE / "real" / f"{name}.json"
        if openblas == "exact":                     # this script, again, in the OpenBLAS build
            found = json.load(sys.stdin)
            add_exact(path, found)
            json.dump(found, sys.stdout)
            continue
        found = usual(path)
        again = subprocess.run([sys.executable, __file__, folder, "exact", name], input=json.dumps(found), stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PYTHONPATH": openblas})
        found = json.loads(again.stdout)
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(found, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(name, *(f"{key} perplexity {math.exp(sum(w[key] for w in found['windows']) / len(found['windows'])):.5f}" for key in ("nll", "exact")), found["ways"], out.stat().st_size, "bytes", flush=True)


main()
