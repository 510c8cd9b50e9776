/* gguf_type.h - the numbers by which GGUF files name how a tensor is stored and what a file as a whole is. Both are append-only in ggml.
 * Threads  plain functions. */
#ifndef ENGINE_GGUF_TYPE_H
#define ENGINE_GGUF_TYPE_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"

/* How a tensor is stored: blocks of `values` values in `bytes` bytes. */
typedef struct {
    const char *name;                /* "Q4_K" */
    uint32_t values, bytes;
    bool is_weight;                  /* the kernels take it, as `type` */
    dtype type;
} gguf_type;

/* NULL for a number that no type has. */
const gguf_type *gguf_type_find(uint32_t number);

/* general.file_type as people write it: "Q4_K_M"; "GUESSED" for 1024; "" for a number that is not in the list. */
const char *gguf_file_type_tag(int64_t number);

#endif
