#!/usr/bin/env python3
"""Write what llama.cpp says of the real models of ops/get-model into tests/golden/real/NAME.json, for tests/e2e/real_model_test.py.

Needs llama-cpp-python (made with 0.3.36, CPU, default settings) and the models; the test needs neither package.

greedy   20 prompts: their ids, 64 greedy tokens, and by how much the logit of each leads the next best one.
windows  text of MT-Bench's questions (tests/e2e/data) in windows of 500 tokens, each from an empty context: ids and the mean negative log-likelihood of tokens 1 to 499.
texts    ids of hard texts: white space, numbers, code, other scripts, special tokens.

usage: make_llama_cpp_vectors.py FOLDER [NAME...]"""
import json
import math
import pathlib
import sys

import numpy as np
from llama_cpp import Llama

HERE = pathlib.Path(__file__).resolve().parent
FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
N_GREEDY, WINDOW, N_WINDOWS = 64, 500, 20
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


def greedy(llm, prompt):
    ids = llm.tokenize(prompt.encode(), add_bos=True, special=True)
    llm.reset()
    llm.eval(ids)
    out, margins = [], []
    for _ in range(N_GREEDY):
        row = llm.scores[llm.n_tokens - 1]
        best = int(row.argmax())
        out.append(best)
        margins.append(round(float(row[best] - np.partition(row, -2)[-2]), 5))
        llm.eval([best])
    return {"prompt": prompt, "ids": ids, "greedy": out, "margins": margins}


def windows(llm):
    lines = (HERE.parent / "e2e/data/mt_bench_questions.jsonl").read_text().splitlines()
    text = "\n\n".join(turn for line in lines for turn in json.loads(line)["turns"])
    ids = llm.tokenize(text.encode(), add_bos=False, special=False)
    bos = [llm.token_bos()] if llm.tokenize(b"", add_bos=True) else []
    for i in range(N_WINDOWS):
        window = (bos + ids[i * WINDOW:(i + 1) * WINDOW])[:WINDOW]
        assert len(window) == WINDOW, len(ids)
        llm.reset()
        llm.eval(window)
        nll = -sum(log_softmax_at(llm.scores[k - 1].astype(np.float64), window[k]) for k in range(1, WINDOW)) / (WINDOW - 1)
        yield {"ids": window, "nll": round(nll, 6)}


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or FILES:
        llm = Llama(str(folder / FILES[name]), n_ctx=1024, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
        encode = lambda t: llm.tokenize(t.encode(), add_bos=True, special=True)
        path = HERE / "real" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        vectors = {"file": FILES[name], "texts": [{"text": t, "ids": encode(t)} for t in TEXTS], "greedy": [greedy(llm, p) for p in PROMPTS], "windows": []}
        for window in windows(llm):                      # what there is is written, since this takes minutes
            vectors["windows"].append(window)
            vectors["perplexity"] = round(math.exp(sum(w["nll"] for w in vectors["windows"]) / len(vectors["windows"])), 5)
            path.write_text(json.dumps(vectors, ensure_ascii=True, separators=(",", ":")) + "\n")
            print(name, len(vectors["windows"]), "windows, perplexity", vectors["perplexity"], path.stat().st_size, "bytes", flush=True)


main()
