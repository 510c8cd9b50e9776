#!/usr/bin/env python3
"""Write what llama.cpp says of the real models of ops/get-model into tests/golden/real/NAME.json, for tests/e2e/real_model_test.py.

Needs llama-cpp-python (made with 0.3.36, CPU) and the models; the test needs neither.

greedy   20 prompts: their ids, 64 greedy tokens, and by how much the logit of each leads the next best one. Of the file's weights in F32, as llama.cpp itself writes them (llama-quantize),
         with keys and values in F32: with the file as it is llama.cpp rounds what products take to 8 bits, which moves a lead by 0.12 to 0.14 on average and by 0.8 at most, so its own
         two ways differ where it leads by more than 0.1.
default  what llama.cpp chooses behind the same tokens with the file as it is and its usual settings, and its lead: [token, lead, lead of the token of `greedy`], where it chooses another.
windows  10,000 tokens of text, MT-Bench's questions and HumanEval's prompts (tests/e2e/data), in windows of 500, each from an empty context, ids and the mean negative log-likelihood of
         tokens 1 to 499, with the file as it is (nll) and of the weights in F32 (exact).
texts    ids of hard texts: white space, numbers, code, other scripts, special tokens.

usage: make_llama_cpp_vectors.py FOLDER [NAME...]"""
import gzip
import json
import math
import pathlib
import sys
import tempfile

import llama_cpp
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


def lead(row, token):
    """By how much the logit of this token leads all others."""
    return round(float(row[token] - max(row[:token].max(initial=-math.inf), row[token + 1:].max(initial=-math.inf))), 5)


def greedy(llm, prompt):
    ids = llm.tokenize(prompt.encode(), add_bos=True, special=True)
    llm.reset()
    llm.eval(ids)
    out, margins = [], []
    for _ in range(N_GREEDY):
        row = llm.scores[llm.n_tokens - 1]
        best = int(row.argmax())
        out.append(best)
        margins.append(lead(row, best))
        llm.eval([best])
    return {"prompt": prompt, "ids": ids, "greedy": out, "margins": margins}


def others(llm, case):
    """Where the file as it is, token by token behind the same tokens, has another best one."""
    llm.reset()
    llm.eval(case["ids"])
    found = {}
    for i, token in enumerate(case["greedy"]):
        row = llm.scores[llm.n_tokens - 1]
        best = int(row.argmax())
        if best != token:
            found[i] = [best, lead(row, best), lead(row, token)]
        llm.eval([token])
    return found


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
    return Llama(str(path), n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False, **more)


def in_f32(path, folder):
    """The same weights in F32, written by llama.cpp."""
    settings, out = llama_cpp.llama_model_quantize_default_params(), pathlib.Path(folder) / "f32.gguf"
    settings.ftype, settings.allow_requantize, settings.nthread = llama_cpp.LLAMA_FTYPE_ALL_F32, True, 1
    assert llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), settings) == 0
    return out


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or FILES:
        with tempfile.TemporaryDirectory() as f32:       # unlinked when it is mapped
            exact = open_model(in_f32(folder / FILES[name], f32), type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
        cases = [greedy(exact, p) for p in PROMPTS]
        llm = open_model(folder / FILES[name])
        for case in cases:
            case["default"] = others(llm, case)
        texts = [{"text": t, "ids": llm.tokenize(t.encode(), add_bos=True, special=True)} for t in TEXTS]
        windows = [{"ids": window, "nll": mean_nll(llm, window), "exact": mean_nll(exact, window)} for window in window_ids(llm)]
        path = HERE / "real" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"file": FILES[name], "texts": texts, "greedy": cases, "windows": windows}, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(name, *(f"{key} perplexity {math.exp(sum(w[key] for w in windows) / len(windows)):.5f}" for key in ("nll", "exact")), path.stat().st_size, "bytes", flush=True)


main()
