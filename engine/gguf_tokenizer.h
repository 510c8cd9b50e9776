/* gguf_tokenizer.h - a GGUF file's vocabulary in the form of tokenizer.json, and its chat templates in that of tokenizer_config.json, so that one reader serves both.
 * Models   tokenizer.ggml.model gpt2 (byte-level BPE: merges, and the pre-tokenizer that tokenizer.ggml.pre names) and llama (SentencePiece BPE, gemma's too: scores, byte fallback).
 *          A piece of a SentencePiece vocabulary merges from every two pieces that make it, the higher its score the earlier.
 * Rules    those of the pre-tokenizers' own tokenizer.json files (qwen2 normalizes to NFC, which llama.cpp leaves out); types control and unknown are special tokens, user-defined ones are
 *          cut out of the raw text.
 * Memory   about 100 bytes a token and 60 a merge while the forms live. */
#ifndef ENGINE_GGUF_TOKENIZER_H
#define ENGINE_GGUF_TOKENIZER_H

#include <jansson.h>
#include "engine/gguf.h"

/* *out is the caller's. FL_NOT_FOUND: the file has no tokenizer. FL_UNSUPPORTED, naming what is not served; FL_CORRUPT, naming the key. */
fl_status gguf_tokenizer_make(json_t **out, const gguf *g, fl_err *err);

/* Sentences on what the file leaves open and what is done then; the caller's. NULL without memory. */
json_t *gguf_tokenizer_notes(const gguf *g);

/* chat_template (a string, or a list of named ones) and bos_token, eos_token, unk_token and pad_token, each where the file has it. *out is the caller's. */
fl_status gguf_tokenizer_config_make(json_t **out, const gguf *g, fl_err *err);

#endif
