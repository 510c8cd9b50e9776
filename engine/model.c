#include "engine/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "engine/fp8.h"
#include "engine/model_family.h"
#include "engine/rope_table.h"

static const model_family *const families[] = { &llama_family, &qwen3_family, &qwen3_moe_family, &qwen3_5_family, &qwen3_5_moe_family, &laguna_family, &gemma3_family };

struct model {
    model_config config;
    const model_family *family;
    safetensors *weights;                /* owned */
    ops *o;                              /* borrowed; NULL before model_load */
    fl_arena views, values;              /* views of weights and what else has a size of its own; F8_E4M3 weights expanded */
    rope_table ropes[2];                 /* of full and of sliding layers; the second stays empty where they are equal */
    scratch_space scratch;               /* activations: an owned mapping */
    family_view view;
    weight embed, head, final_norm;
    float *x, *picked;                   /* [n_rows_max, hidden]: the residual stream */
    int32_t n_rows_max, context_max;
    size_t expanded_bytes;
    int32_t n_moe_layers, *moe_layer;    /* layer number of each MoE layer */
    int32_t **routing_ids; float **routing_weights;
};

/* ---- binding ---- */

static const tensor *find_named(char *name, size_t capacity, const bind_context *c, const char *format, va_list args)
{
    size_t used = (size_t)snprintf(name, capacity, "%s", c->prefix);
    vsnprintf(name + used, capacity - used, format, args);
    return safetensors_find(c->weights, name);
}

static fl_status check_tensor(const tensor *t, const char *name, fl_err *err)
{
    if (!t) return fl_fail(err, FL_NOT_FOUND, "weights: tensor %s, which config.json asks for, is missing", name);
    if (!t->is_weight && !t->is_fp8)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has dtype %s; BF16, F16, F32 and F8_E4M3 with scales are supported", t->file, name, t->dtype_name);
    return FL_OK;
}

static fl_status refuse_shape(const tensor *t, const char *want, fl_err *err)
{
    char shape[160];
    size_t used = 0;
    for (int32_t i = 0; i < t->n_dims; i++) used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    return fl_fail(err, FL_CORRUPT, "%s: tensor %s has shape [%s], config.json asks for [%s]", t->file, t->name, t->n_dims ? shape : "", want);
}

/* The values of a tensor of n matrices [rows, cols], as the kernels take them: where they are mapped, or F8_E4M3 expanded into the arena. */
static fl_status take_values(const void **data, dtype *type, const bind_context *c, const tensor *t, int32_t n, int32_t rows, int32_t cols, fl_err *err)
{
    static const char *const ends[] = { "_scale_inv", "_scale" };
    const tensor *scale = NULL;
    *data = t->data;
    *type = t->type;
    if (t->is_weight) return c->is_dry ? FL_OK : tensor_check_finite(t, err);
    for (int i = 0; i < 2 && !scale; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s%s", t->name, ends[i]);
        scale = safetensors_find(c->weights, name);
    }
    if (!scale) return fl_fail(err, FL_NOT_FOUND, "%s: tensor %s has dtype F8_E4M3, but neither %s_scale_inv nor %s_scale is there", t->file, t->name, t->name, t->name);
    const size_t bytes = (size_t)n * (size_t)rows * (size_t)cols * sizeof(float);
    *c->expanded_bytes += bytes;
    *type = DTYPE_F32;
    if (c->is_dry) return fp8_check(t, scale, n, rows, cols, c->config->fp8_block, err);
    float *values = fl_arena_take(c->values, bytes);
    if (!values) return fl_fail(err, FL_FULL, "model: no memory for tensor %s expanded from F8_E4M3 (%zu bytes)", t->name, bytes);
    *data = values;
    return fp8_expand(values, t, scale, n, rows, cols, c->config->fp8_block, err);
}

fl_status bind_weight(weight *out, const bind_context *c, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    char full[256], want[64];
    va_list args;
    va_start(args, name);
    const tensor *t = find_named(full, sizeof full, c, name, args);
    va_end(args);
    fl_status st = check_tensor(t, full, err);
    if (st != FL_OK) return st;
    bool fits = (t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols) || (t->n_dims == 1 && rows == 1 && t->shape[0] == cols)
             || (t->n_dims == 3 && t->shape[0] == rows && t->shape[1] == 1 && t->shape[2] == cols);
    if (!fits) {
        if (rows == 1) snprintf(want, sizeof want, "%d", cols);
        else snprintf(want, sizeof want, "%d, %d", rows, cols);
        return refuse_shape(t, want, err);
    }
    weight w = { .n_rows = rows, .n_cols = cols };
    if ((st = take_values(&w.data, &w.type, c, t, 1, rows, cols, err)) != FL_OK) return st;
    *out = w;
    return FL_OK;
}

fl_status bind_stack(weight *out, const bind_context *c, int32_t n, int32_t rows, int32_t cols, fl_err *err, const char *name, ...)
{
    char full[256], want[64];
    va_list args;
    va_start(args, name);
    const tensor *t = find_named(full, sizeof full, c, name, args);
    va_end(args);
    fl_status st = check_tensor(t, full, err);
    if (st != FL_OK) return st;
    if (t->n_dims != 3 || t->shape[0] != n || t->shape[1] != rows || t->shape[2] != cols) {
        snprintf(want, sizeof want, "%d, %d, %d", n, rows, cols);
        return refuse_shape(t, want, err);
    }
    weight all = { .n_rows = rows, .n_cols = cols };
    if ((st = take_values(&all.data, &all.type, c, t, n, rows, cols, err)) != FL_OK) return st;
    const size_t one = (size_t)rows * (size_t)cols * (all.type == DTYPE_F32 ? 4 : 2);
    for (int32_t i = 0; i < n; i++) {
        out[i] = all;
        out[i].data = (const uint8_t *)all.data + (size_t)i * one;
    }
    return FL_OK;
}

bool bind_has(const bind_context *c, const char *name, ...)
{
    char full[256];
    va_list args;
    va_start(args, name);
    const tensor *t = find_named(full, sizeof full, c, name, args);
    va_end(args);
    return t != NULL;
}

weight weight_rows(const weight *w, int32_t begin, int32_t n_rows)
{
    FL_ASSERT(begin >= 0 && begin + n_rows <= w->n_rows);
    size_t value_bytes = w->type == DTYPE_F32 ? 4 : 2;
    return (weight){ (const uint8_t *)w->data + (size_t)begin * (size_t)w->n_cols * value_bytes, w->type, n_rows, w->n_cols };
}

/* Where the text model's tensors begin, and its head: a causal LM's, one nested in a vision model (transformers 5, 4), or a model saved without a head. */
static const struct { const char *body, *head; } prefixes[] = {
    { "model.", "" }, { "model.language_model.", "" }, { "language_model.model.", "language_model." }, { "", "" },
};

static size_t find_prefix(const safetensors *weights)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[64];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i].body);
        if (safetensors_find(weights, name)) return i;
    }
    return 0;
}

static fl_status bind_ends(model *m, const bind_context *c, const char *head_prefix, fl_err *err)
{
    const model_config *config = &m->config;
    bind_context top = *c;
    top.prefix = head_prefix;
    fl_status st = bind_weight(&m->embed, c, config->n_vocab, config->hidden, err, "embed_tokens.weight");
    if (st == FL_OK) st = bind_weight(&m->final_norm, c, 1, config->hidden, err, "norm.weight");
    if (st == FL_OK && config->tied_head) m->head = m->embed;
    else if (st == FL_OK) st = bind_weight(&m->head, &top, config->n_vocab, config->hidden, err, "lm_head.weight");
    return st;
}

/* All weights of the text model, once without reading a value and once for use. */
static fl_status bind_all(model *m, bool is_dry, fl_err *err)
{
    const size_t prefix = find_prefix(m->weights);
    bind_context c = { m->weights, &m->config, prefixes[prefix].body, &m->views, is_dry, &m->values, &m->expanded_bytes };
    m->expanded_bytes = 0;
    fl_arena_fini(&m->views);                            /* of the time before */
    fl_arena_init(&m->views, 1 << 16, 0);
    fl_status st = bind_ends(m, &c, prefixes[prefix].head, err);
    return st == FL_OK ? m->family->bind(&m->view.weights, &c, err) : st;
}

/* ---- memory ---- */

void *scratch_take(scratch_space *s, size_t n_bytes)
{
    uint8_t *taken = s->base ? s->base + s->n_bytes : NULL;
    s->n_bytes += (n_bytes + 63) / 64 * 64;
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
    uint64_t unread[64];                                 /* stands for the family's pointers while measured */
    const size_t rows = (size_t)n_rows, n_layers = (size_t)m->config.n_layers, top_k = (size_t)m->config.moe.top_k;
    m->x = scratch_take(space, rows * (size_t)m->config.hidden * sizeof(float));
    m->picked = scratch_take(space, rows * (size_t)m->config.hidden * sizeof(float));
    m->moe_layer = scratch_take(space, n_layers * sizeof *m->moe_layer);
    m->routing_ids = scratch_take(space, n_layers * sizeof *m->routing_ids);
    m->routing_weights = scratch_take(space, n_layers * sizeof *m->routing_weights);
    m->n_moe_layers = 0;
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        if (!m->config.layers[i].is_mixture) continue;
        int32_t n = m->n_moe_layers++, *ids = scratch_take(space, rows * top_k * sizeof(int32_t));
        float *weights = scratch_take(space, rows * top_k * sizeof(float));
        if (!space->base) continue;
        m->moe_layer[n] = i;
        m->routing_ids[n] = ids;
        m->routing_weights[n] = weights;
    }
    FL_ASSERT(m->family->scratch_bytes <= sizeof unread);
    m->view.scratch = scratch_take(space, m->family->scratch_bytes);
    m->family->plan(space->base ? m->view.scratch : unread, &m->config, o, n_rows, space);
}

model_needs model_measure(model *m, const ops *o, int32_t n_rows_max, int32_t context_max)
{
    scratch_space space = { 0 };
    FL_ASSERT(!m->o);
    lay_activations(m, o, n_rows_max, &space);
    model_needs needs = { .expanded_bytes = m->expanded_bytes, .table_bytes = m->views.total_bytes, .scratch_bytes = space.n_bytes };
    for (size_t i = 0; i < safetensors_count(m->weights); i++) needs.mapped_bytes += safetensors_at(m->weights, i)->n_bytes;
    for (int i = 0; i < 2; i++) if (has_table(&m->config, i)) needs.table_bytes += rope_table_bytes(&m->config.rope[i], context_within(m, context_max));
    return needs;
}

/* ---- open ---- */

fl_status model_map(model **out, const char *model_dir, fl_err *err)
{
    fl_status status = FL_OK;
    model *m = calloc(1, sizeof *m);
    if (!m) { status = fl_fail(err, FL_FULL, "model: no memory"); goto done; }
    fl_arena_init(&m->views, 1 << 16, 0);
    fl_arena_init(&m->values, 1 << 16, 0);
    if ((status = model_config_read(&m->config, model_dir, err)) != FL_OK) goto done;
    m->context_max = m->config.context_max;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i]->name, m->config.architecture) == 0) m->family = families[i];
    FL_ASSERT(m->family);                                /* the config's table and this one name the same families */
    if ((status = safetensors_open(&m->weights, model_dir, err)) != FL_OK) goto done;
    if ((status = bind_all(m, true, err)) != FL_OK) goto done;
    *out = m;
    m = NULL;
done:
    model_close(m);
    return status;
}

fl_status model_load(model *m, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err)
{
    const model_needs needs = model_measure(m, o, n_rows_max, context_max);
    fl_status st = bind_all(m, false, err);
    m->context_max = context_within(m, context_max);
    m->n_rows_max = n_rows_max;
    for (int i = 0; st == FL_OK && i < 2; i++) if (has_table(&m->config, i)) st = rope_table_open(&m->ropes[i], &m->config.rope[i], m->context_max, err);
    if (st != FL_OK) return st;

    void *memory = mmap(NULL, needs.scratch_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fl_fail(err, FL_FULL, "model: no memory for the activations of %d rows (%zu bytes); lower the batch limit or the prefill budget", n_rows_max, needs.scratch_bytes);
    m->scratch.base = memory;
    lay_activations(m, o, n_rows_max, &m->scratch);
    FL_ASSERT(m->scratch.n_bytes == needs.scratch_bytes && m->views.total_bytes + m->ropes[0].n_bytes + m->ropes[1].n_bytes == needs.table_bytes);
    FL_ASSERT(m->expanded_bytes == needs.expanded_bytes);

    m->o = o;
    m->view.config = &m->config;
    m->view.embed = &m->embed;
    m->view.o = o;
    m->view.rope[0] = m->ropes[0].view;
    m->view.rope[1] = has_table(&m->config, 1) ? m->ropes[1].view : m->ropes[0].view;
    m->view.routing_ids = m->routing_ids;
    m->view.routing_weights = m->routing_weights;
    return FL_OK;
}

fl_status model_open(model **out, const char *model_dir, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err)
{
    model *m = NULL;
    fl_status st = model_map(&m, model_dir, err);
    if (st == FL_OK) st = model_load(m, o, n_rows_max, context_max, err);
    if (st == FL_OK) *out = m;
    else model_close(m);
    return st;
}

void model_close(model *m)
{
    if (!m) return;
    for (int i = 0; i < 2; i++) rope_table_close(&m->ropes[i]);
    if (m->scratch.base) munmap(m->scratch.base, m->scratch.n_bytes);
    fl_arena_fini(&m->views);
    fl_arena_fini(&m->values);
    safetensors_close(m->weights);
    model_config_fini(&m->config);
    free(m);
}

const model_config *model_describe(const model *m) { return &m->config; }
const safetensors *model_weights(const model *m) { return m->weights; }
int32_t model_context(const model *m) { return m->context_max; }
dtype model_dtype(const model *m) { return m->embed.type; }

/* ---- run ---- */

void model_forward(model *m, const ops_batch *batch, kv_cache *kv, state_pool *states, act *hidden)
{
    FL_ASSERT(m->o && batch->n_rows > 0 && batch->n_rows <= m->n_rows_max);
    for (int32_t i = 0; i < batch->n_rows; i++)
        for (int k = 0; k < 2; k++) if (m->ropes[k].memory) rope_table_reach(&m->ropes[k], batch->positions[i]);
    m->o->begin(m->o, batch);
    m->family->forward(&m->view, batch, kv, states, m->x);
    if (batch->n_logits == 0) return;
    m->o->gather(m->o, m->picked, m->x, m->config.hidden, batch);
    m->o->rms_norm(m->o, hidden, m->picked, &m->final_norm, m->family->norm_add, m->config.norm_eps, batch->n_logits, m->config.hidden);
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
