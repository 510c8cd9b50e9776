#!/usr/bin/env python3
"""What batch_bench.c measures, done by llama.cpp through llama-cpp-python's low-level interface: one llama_decode for all prompts, then one a token.

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python
    batch_llama_cpp.py MODEL.gguf [--threads N] [--sequences N] [--prompt N] [--tokens N] [--runs N] [--micro-batch N] [--unified]

Greedy over random prompts, no end token looked at. Choosing the tokens (numpy's argmax) is not counted, since it is Python's time and not llama.cpp's.
"""
import argparse
import ctypes
import time

import llama_cpp as llama
import numpy as np


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def quiet(_level, _text, _data):
    pass


def fill(batch, i, token, position, sequence, wanted):
    batch.token[i] = int(token)
    batch.pos[i] = position
    batch.n_seq_id[i] = 1
    batch.seq_id[i][0] = sequence
    batch.logits[i] = wanted


class Clock:
    def __init__(self):
        self.wall = self.cpu = 0.0

    def decode(self, context, batch):
        wall, cpu = time.perf_counter(), time.process_time()
        if llama.llama_decode(context, batch) != 0:
            raise SystemExit("batch_llama_cpp: llama_decode failed")
        llama.llama_synchronize(context)
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


def run(context, vocab, prompts, n_tokens):
    n_sequences, n_prompt = prompts.shape
    batch = llama.llama_batch_init(n_sequences * n_prompt, 0, 1)
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    batch.n_tokens = n_sequences * n_prompt
    for s in range(n_sequences):
        for p in range(n_prompt):
            fill(batch, s * n_prompt + p, prompts[s, p], p, s, p + 1 == n_prompt)
    prefill, decode = Clock(), Clock()
    prefill.decode(context, batch)
    rows = [s * n_prompt + n_prompt - 1 for s in range(n_sequences)]
    for step in range(n_tokens - 1):
        tokens = [int(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, row), (vocab,)).argmax()) for row in rows]
        for s in range(n_sequences):
            fill(batch, s, tokens[s], n_prompt + step, s, True)
        batch.n_tokens = n_sequences
        rows = range(n_sequences)
        decode.decode(context, batch)
    llama.llama_batch_free(batch)
    n_in, n_out = n_sequences * n_prompt, n_sequences * (n_tokens - 1)
    print(f"prefill {n_in / prefill.wall:.1f} tok/s ({n_in} tokens, {prefill.wall:.3f} s, cpu {prefill.cpu:.3f} s)  "
          f"decode {n_out / decode.wall:.1f} tok/s ({n_out} tokens, {decode.wall:.3f} s, cpu {decode.cpu:.3f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name, value in ("threads", 2), ("sequences", 16), ("prompt", 128), ("tokens", 128), ("runs", 3), ("micro-batch", 512):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--unified", action="store_true", help="one KV buffer for all sequences")
    args = parser.parse_args()
    llama.llama_backend_init()
    llama.llama_log_set(quiet, None)
    model_params = llama.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(args.model.encode(), model_params)
    params = llama.llama_context_default_params()
    params.n_ctx = args.sequences * ((args.prompt + args.tokens + 255) // 256 * 256)
    params.n_batch, params.n_ubatch = args.sequences * args.prompt, args.micro_batch
    params.n_seq_max, params.n_threads, params.n_threads_batch = args.sequences, args.threads, args.threads
    params.kv_unified = args.unified
    context = llama.llama_init_from_model(model, params)
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    dice = np.random.default_rng(1)
    for _ in range(args.runs):
        run(context, vocab, dice.integers(1000, vocab, (args.sequences, args.prompt)), args.tokens)


main()
