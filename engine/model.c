#include "engine/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "engine/fp8.h"
#include "engine/gguf_config.h"
#include "engine/model_family.h"
#include "engine/model_shapes.h"
#include "engine/rope_table.h"
#include "kernels/quant.h"
#include "proto/log.h"

static const model_family *const families[] = { &llama_family, &qwen3_family, &qwen3_moe_family, &qwen3_5_family, &qwen3_5_moe_family, &laguna_family, &gemma3_family };

struct model {
    model_config config;
    const model_family *family;
    weight_files *weights;               /* owned; NULL when they are random */
    uint64_t random_seed;
    ops *o;                              /* borrowed; NULL before model_load */
    fl_arena fixed, views, values;       /* what layers hold of activations; views of weights; values made anew on the host */
    weight_store store;                  /* the weights on a device, and random ones */
    rope_table ropes[2];                 /* of full and of sliding layers; the second stays empty where they are equal */
    scratch_space scratch;               /* activations: owned memory of the device */
    family_view view;
    product_list products;
    weight embed, head, final_norm;
    float *x, *picked;                   /* [n_rows_max, hidden]: the residual stream */
    int32_t n_rows_max, context_max;
    size_t expanded_bytes;
    int32_t quantized_cols;              /* most columns of a quantized weight; 0 = there is none */
    int32_t n_moe_layers, *moe_layer;    /* layer number of each MoE layer */
    int32_t **routing_ids; float **routing_weights;
};

/* ---- binding ---- */

static const tensor *find_named(char *name, size_t capacity, gguf_change *change, const bind_context *c, const char *format, va_list args)
{
    size_t used = (size_t)snprintf(name, capacity, "%s", c->prefix);
    vsnprintf(name + used, capacity - used, format, args);
    return c->weights ? weight_files_find(c->weights, name, change) : NULL;
}

/* A vector is read value by value, so it is not quantized. */
static fl_status check_tensor(const tensor *t, const bind_context *c, const char *name, bool is_vector, fl_err *err)
{
    const gguf *g = weight_files_gguf(c->weights);
    gguf_change change;
    char there[256];
    if (!t && g && gguf_tensor_name(there, sizeof there, &change, c->config->architecture, name)) return fl_fail(err, FL_NOT_FOUND, "%s: tensor %s, which the metadata asks for, is missing", gguf_name(g), there);
    if (!t) return fl_fail(err, FL_NOT_FOUND, "weights: tensor %s, which %s asks for, is missing", name, g ? "the metadata" : "config.json");
    if (!t->is_weight && !t->is_fp8 && g)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has the type %s; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4 and NVFP4 are supported", t->file, t->name, t->dtype_name);
    if (!t->is_weight && !t->is_fp8)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has dtype %s; BF16, F16, F32 and F8_E4M3 with scales are supported", t->file, name, t->dtype_name);
    if (is_vector && t->is_weight && dtype_is_quantized(t->type))
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s is a vector of type %s; F32, F16 and BF16 are supported for vectors", t->file, t->name, t->dtype_name);
    return FL_OK;
}

static fl_status refuse_shape(const tensor *t, const bind_context *c, const char *want, fl_err *err)
{
    char shape[160];
    size_t used = 0;
    for (int32_t i = 0; i < t->n_dims; i++) used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    return fl_fail(err, FL_CORRUPT, "%s: tensor %s has shape [%s], %s asks for [%s]", t->file, t->name, t->n_dims ? shape : "", weight_files_gguf(c->weights) ? "the metadata" : "config.json", want);
}

/* Random values like those of trained weights: what is multiplied with is near 1, what is added near 0, and a product keeps the size of what goes in. */
static void choose_values(weight_source *s, const bind_context *c, const char *name)
{
    static const struct { const char *part; float middle, reach; } kinds[] = {
        { "linear_attn.norm.weight", 1.0f, 0.1f }, { "A_log", 1.4f, 1.4f }, { "dt_bias", -2.0f, 2.0f }, { "conv1d", 0.0f, 0.5f }, { "bias", 0.0f, 0.02f },
    };
    const size_t n = strlen(name);
    s->seed = XXH3_64bits_withSeed(name, n, c->random_seed);
    s->reach = sqrtf(3.0f / (float)(strstr(name, "embed_tokens") ? s->cols / 4 + 1 : s->cols));
    if (n >= 11 && strcmp(name + n - 11, "norm.weight") == 0) { s->middle = 1.0f - c->config->norm_add; s->reach = 0.1f; }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(name, kinds[i].part)) { s->middle = kinds[i].middle; s->reach = kinds[i].reach; return; }
}

/* The scales beside an F8_E4M3 tensor. */
static fl_status find_scale(weight_source *s, const bind_context *c, fl_err *err)
{
    static const char *const ends[] = { "_scale_inv", "_scale" };
    for (int i = 0; i < 2 && !s->scale; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s%s", s->t->name, ends[i]);
        s->scale = weight_files_find(c->weights, name, NULL);
    }
    if (!s->scale) return fl_fail(err, FL_NOT_FOUND, "%s: tensor %s has dtype F8_E4M3, but neither %s_scale_inv nor %s_scale is there", s->t->file, s->t->name, s->t->name, s->t->name);
    return c->is_dry ? fp8_check(s->t, s->scale, s->n, s->rows, s->cols, s->fp8_block, err) : FL_OK;
}

/* Undo what a converter did to a tensor, in the arena: turned rows move as they are stored, decays become fp32. */
static fl_status undo_change(weight *out, const bind_context *c, const weight_source *s, fl_err *err)
{
    const bool is_decay = s->change == GGUF_DECAY, is_bias = s->rows == 1;
    if (is_decay) out->type = DTYPE_F32;
    const size_t row_bytes = dtype_row_bytes(out->type, is_bias ? 1 : s->cols), n_rows = (size_t)(is_bias ? s->cols : s->rows), bytes = n_rows * row_bytes;
    *c->expanded_bytes += bytes;
    if (c->is_dry) return FL_OK;
    fl_status st = tensor_check_finite(s->t, err);
    uint8_t *made = st == FL_OK ? fl_arena_take(c->values, bytes) : NULL;
    if (st != FL_OK) return st;
    if (!made) return fl_fail(err, FL_FULL, "model: no memory for tensor %s made anew (%zu bytes)", s->t->name, bytes);
    out->data = made;
    if (is_decay) return weight_source_read((float *)(void *)made, s, 0, 1, err);
    for (size_t r = 0; r < n_rows; r++) memcpy(made + r * row_bytes, s->t->data + (size_t)weight_source_row(s, (int64_t)r) * row_bytes, row_bytes);
    return FL_OK;
}

/* fp32 values in the arena, of a tensor beside scales or factors. */
static fl_status expand_values(weight *out, const bind_context *c, const weight_source *s, fl_err *err)
{
    const size_t bytes = (size_t)s->n * (size_t)s->rows * (size_t)s->cols * sizeof(float);
    *c->expanded_bytes += bytes;
    out->type = DTYPE_F32;
    if (c->is_dry) return FL_OK;
    float *values = fl_arena_take(c->values, bytes);
    if (!values) return fl_fail(err, FL_FULL, "model: no memory for tensor %s expanded from %s (%zu bytes)", s->t->name, s->t->dtype_name, bytes);
    out->data = values;
    if (s->t->is_fp8) return fp8_expand(values, s->t, s->scale, s->n, s->rows, s->cols, s->fp8_block, err);
    fl_status st = tensor_check_finite(s->t, err);
    if (st == FL_OK) st = tensor_check_finite(s->scale, err);
    return st == FL_OK ? weight_source_read(values, s, 0, s->n * s->rows, err) : st;
}

/* The values as kernels on the host take them: where they are mapped, or made anew in the arena. */
static fl_status take_values(weight *out, const bind_context *c, const weight_source *s, fl_err *err)
{
    *out = (weight){ s->t->data, s->t->type, s->rows, s->cols };
    if (s->scale) return expand_values(out, c, s, err);
    if (s->t->is_weight && dtype_is_quantized(s->t->type) && s->cols > *c->quantized_cols) *c->quantized_cols = s->cols;
    if (s->change != GGUF_AS_IS) return undo_change(out, c, s, err);
    return c->is_dry ? FL_OK : tensor_check_finite(s->t, err);
}

static void note_product(product_list *list, const weight *w, weight_use use)
{
    const bool is_f32 = use == WEIGHT_LINEAR_F32;
    if (use == WEIGHT_SMALL || use == WEIGHT_MATRIX || list->n == PRODUCTS_MAX) return;
    for (int32_t i = 0; i < list->n; i++)
        if (list->v[i].w.n_rows == w->n_rows && list->v[i].w.n_cols == w->n_cols && list->v[i].w.type == w->type && list->v[i].is_f32 == is_f32) return;
    list->v[list->n++] = (ops_product){ .w = *w, .is_f32 = is_f32 };
}

/* Find the tensor `name`, hold its shape against n (0: one matrix) of [rows, cols], and view or store its values. */
static fl_status bind_tensor(weight *out, const bind_context *c, int32_t n, int32_t rows, int32_t cols, weight_use use, fl_err *err, const char *format, va_list args)
{
    char name[256], want[64];
    gguf_change change = GGUF_AS_IS;
    const tensor *t = find_named(name, sizeof name, &change, c, format, args);
    weight_source source = { .t = t, .n = n ? n : 1, .rows = rows, .cols = cols, .fp8_block = c->config->fp8_block, .change = change, .head_dim = c->config->head_dim };
    fl_status st = FL_OK;
    if (t && c->is_used) c->is_used[weight_files_index(c->weights, t)] = true;
    if (c->weights) {
        if ((st = check_tensor(t, c, name, use == WEIGHT_SMALL || rows == 1, err)) != FL_OK) return st;
        bool fits = n ? t->n_dims == 3 && t->shape[0] == n && t->shape[1] == rows && t->shape[2] == cols
                      : (t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols) || (t->n_dims == 1 && rows == 1 && t->shape[0] == cols)
                     || (t->n_dims == 3 && t->shape[0] == rows && t->shape[1] == 1 && t->shape[2] == cols);
        if (!fits) {
            if (n) snprintf(want, sizeof want, "%d, %d, %d", n, rows, cols);
            else if (rows == 1) snprintf(want, sizeof want, "%d", cols);
            else snprintf(want, sizeof want, "%d, %d", rows, cols);
            return refuse_shape(t, c, want, err);
        }
        if (t->is_fp8) st = find_scale(&source, c, err);
        else if ((source.scale = weight_files_factors(c->weights, t)) && c->is_dry) st = weight_source_check_factors(&source, err);
        if (st != FL_OK) return st;
    } else {
        choose_values(&source, c, name);
    }
    if (c->store) st = weight_store_put(c->store, out, &source, use == WEIGHT_SMALL, err);
    else if (c->weights) st = take_values(out, c, &source, err);
    else *out = (weight){ NULL, DTYPE_BF16, rows, cols };        /* random, and only looked at */
    if (st == FL_OK && !c->is_dry) note_product(c->products, out, use);
    return st;
}

fl_status bind_weight(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    fl_status st = bind_tensor(out, c, 0, rows, cols, WEIGHT_LINEAR, err, name, args);
    va_end(args);
    return st;
}

fl_status bind_gate(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    fl_status st = bind_tensor(out, c, 0, rows, cols, WEIGHT_LINEAR_F32, err, name, args);
    va_end(args);
    return st;
}

fl_status bind_matrix(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    fl_status st = bind_tensor(out, c, 0, rows, cols, WEIGHT_MATRIX, err, name, args);
    va_end(args);
    return st;
}

fl_status bind_small(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    fl_status st = bind_tensor(out, c, 0, rows, cols, WEIGHT_SMALL, err, name, args);
    va_end(args);
    return st;
}

fl_status bind_stack(weight *out, const bind_context *c, int32_t n, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    weight all;
    va_list args;
    va_start(args, name);
    fl_status st = bind_tensor(&all, c, n, rows, cols, WEIGHT_MATRIX, err, name, args);
    va_end(args);
    if (st != FL_OK) return st;
    const weight stack = { all.data, all.type, n * rows, cols };
    for (int32_t i = 0; i < n; i++) out[i] = weight_rows(&stack, i * rows, rows);
    return FL_OK;
}

bool bind_has(const bind_context *c, const char *name, ...)
{
    char full[256];
    va_list args;
    va_start(args, name);
    const tensor *t = find_named(full, sizeof full, NULL, c, name, args);
    va_end(args);
    return t != NULL || !c->weights;
}

weight weight_rows(const weight *w, int32_t begin, int32_t n_rows)
{
    FL_ASSERT(begin >= 0 && begin + n_rows <= w->n_rows);
    const uint8_t *data = w->data;                       /* NULL while measured */
    return (weight){ data ? data + (size_t)begin * dtype_row_bytes(w->type, w->n_cols) : NULL, w->type, n_rows, w->n_cols };
}

/* Where the text model's tensors begin, and its head: a causal LM's, one nested in a vision model (transformers 5, 4), or a model saved without a head. */
static const struct { const char *body, *head; } prefixes[] = {
    { "model.", "" }, { "model.language_model.", "" }, { "language_model.model.", "language_model." }, { "", "" },
};

static size_t find_prefix(const weight_files *weights)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[64];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i].body);
        if (weight_files_find(weights, name, NULL)) return i;
    }
    return 0;
}

static fl_status bind_ends(model *m, const bind_context *c, const char *head_prefix, fl_err *err)
{
    const model_config *config = &m->config;
    bind_context top = *c;
    top.prefix = head_prefix;
    fl_status st = bind_matrix(&m->embed, c, config->n_vocab, config->hidden, err, "embed_tokens.weight");
    if (st == FL_OK) st = bind_small(&m->final_norm, c, 1, config->hidden, err, "norm.weight");
    if (st == FL_OK && config->tied_head) {
        m->head = m->embed;
        if (!c->is_dry) note_product(c->products, &m->head, WEIGHT_LINEAR_F32);
    }
    if (st == FL_OK && !config->tied_head) st = bind_gate(&m->head, &top, config->n_vocab, config->hidden, err, "lm_head.weight");
    return st;
}

/* All weights of the text model, once without reading a value and once for use; into `store` where that is given. is_used: bind_context's. */
static fl_status bind_all(model *m, bool is_dry, weight_store *store, bool *is_used, fl_err *err)
{
    const size_t prefix = m->weights ? find_prefix(m->weights) : 0;
    bind_context c = { .weights = m->weights, .random_seed = m->random_seed, .store = store, .config = &m->config, .prefix = prefixes[prefix].body,
                       .products = &m->products, .arena = &m->views, .is_dry = is_dry, .values = &m->values, .quantized_cols = &m->quantized_cols, .expanded_bytes = &m->expanded_bytes, .is_used = is_used };
    m->expanded_bytes = 0;
    m->products.n = 0;
    fl_arena_fini(&m->views);                            /* of the time before */
    fl_arena_init(&m->views, 1 << 16, 0);
    fl_status st = bind_ends(m, &c, prefixes[prefix].head, err);
    return st == FL_OK ? m->family->bind(&m->view.weights, &c, err) : st;
}

/* ---- memory ---- */

void *scratch_take(scratch_space *s, size_t n_bytes)
{
    uint8_t *taken = s->base ? s->base + s->n_bytes : NULL;
    s->n_bytes += (n_bytes + 255) / 256 * 256;
    return taken;
}

static bool has_layers(const model_config *c, layer_kind kind)
{
    bool has = false;
    for (int32_t i = 0; i < c->n_layers; i++) has |= c->layers[i].kind == kind;
    return has;
}

/* Whether layers of a kind have a rotary table of their own: sliding ones share the full layers' where the two are equal. */
static bool has_table(const model_config *c, int which)
{
    const bool full = has_layers(c, LAYER_FULL_ATTENTION), sliding = has_layers(c, LAYER_SLIDING_ATTENTION);
    return which == 0 ? full : sliding && !(full && memcmp(&c->rope[0], &c->rope[1], sizeof c->rope[0]) == 0);
}

static int32_t context_within(const model *m, int32_t context_max)
{
    return context_max > 0 && context_max < m->config.context_max ? context_max : m->config.context_max;
}

/* What forward() works on, [n_rows, ...] each: measured while the space has no base. */
static void lay_activations(model *m, const ops *o, int32_t n_rows, scratch_space *space)
{
    const size_t rows = (size_t)n_rows, top_k = (size_t)m->config.moe.top_k;
    m->x = scratch_take(space, rows * (size_t)m->config.hidden * sizeof(float));
    m->picked = scratch_take(space, rows * (size_t)m->config.hidden * sizeof(float));
    m->n_moe_layers = 0;
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        if (!m->config.layers[i].is_mixture) continue;
        m->moe_layer[m->n_moe_layers] = i;
        m->routing_ids[m->n_moe_layers] = scratch_take(space, rows * top_k * sizeof(int32_t));
        m->routing_weights[m->n_moe_layers++] = scratch_take(space, rows * top_k * sizeof(float));
    }
    m->family->plan(m->view.scratch, &m->config, o, n_rows, space);
}

/* What products with quantized weights take beside their activations. */
static size_t room_bytes(const model *m, const ops *o) { return o->is_host && m->quantized_cols > 0 ? o->quant_room_bytes(o, m->quantized_cols) : 0; }

/* Weights are stored apart on a device, and where there are no files. */
static bool is_stored(const model *m, const ops *o) { return !o->is_host || !m->weights; }

fl_status model_measure(model_needs *out, model *m, const ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err)
{
    scratch_space space = { 0 };
    weight_store store = { .type = weight_store_type(o) };
    FL_ASSERT(!m->o);
    fl_status st = bind_all(m, true, is_stored(m, o) ? &store : NULL, NULL, err);
    if (st != FL_OK) return st;
    lay_activations(m, o, n_rows_max, &space);
    model_needs needs = { .stored_bytes = store.n_bytes, .expanded_bytes = m->expanded_bytes, .table_bytes = m->views.total_bytes, .scratch_bytes = space.n_bytes, .room_bytes = room_bytes(m, o) };
    for (size_t i = 0; m->weights && i < weight_files_count(m->weights); i++) needs.mapped_bytes += weight_files_at(m->weights, i)->n_bytes;
    for (int i = 0; i < 2; i++) if (has_table(&m->config, i)) needs.rope_bytes += rope_table_bytes(&m->config.rope[i], context_within(m, context_max));
    *out = needs;
    return FL_OK;
}

/* ---- open ---- */

/* random:SEED:CONFIG_DIR, where CONFIG_DIR may be the name of a shape that is built in (model_shapes.h). */
static fl_status read_config(model *m, const char *path, bool *is_random, fl_err *err)
{
    char dir[4096];
    const char *shape = NULL;
    fl_status st = model_path_split(path, dir, sizeof dir, &shape, &m->random_seed, is_random, err);
    if (st != FL_OK) return st;
    return shape ? model_config_parse(&m->config, shape, strlen(shape), NULL, 0, err) : model_config_read(&m->config, dir, err);
}

/* What layers hold of activations, on the host. */
static fl_status take_fixed(model *m, fl_err *err)
{
    const size_t n = (size_t)m->config.n_layers;
    m->moe_layer = fl_arena_take(&m->fixed, n * sizeof *m->moe_layer);
    m->routing_ids = fl_arena_take(&m->fixed, n * sizeof *m->routing_ids);
    m->routing_weights = fl_arena_take(&m->fixed, n * sizeof *m->routing_weights);
    m->view.scratch = fl_arena_take(&m->fixed, m->family->scratch_bytes);
    return m->moe_layer && m->routing_ids && m->routing_weights && m->view.scratch ? FL_OK : fl_fail(err, FL_FULL, "model: no memory for %d layers", m->config.n_layers);
}

/* Find every tensor, hold its shape against the config, and refuse a GGUF file of which something would be left over. (Directories may hold parts that see, or guess further tokens.) */
static fl_status bind_names(model *m, fl_err *err)
{
    const gguf *g = m->weights ? weight_files_gguf(m->weights) : NULL;
    bool *is_used = g ? calloc(gguf_tensor_count(g) + 1, sizeof *is_used) : NULL;
    if (g && !is_used) return fl_fail(err, FL_FULL, "model: no memory for a list of %zu tensors", gguf_tensor_count(g));
    fl_status st = bind_all(m, true, NULL, is_used, err);
    if (st == FL_OK && g) st = gguf_config_check_rest(g, m->config.n_layers, is_used, err);
    free(is_used);
    return st;
}

fl_status model_map(model **out, const char *path, fl_err *err)
{
    fl_status status = FL_OK;
    bool is_random = false;
    model *m = calloc(1, sizeof *m);
    if (!m) { status = fl_fail(err, FL_FULL, "model: no memory"); goto done; }
    fl_arena_init(&m->fixed, 1 << 12, 0);
    fl_arena_init(&m->views, 1 << 16, 0);
    fl_arena_init(&m->values, 1 << 16, 0);
    if ((status = read_config(m, path, &is_random, err)) != FL_OK) goto done;
    m->context_max = m->config.context_max;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i]->name, m->config.architecture) == 0) m->family = families[i];
    FL_ASSERT(m->family);                                /* the config's table and this one name the same families */
    if (!is_random && (status = weight_files_open(&m->weights, path, err)) != FL_OK) goto done;
    if ((status = take_fixed(m, err)) != FL_OK) goto done;
    if ((status = bind_names(m, err)) != FL_OK) goto done;
    *out = m;
    m = NULL;
done:
    model_close(m);
    return status;
}

fl_status model_load(model *m, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err)
{
    model_needs needs;
    void *scratch = NULL;
    fl_status st = model_measure(&needs, m, o, n_rows_max, context_max, err);
    if (st != FL_OK) return st;
    m->o = o;
    m->context_max = context_within(m, context_max);
    m->n_rows_max = n_rows_max;
    if (is_stored(m, o)) {
        st = weight_store_open(&m->store, o, needs.stored_bytes, err);
        if (st == FL_OK) st = bind_all(m, false, &m->store, NULL, err);
        if (st == FL_OK) st = weight_store_finish(&m->store, err);
    } else {
        st = bind_all(m, false, NULL, NULL, err);
        if (st == FL_OK && needs.room_bytes > 0) st = o->quant_room(o, m->quantized_cols, err);
    }
    for (int i = 0; st == FL_OK && i < 2; i++) if (has_table(&m->config, i)) st = rope_table_open(&m->ropes[i], o, &m->config.rope[i], m->context_max, err);
    if (st == FL_OK) st = o->take(o, &scratch, needs.scratch_bytes, "the activations of a step", err);
    if (st != FL_OK) return st;
    m->scratch.base = scratch;
    lay_activations(m, o, n_rows_max, &m->scratch);
    FL_ASSERT(m->scratch.n_bytes == needs.scratch_bytes && m->views.total_bytes == needs.table_bytes && m->ropes[0].n_bytes + m->ropes[1].n_bytes == needs.rope_bytes);
    FL_ASSERT(m->expanded_bytes == needs.expanded_bytes);

    m->view.config = &m->config;
    m->view.embed = &m->embed;
    m->view.o = o;
    m->view.rope[0] = m->ropes[0].view;
    m->view.rope[1] = has_table(&m->config, 1) ? m->ropes[1].view : m->ropes[0].view;
    m->view.routing_ids = m->routing_ids;
    m->view.routing_weights = m->routing_weights;
    return FL_OK;
}

fl_status model_prepare(model *m, int32_t n_logits, fl_err *err)
{
    char note[OPS_NOTE_BYTES] = "";
    for (int32_t i = 0; i < m->products.n; i++) {
        ops_product *p = &m->products.v[i];
        p->n_rows = p->w.data == m->head.data && n_logits < m->n_rows_max ? n_logits : m->n_rows_max;
    }
    fl_status st = m->o->prepare(m->o, m->products.v, m->products.n, note, err);
    if (st == FL_OK && note[0]) fl_log(FL_LOG_INFO, "engine: %s", note);
    return st;
}

fl_status model_open(model **out, const char *path, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err)
{
    model *m = NULL;
    fl_status st = model_map(&m, path, err);
    if (st == FL_OK) st = model_load(m, o, n_rows_max, context_max, err);
    if (st == FL_OK) *out = m;
    else model_close(m);
    return st;
}

void model_close(model *m)
{
    if (!m) return;
    for (int i = 0; i < 2; i++) rope_table_close(&m->ropes[i]);
    if (m->scratch.base) m->o->give(m->o, m->scratch.base, m->scratch.n_bytes);
    weight_store_close(&m->store);
    fl_arena_fini(&m->fixed);
    fl_arena_fini(&m->views);
    fl_arena_fini(&m->values);
    weight_files_close(m->weights);
    model_config_fini(&m->config);
    free(m);
}

const model_config *model_describe(const model *m) { return &m->config; }
const weight_files *model_weights(const model *m) { return m->weights; }
int32_t model_context(const model *m) { return m->context_max; }
dtype model_dtype(const model *m) { return m->embed.type; }

/* ---- run ---- */

void model_begin(model *m, const ops_batch *batch)
{
    FL_ASSERT(m->o && batch->n_rows > 0 && batch->n_rows <= m->n_rows_max);
    for (int32_t i = 0; i < batch->n_rows; i++)
        for (int k = 0; k < 2; k++) if (m->ropes[k].memory) rope_table_reach(&m->ropes[k], batch->positions[i]);
    m->o->begin(m->o, batch);
}

void model_run(model *m, const ops_batch *batch, kv_cache *kv, state_pool *states, act *hidden)
{
    m->family->forward(&m->view, batch, kv, states, m->x);
    if (batch->n_logits == 0) return;
    m->o->gather(m->o, m->picked, m->x, m->config.hidden, batch);
    m->o->rms_norm(m->o, hidden, m->picked, &m->final_norm, m->config.norm_add, m->config.norm_eps, batch->n_logits, m->config.hidden);
}

void model_forward(model *m, const ops_batch *batch, kv_cache *kv, state_pool *states, act *hidden)
{
    model_begin(m, batch);
    model_run(m, batch, kv, states, hidden);
}

void model_logits(model *m, const act *hidden, int32_t n_rows, float *logits)
{
    weight none = { 0 };
    m->o->linear_f32(m->o, logits, hidden, &m->head, &none, n_rows);
    if (m->config.logit_softcap > 0.0f) m->o->soft_cap(m->o, logits, m->config.logit_softcap, n_rows, m->config.n_vocab);
}


model_routing model_routing_at(const model *m, int32_t index)
{
    FL_ASSERT(index >= 0 && index < m->n_moe_layers);
    return (model_routing){ m->moe_layer[index], m->config.moe.top_k, m->routing_ids[index], m->routing_weights[index] };
}
