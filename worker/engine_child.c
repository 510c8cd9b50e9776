/* engine_child.c - see engine_child.h. */
#include "worker/engine_child.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include "proto/demo_path.h"
#include "proto/log.h"
#include "proto/wire.h"
#include "worker/child_loop.h"
#include "worker/gpu_module.h"
#include "worker/gpu_place.h"
#include "worker/row_prep.h"

#define EVENTS_MAX 64
#define CREDIT_TOKENS_A_SEQUENCE 512 /* granted work a place in the batch: enough that a finished sequence finds the next one waiting */

/* A granted row: first with the row thread, then in the engine. */
typedef enum { SLOT_FREE, SLOT_PREPARING, SLOT_RUNNING } slot_state;
typedef struct {
    slot_state state;
    uint32_t generation;             /* of the tag: tag = generation << 32 | index */
    uint64_t job, lease, row;
    uint32_t lo, hi, n_left;         /* samples still owed */
    uint64_t done[FL_SAMPLES_MAX / 64];      /* bit i: sample lo + i was sent or revoked */
    row_item *item;                  /* SLOT_PREPARING; borrowed from the queue */
    int32_t *prompt; int32_t n_prompt;       /* owned; where sample 0's result carries the prompt */
} slot;

typedef struct {
    int fd, wake_fd;
    engine *engine;                  /* owned */
    row_maker *maker;                /* owned */
    row_prep *prep;                  /* owned */
    bool is_on_gpu;
    bool is_demo;                    /* it is announced by that name, whatever folder it lies in */
    char model[PATH_MAX];
    slot *slots; uint32_t n_slots, n_used;       /* owned */
    uint32_t n_preparing;
    uint32_t n_waiting_samples;      /* of the rows being prepared */
    job_settings **jobs; uint32_t n_jobs;        /* owned */
    bool may_have_work;              /* the engine has not said FL_AGAIN since the last request */
} child;

/* ---- slots ---- */

static uint64_t slot_tag(const child *c, const slot *s)
{
    return (uint64_t)s->generation << 32 | (uint64_t)(s - c->slots);
}

static slot *slot_of(child *c, uint64_t tag)
{
    uint32_t index = (uint32_t)tag;
    if (index >= c->n_slots || c->slots[index].state == SLOT_FREE || c->slots[index].generation != tag >> 32) return NULL;
    return &c->slots[index];
}

static slot *slot_take(child *c)
{
    if (c->n_used == c->n_slots) {
        uint32_t n = c->n_slots ? c->n_slots * 2 : 64;
        slot *grown = realloc(c->slots, n * sizeof *grown);
        if (!grown) return NULL;
        memset(grown + c->n_slots, 0, (n - c->n_slots) * sizeof *grown);
        c->slots = grown;
        c->n_slots = n;
    }
    slot *s = c->slots;
    while (s->state != SLOT_FREE) s++;
    *s = (slot){ .state = SLOT_PREPARING, .generation = s->generation + 1 };
    c->n_used++;
    return s;
}

static void leave_preparing(child *c, slot *s)
{
    s->item = NULL;
    c->n_preparing--;
    c->n_waiting_samples -= s->hi - s->lo;
}

/* The row owes nothing more. An item still with the row thread is marked; it comes back with a stale tag and is dropped. */
static void slot_release(child *c, slot *s)
{
    if (s->state == SLOT_PREPARING) {
        if (s->item) atomic_store(&s->item->cancelled, true);
        leave_preparing(c, s);
    }
    free(s->prompt);
    *s = (slot){ .state = SLOT_FREE, .generation = s->generation };
    c->n_used--;
}

static bool sample_is_done(const slot *s, uint32_t sample)
{
    uint32_t i = sample - s->lo;
    return s->done[i / 64] >> i % 64 & 1;
}

static void sample_set_done(slot *s, uint32_t sample)
{
    uint32_t i = sample - s->lo;
    s->done[i / 64] |= 1ull << i % 64;
    s->n_left--;
}

/* ---- what the child says ---- */

static fl_status say_hello(const child *c, fl_err *err)
{
    const engine_info *info = engine_describe(c->engine);
    uint64_t batch = (uint64_t)info->batch_max, kv = 2 * (uint64_t)info->kv_tokens, context = (uint64_t)info->context_max;
    uint64_t credit = batch * CREDIT_TOKENS_A_SEQUENCE < kv ? batch * CREDIT_TOKENS_A_SEQUENCE : kv;
    wire_msg m = { .type = WIRE_HELLO, .hello = {
        .release = wire_text(TOKENFLEET_VERSION), .model = wire_text(c->is_demo ? FL_DEMO_MODEL : info->name),
        .fingerprint = wire_text(info->fingerprint), .numerics = wire_text(info->numerics), .n_vocab = (uint64_t)info->n_vocab, .context = context,
        .credit_tokens = credit > context ? credit : context, .credit_bytes = ENGINE_CHILD_CREDIT_BYTES, .has_tokenizer = info->has_tokenizer,
        .batch = c->is_on_gpu ? batch : 0, .kv_tokens = (uint64_t)info->kv_tokens,
    } };
    return wire_send_fd(c->fd, &m, err);
}

static fl_status say_detok(child *c, fl_err *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    fl_status st = fl_detok_encode(engine_detok(c->engine), &bytes, &n, err);
    if (st == FL_OK && n > FL_FRAME_PAYLOAD_MAX)
        st = fl_fail(err, FL_UNSUPPORTED, "worker: the tokenizer's id table has %zu bytes, above the %u of a message", n, FL_FRAME_PAYLOAD_MAX);
    if (st == FL_OK) {
        fl_bytes part = { bytes, n };
        wire_msg m = { .type = WIRE_DETOK, .n_parts = 1, .parts = &part, .detok.fingerprint = wire_text(engine_describe(c->engine)->fingerprint) };
        st = wire_send_fd(c->fd, &m, err);
    }
    free(bytes);
    return st;
}

static fl_status greet(void *context, fl_err *err)
{
    child *c = context;
    fl_status st = say_hello(c, err);
    return st == FL_OK ? say_detok(c, err) : st;
}

static void count(void *context, wire_beat *beat)
{
    const child *c = context;
    engine_stats stats = engine_read_stats(c->engine);
    *beat = (wire_beat){ .prefill_tokens = stats.prefill_tokens, .decode_tokens = stats.decode_tokens, .running = stats.running,
                         .waiting = stats.waiting + c->n_waiting_samples, .preemptions = stats.preemptions, .busy_us = (uint64_t)(stats.device_s * 1e6) };
}

static fl_status say_row_error(child *c, const slot *s, fl_row_error code, const char *text, fl_err *err)
{
    wire_msg m = { .type = WIRE_ROW_ERROR, .row_error = { .job = s->job, .lease = s->lease, .row = s->row, .code = code, .text = wire_text(text) } };
    return wire_send_fd(c->fd, &m, err);
}

static fl_status say_handback(child *c, const slot *s, wire_handback_reason reason, const char *text, fl_err *err)
{
    wire_msg m = { .type = WIRE_HANDBACK, .handback = { .lease = s->lease, .rows = { &s->row, 1 }, .reason = reason, .text = wire_text(text) } };
    return wire_send_fd(c->fd, &m, err);
}

static fl_status say_result(child *c, const slot *s, uint32_t sample, const fl_result *result, fl_err *err)
{
    uint8_t *body = NULL;
    size_t n = 0;
    fl_status st = fl_result_encode(result, &body, &n, err);
    size_t n_pieces = n ? (n + ENGINE_CHILD_PIECE_BYTES - 1) / ENGINE_CHILD_PIECE_BYTES : 1;
    for (size_t i = 0; st == FL_OK && i < n_pieces; i++) {
        size_t at = i * ENGINE_CHILD_PIECE_BYTES, left = n - at;
        fl_bytes part = { body + at, left < ENGINE_CHILD_PIECE_BYTES ? left : ENGINE_CHILD_PIECE_BYTES };
        wire_msg m = { .type = WIRE_RESULT, .n_parts = 1, .parts = &part, .result = {
            .job = s->job, .lease = s->lease, .row = s->row, .sample = sample, .piece = i, .n_pieces = n_pieces, .n_tokens = result->n_ids,
        } };
        st = wire_send_fd(c->fd, &m, err);
    }
    free(body);
    return st;
}

/* ---- what the child hears ---- */

static const job_settings *find_job(const child *c, uint64_t job)
{
    for (uint32_t i = c->n_jobs; i-- > 0;)
        if (c->jobs[i]->job == job) return c->jobs[i];
    return NULL;
}

/* Jobs are kept until the process ends: rows being prepared borrow them, and each is a few dozen bytes. */
static fl_status hear_job(void *context, const wire_job *m, fl_err *err)
{
    child *c = context;
    if (find_job(c, m->job)) return FL_OK;
    job_settings **grown = realloc(c->jobs, (c->n_jobs + 1) * sizeof *grown);
    if (grown) c->jobs = grown;
    job_settings *job = calloc(1, sizeof *job);
    char *defaults = m->defaults.n ? strndup(m->defaults.p, m->defaults.n) : NULL;
    if (!grown || !job || (m->defaults.n && !defaults)) {
        free(job);
        free(defaults);
        return fl_fail(err, FL_FULL, "worker: no memory for a job's settings");
    }
    *job = (job_settings){ .job = m->job, .seed = m->seed, .max_context = (uint32_t)m->max_context, .now_s = (uint32_t)m->now_s, .defaults = defaults };
    c->jobs[c->n_jobs++] = job;
    return FL_OK;
}

static fl_status hear_grant(void *context, const wire_msg *m, fl_arena *arena, fl_err *err)
{
    child *c = context;
    const wire_grant *g = &m->grant;
    uint32_t part = 0;
    const job_settings *job = find_job(c, g->job);
    if (!job) return fl_fail(err, FL_CORRUPT, "worker: a grant of a job whose settings never came");
    for (uint32_t i = 0; i < g->rows.n; i++) {
        if (g->sample_lo.v[i] >= g->sample_hi.v[i] || g->sample_hi.v[i] > FL_SAMPLES_MAX)
            return fl_fail(err, FL_CORRUPT, "worker: a grant of samples %llu to %llu", (unsigned long long)g->sample_lo.v[i], (unsigned long long)g->sample_hi.v[i]);
        fl_bytes line = wire_line_next(m, &part, arena);
        slot *s = line.data ? slot_take(c) : NULL;
        if (!s) return fl_fail(err, FL_FULL, "worker: no memory for a granted row");
        s->job = g->job;
        s->lease = g->lease;
        s->row = g->rows.v[i];
        s->lo = (uint32_t)g->sample_lo.v[i];
        s->hi = (uint32_t)g->sample_hi.v[i];
        s->n_left = s->hi - s->lo;
        c->n_preparing++;
        c->n_waiting_samples += s->n_left;
        fl_status st = row_prep_push(c->prep, slot_tag(c, s), job, line.data, line.bytes, g->lines.v[i], g->renamed.v[i] != 0, &s->item, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static void revoke_sample(child *c, slot *s, uint64_t sample)
{
    if (sample == WIRE_WHOLE_ROW) {
        if (s->state == SLOT_RUNNING) engine_cancel(c->engine, slot_tag(c, s), UINT32_MAX);
        slot_release(c, s);
    } else if (sample >= s->lo && sample < s->hi && !sample_is_done(s, (uint32_t)sample)) {
        if (s->state == SLOT_RUNNING) engine_cancel(c->engine, slot_tag(c, s), (uint32_t)sample);
        sample_set_done(s, (uint32_t)sample);
        if (s->n_left == 0) slot_release(c, s);
    }
}

static void hear_revoke(void *context, const wire_revoke *m)
{
    child *c = context;
    for (uint32_t k = 0; k < c->n_slots; k++) {
        slot *s = &c->slots[k];
        if (s->state == SLOT_FREE || s->lease != m->lease) continue;
        if (m->rows.n == 0) revoke_sample(c, s, WIRE_WHOLE_ROW);
        for (uint32_t i = 0; i < m->rows.n && s->state != SLOT_FREE; i++)
            if (m->rows.v[i] == s->row) revoke_sample(c, s, m->samples.n ? m->samples.v[i] : WIRE_WHOLE_ROW);
    }
}

/* ---- prepared rows into the engine, events out of it ---- */

static fl_status admit(child *c, slot *s, const row_item *item, fl_err *err)
{
    const row_request *request = &item->request;
    uint64_t tag = slot_tag(c, s);
    fl_err why = { 0 };
    if (request->wants_prompt && request->sampling.n_prompt_top < 0 && s->lo == 0 && !sample_is_done(s, 0)) {       /* with log-probabilities the engine gives the ids itself */
        s->prompt = malloc((size_t)request->n_prompt * sizeof *s->prompt);
        if (!s->prompt) return fl_fail(err, FL_FULL, "worker: no memory for a prompt of %d tokens", request->n_prompt);
        memcpy(s->prompt, request->prompt, (size_t)request->n_prompt * sizeof *s->prompt);
        s->n_prompt = request->n_prompt;
    }
    engine_request e = row_request_samples(request, tag, s->lo, s->hi);
    fl_status st = engine_add(c->engine, &e, &why);
    if (st == FL_INVALID) {
        st = say_row_error(c, s, ROW_INVALID_REQUEST, why.text, err);
        slot_release(c, s);
        return st;
    }
    if (st != FL_OK) return fl_fail(err, st, "%s", why.text);
    leave_preparing(c, s);
    s->state = SLOT_RUNNING;
    for (uint32_t sample = s->lo; sample < s->hi; sample++)
        if (sample_is_done(s, sample)) engine_cancel(c->engine, tag, sample);    /* revoked while it was prepared */
    c->may_have_work = true;
    return FL_OK;
}

static fl_status take_prepared(child *c, fl_err *err)
{
    fl_status st = FL_OK;
    row_item *item;
    uint64_t count;
    while (read(c->wake_fd, &count, sizeof count) < 0 && errno == EINTR) {}
    while (st == FL_OK && (item = row_prep_take(c->prep)) != NULL) {
        slot *s = slot_of(c, item->tag);
        if (s && item->status == FL_OK) st = admit(c, s, item, err);
        else if (s) {
            if (item->status == FL_INVALID) st = say_row_error(c, s, item->refusal.code, item->refusal.text, err);
            else if (item->status == FL_FULL) st = say_handback(c, s, WIRE_HAND_NO_ROOM, item->err.text, err);
            else if (item->status == FL_IO) st = say_handback(c, s, WIRE_HAND_NO_CHATS, item->err.text, err);
            else st = fl_fail(err, item->status, "%s", item->err.text);      /* a new process may do better */
            s->item = NULL;
            slot_release(c, s);
        }
        row_item_free(item);
    }
    return st;
}

/* Sample 0's result carries the prompt's ids where the row asks. */
static void add_prompt(slot *s, uint32_t sample, fl_result *r)
{
    if (sample != 0 || !s->prompt) return;
    r->prompt_ids = s->prompt;
    r->n_prompt = s->n_prompt;
    s->prompt = NULL;
}

static fl_status take_event(child *c, engine_event *e, fl_err *err)
{
    fl_status st = FL_OK;
    slot *s = slot_of(c, e->tag);
    if (e->kind == ENGINE_FAILED) {
        if (s) {
            st = say_row_error(c, s, e->error, e->text, err);
            slot_release(c, s);
        }
        return st;
    }
    if (s && e->sample >= s->lo && e->sample < s->hi && !sample_is_done(s, e->sample)) {
        add_prompt(s, e->sample, e->result);
        st = say_result(c, s, e->sample, e->result, err);
        sample_set_done(s, e->sample);
        if (s->n_left == 0) slot_release(c, s);
    }
    fl_result_free(e->result);
    free(e->result);
    return st;
}

static fl_status step(child *c, fl_err *err)
{
    engine_event events[EVENTS_MAX];
    int32_t n = 0;
    fl_status st = engine_step(c->engine, events, EVENTS_MAX, &n, err);
    if (st == FL_AGAIN) {
        c->may_have_work = false;
        st = FL_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        fl_status sent = take_event(c, &events[i], st == FL_OK ? err : NULL);
        if (st == FL_OK) st = sent;
    }
    return st;
}

static bool is_busy(const void *context)
{
    const child *c = context;
    return c->n_used > 0;
}

/* A prepared row wakes it; with work in the engine it does not sleep. */
static int wake(const void *context, int64_t now, int64_t *until_ms)
{
    const child *c = context;
    if (c->may_have_work) *until_ms = now;
    return c->wake_fd;
}

static fl_status work(void *context, int64_t now, fl_err *err)
{
    child *c = context;
    (void)now;
    fl_status st = take_prepared(c, err);
    return st == FL_OK && c->may_have_work ? step(c, err) : st;
}

/* Before anything of the GPU is opened: threads and memory go where this one is. */
static fl_status pin_to_gpu(int32_t gpu, fl_err *err)
{
    char pci[CUDA_PCI_BYTES], what[240];
    gpu_place place;
    fl_status st = gpu_module_pci(gpu, pci, err);
    if (st != FL_OK) return st;
    gpu_place_read(&place, "/sys", pci);
    gpu_place_pin(&place, what, sizeof what);
    fl_log(FL_LOG_INFO, "GPU %d (%s): %s", gpu, pci, what);
    return FL_OK;
}

static fl_status open_engine(void *context, const worker_options *options, fl_err *err)
{
    child *c = context;
    *c = (child){ .fd = options->serve_fd, .wake_fd = -1, .is_demo = strcmp(options->model, FL_DEMO_MODEL) == 0, .is_on_gpu = options->gpu >= 0 };
    fl_status st;
    fl_err why = { 0 };
    engine_options e = { .model = c->model, .n_threads = options->n_threads, .batch_max = options->batch_max, .prefill_budget = options->prefill_budget,
                         .context_max = options->context_max, .kv_tokens = options->kv_tokens, .n_sharing = options->gpu_share };
    if ((st = fl_model_path(options->model, c->model, sizeof c->model, err)) != FL_OK) return st;
    if ((c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return fl_fail_errno(err, errno, "worker: make an eventfd");
    st = options->gpu < 0 ? FL_OK : pin_to_gpu(options->gpu, &why);
    if (st == FL_OK && options->gpu >= 0) st = gpu_module_ops(&e.ops, options->gpu, strcmp(options->precision, "f32") == 0 ? CUDA_F32 : CUDA_16_BIT, &why);
    if (st != FL_OK) return fl_fail(err, st, "%s; use --device cpu", why.text);
    if ((st = engine_open(&c->engine, &e, err)) != FL_OK) return st;
    if ((st = row_maker_open(&c->maker, c->model, engine_describe(c->engine), err)) != FL_OK) return st;
    return row_prep_start(&c->prep, c->maker, c->wake_fd, err);
}

static void close_engine(void *context)
{
    child *c = context;
    row_prep_stop(c->prep);
    row_maker_close(c->maker);
    engine_close(c->engine);
    for (uint32_t i = 0; i < c->n_slots; i++) free(c->slots[i].prompt);
    free(c->slots);
    for (uint32_t i = 0; i < c->n_jobs; i++) {
        free(c->jobs[i]->defaults);
        free(c->jobs[i]);
    }
    free(c->jobs);
    if (c->wake_fd >= 0) close(c->wake_fd);
}

/* With a limit of its own, an allocation that fails was refused to this process, whatever others take. */
static bool has_memory_limit(void)
{
    struct rlimit space, data;
    return getrlimit(RLIMIT_AS, &space) == 0 && getrlimit(RLIMIT_DATA, &data) == 0 && (space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY);
}

static int failed(fl_status st, const fl_err *err)
{
    bool is_own_limit = st == FL_FULL && has_memory_limit();
    fprintf(stderr, "tokenfleet-worker: the engine stops: %s%s\n", err->text, is_own_limit ? " (it reached the limit that ulimit sets this process)" : "");
    return is_own_limit ? WORKER_ENDED_MEMORY : st == FL_GPU ? WORKER_ENDED_GPU : WORKER_ENDED_FAILED;
}

int engine_child_main(const worker_options *options)
{
    static const child_kind kind = { "tokenfleet-eng", "engine", "an engine process", open_engine, greet, hear_job, hear_grant, hear_revoke, is_busy, count, wake, work, failed, close_engine };
    child c;
    return child_loop_main(&kind, &c, options);
}
