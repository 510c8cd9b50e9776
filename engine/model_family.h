/* model_family.h - what a file of engine/models/ gives to model.c, and the helpers it binds its weights with.
 * A family   reads tensors into views at bind (shapes checked, values finite), sizes its activations once, and computes forward() in terms of ops.h. */
#ifndef ENGINE_MODEL_FAMILY_H
#define ENGINE_MODEL_FAMILY_H

#include "engine/model.h"
#include "engine/weight_store.h"
#include "proto/arena.h"

/* What a weight is for: a factor of ops.linear or of linear_f32, another matrix, or no factor of a product. */
typedef enum { WEIGHT_LINEAR, WEIGHT_LINEAR_F32, WEIGHT_MATRIX, WEIGHT_SMALL } weight_use;

#define PRODUCTS_MAX 64

/* The different products of a model, with one weight each. */
typedef struct { ops_product v[PRODUCTS_MAX]; int32_t n; } product_list;

/* Bind context: where tensors come from and where views go. */
typedef struct {
    const weight_files *weights;     /* NULL: every tensor that is asked for is there, with random values of random_seed */
    uint64_t random_seed;
    weight_store *store;             /* where values go on a device; NULL: they stay mapped (or, when dry, nobody asks where) */
    product_list *products;          /* grows by what is new; those beyond its end are slower */
    const model_config *config;
    const char *prefix;              /* of the text model's tensors: "model.", "model.language_model." ... */
    fl_arena *arena;                 /* of views; lives as long as the model */
    bool is_dry;                     /* names, shapes and dtypes are checked, a store measures; no value is read, nothing is expanded */
    fl_arena *values;                /* where weights are made anew (model.h); lives as long as the model */
    int32_t *quantized_cols;         /* grows to the most columns of a quantized weight */
    size_t *expanded_bytes;          /* grows with what they take, also when dry */
    bool *is_used;                   /* [tensors of the files] set for each that is asked for; NULL: nobody wants to know */
} bind_context;

/* Activations in the device's memory, laid out one behind the other. Without a base they are only measured, so that what is taken is known before it is. */
typedef struct { uint8_t *base; size_t n_bytes; } scratch_space;
void *scratch_take(scratch_space *s, size_t n_bytes);    /* 256-byte aligned; NULL while measured */

/* A matrix from rows * cols values named prefix + name (name is a printf format). Shapes [rows, cols], or [cols] when rows is 1, or
 * [rows, 1, cols] (a depthwise convolution). Values stay in the mapping or are made anew (model.h). FL_NOT_FOUND, FL_CORRUPT (shape, NaN) or FL_UNSUPPORTED (dtype; a vector of a
 * quantized type), naming file and tensor. */
fl_status bind_weight(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...) __attribute__((format(printf, 6, 7)));

/* The same of a factor of linear_f32: routers, gates of a head, the head of the model. */
fl_status bind_gate(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...) __attribute__((format(printf, 6, 7)));

/* The same of a matrix for other operations: one expert's, the embedding. */
fl_status bind_matrix(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...) __attribute__((format(printf, 6, 7)));

/* The same of what is no factor of a product: norms, biases, taps of a convolution. On a device it is fp32. */
fl_status bind_small(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...) __attribute__((format(printf, 6, 7)));

/* The experts' matrices stacked in one tensor [n, rows, cols]: out[i] views the i-th. */
fl_status bind_stack(weight *out, const bind_context *c, int32_t n, int32_t rows, int32_t cols, fl_err *err, const char *name, ...) __attribute__((format(printf, 7, 8)));
bool      bind_has(const bind_context *c, const char *name, ...) __attribute__((format(printf, 2, 3)));

/* Rows begin .. begin + n_rows - 1 of a matrix. */
weight weight_rows(const weight *w, int32_t begin, int32_t n_rows);

/* What forward() works on. */
typedef struct {
    const model_config *config;
    void *weights;                   /* the family's own, from bind */
    void *scratch;                   /* the family's own, scratch_bytes of it, set by plan */
    const weight *embed;             /* [n_vocab, hidden] */
    ops_rope rope[2];                /* of full and of sliding layers; empty where the model has no such layer */
    ops *o;                          /* borrowed */
    int32_t **routing_ids; float **routing_weights;      /* [mixture layers so far] of [n_rows_max, top_k], device */
} family_view;

typedef struct {
    const char *name;
    size_t scratch_bytes;            /* of the struct, on the host, whose pointers plan sets */
    fl_status (*bind)(void **weights, const bind_context *c, fl_err *err);                       /* everything in c->arena */
    void (*plan)(void *scratch, const model_config *config, const ops *o, int32_t n_rows_max, scratch_space *space);
    void (*forward)(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x);     /* x [n_rows, hidden], before the final norm */
} model_family;

extern const model_family llama_family, qwen3_family, qwen3_moe_family, qwen3_5_family, qwen3_5_moe_family, laguna_family, gemma3_family;

#endif
