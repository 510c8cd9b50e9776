/* gguf_names.h - which tensor of a GGUF file is the one that a family asks for by its name in transformers' checkpoints, and what a converter did to its values.
 * Source   the tensor names of the `gguf` Python package (0.19) for llama, qwen3, qwen3moe, qwen35, qwen35moe, gemma3 and laguna.
 * Threads  plain functions. */
#ifndef ENGINE_GGUF_NAMES_H
#define ENGINE_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* What must be undone. Norm weights (1 is added to gemma's and qwen35's) and the order of DeltaNet's value heads are no matter of one tensor: model_config.h. */
typedef enum {
    GGUF_AS_IS,
    GGUF_TURNED_QUERIES,             /* rows of each head: the two of a rotated pair side by side, instead of half a head apart */
    GGUF_TURNED_KEYS,
    GGUF_DECAY,                      /* -exp(A_log) instead of A_log */
} gguf_change;

/* The family (model_config.h's architecture) of general.architecture; NULL when it is none of ours. */
const char *gguf_family(const char *architecture, size_t n_bytes);

/* Write the name in a GGUF file of `family` for a tensor called `name` ("model.layers.3.mlp.up_proj.weight"). false when such a file has none. */
bool gguf_tensor_name(char *out, size_t capacity, gguf_change *change, const char *family, const char *name);

#endif
