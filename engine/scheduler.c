#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>
#include "engine/host_pool.h"

/* A sequence's memory on the host: its state, and the KV of its blocks from shared.n_blocks on; the blocks before are still in the pool. */
struct seq_image {
    int32_t n_owners;                    /* waiting sequences that go on from here */
    uint64_t request;
    int32_t n_cached;
    block_table shared;                  /* owned references */
    void *state;                         /* owned piece of scheduler.host_states; NULL without recurrent layers */
    void **kv;                           /* owned [blocks of n_cached]: pieces of scheduler.host_blocks, NULL for those still shared */
    seq_image *next, *previous;          /* in scheduler.images */
};

struct scheduler {
    kv_cache *kv; state_pool *states;    /* borrowed */
    host_pool host_blocks, host_states;
    int32_t n_resident_max, prefill_budget;
    sequence **resident; int32_t n_resident;     /* owned array, oldest first */
    sequence *first, *last; int32_t n_waiting;   /* oldest first */
    seq_image *images;
    plan_entry *entries;                 /* owned [n_resident_max] */
    uint64_t n_preemptions;
};

fl_status scheduler_open(scheduler **out, ops *o, kv_cache *kv, state_pool *states, int32_t n_resident_max, int32_t prefill_budget, fl_err *err)
{
    scheduler *s = calloc(1, sizeof *s);
    if (s) {
        s->resident = calloc((size_t)n_resident_max, sizeof *s->resident);
        s->entries = calloc((size_t)n_resident_max, sizeof *s->entries);
    }
    if (!s || !s->resident || !s->entries) {
        scheduler_close(s);
        return fl_fail(err, FL_FULL, "scheduler: no memory for %d sequences", n_resident_max);
    }
    s->kv = kv;
    s->states = states;
    host_pool_init(&s->host_blocks, o, kv_cache_block_bytes(kv));
    host_pool_init(&s->host_states, o, state_pool_slot_floats(states) * sizeof(float));
    s->n_resident_max = n_resident_max;
    s->prefill_budget = prefill_budget;
    *out = s;
    return FL_OK;
}

void scheduler_close(scheduler *s)
{
    if (!s) return;
    FL_ASSERT(s->n_resident == 0 && s->n_waiting == 0 && !s->images);
    host_pool_fini(&s->host_blocks);
    host_pool_fini(&s->host_states);
    free(s->resident);
    free(s->entries);
    free(s);
}

int32_t scheduler_resident(const scheduler *s) { return s->n_resident; }
uint64_t scheduler_preemptions(const scheduler *s) { return s->n_preemptions; }

static bool is_older(const sequence *a, const sequence *b)
{
    return a->request != b->request ? a->request < b->request : a->sample < b->sample;
}

/* ---- the waiting queue ---- */

/* New requests are the youngest and go to the end; forks and preempted sequences belong near the head, so they are placed from there. */
static void queue_insert(scheduler *s, sequence *seq)
{
    sequence *after = s->last;           /* seq goes behind it; NULL = at the head */
    if (after && is_older(seq, after)) {
        sequence *before = s->first;
        while (is_older(before, seq)) before = before->next;
        after = before->previous;
    }
    seq->previous = after;
    seq->next = after ? after->next : s->first;
    if (seq->next) seq->next->previous = seq; else s->last = seq;
    if (after) after->next = seq; else s->first = seq;
    seq->place = SEQ_WAITING;
    s->n_waiting++;
}

static void queue_remove(scheduler *s, sequence *seq)
{
    if (seq->previous) seq->previous->next = seq->next; else s->first = seq->next;
    if (seq->next) seq->next->previous = seq->previous; else s->last = seq->previous;
    seq->next = seq->previous = NULL;
    seq->place = SEQ_OUTSIDE;
    s->n_waiting--;
}

/* ---- images ---- */

/* The image's blocks begin .. end - 1 from the pool to the host. */
static fl_status image_copy_blocks(scheduler *s, seq_image *image, const int32_t *blocks, int32_t begin, int32_t end, fl_err *err)
{
    for (int32_t i = begin; i < end; i++) {
        fl_status st = host_pool_take(&s->host_blocks, &image->kv[i], err);
        if (st != FL_OK) return st;
        kv_cache_copy_out(s->kv, blocks[i], image->kv[i]);
    }
    return FL_OK;
}

static void image_free(scheduler *s, seq_image *image)
{
    for (int32_t i = 0; image->kv && i < kv_blocks_of(image->n_cached); i++) host_pool_give(&s->host_blocks, image->kv[i]);
    host_pool_give(&s->host_states, image->state);
    kv_cache_release(s->kv, &image->shared, 0);
    free(image->kv);
    free(image);
}

/* Copy `seq` (resident) to the host but for its first n_shared blocks, which the image holds on to. It has no owner yet. */
static fl_status image_make(scheduler *s, seq_image **out, const sequence *seq, int32_t n_shared, fl_err *err)
{
    fl_status status = FL_OK;
    const int32_t n_blocks = kv_blocks_of(seq->n_cached);
    seq_image *image = calloc(1, sizeof *image);
    if (image) image->kv = calloc((size_t)n_blocks, sizeof *image->kv);
    if (!image || !image->kv) { status = fl_fail(err, FL_FULL, "scheduler: no host memory for a sequence"); goto done; }
    image->request = seq->request;
    image->n_cached = seq->n_cached;
    if ((status = kv_cache_share(s->kv, &image->shared, seq->table.blocks, n_shared, err)) != FL_OK) goto done;
    if (state_pool_slot_floats(s->states) > 0) {
        if ((status = host_pool_take(&s->host_states, &image->state, err)) != FL_OK) goto done;
        state_pool_copy_out(s->states, seq->slot, image->state);
    }
    if ((status = image_copy_blocks(s, image, seq->table.blocks, n_shared, n_blocks, err)) != FL_OK) goto done;
    image->next = s->images;
    if (s->images) s->images->previous = image;
    s->images = image;
    *out = image;
    image = NULL;
done:
    if (image) image_free(s, image);
    return status;
}

/* One owner less; without owners it is freed. */
static void image_drop(scheduler *s, seq_image *image)
{
    if (--image->n_owners > 0) return;
    if (image->previous) image->previous->next = image->next; else s->images = image->next;
    if (image->next) image->next->previous = image->previous;
    image_free(s, image);
}

/* Blocks that become free when the image gives up what it still holds in the pool. */
static int32_t image_frees(const scheduler *s, const seq_image *image)
{
    int32_t n = 0;
    for (int32_t i = 0; i < image->shared.n_blocks; i++) n += kv_cache_owners(s->kv, image->shared.blocks[i]) == 1;
    return n;
}

/* Move the image's blocks in the pool to the host as well. */
static fl_status image_squeeze(scheduler *s, seq_image *image, fl_err *err)
{
    fl_status st = image_copy_blocks(s, image, image->shared.blocks, 0, image->shared.n_blocks, err);
    if (st == FL_OK) kv_cache_release(s->kv, &image->shared, 0);
    return st;
}

/* The youngest image that holds blocks nobody else does, or NULL. */
static seq_image *image_youngest(const scheduler *s)
{
    seq_image *youngest = NULL;
    for (seq_image *image = s->images; image; image = image->next)
        if ((!youngest || image->request > youngest->request) && image_frees(s, image) > 0) youngest = image;
    return youngest;
}

/* ---- residents ---- */

static void resident_remove(scheduler *s, sequence *seq)
{
    int32_t i = 0;
    while (s->resident[i] != seq) i++;
    memmove(s->resident + i, s->resident + i + 1, (size_t)(s->n_resident - i - 1) * sizeof *s->resident);
    s->n_resident--;
    kv_cache_release(s->kv, &seq->table, 0);
    state_pool_give(s->states, seq->slot);
    seq->place = SEQ_OUTSIDE;
}

static void resident_insert(scheduler *s, sequence *seq)
{
    int32_t i = s->n_resident++;
    for (; i > 0 && is_older(seq, s->resident[i - 1]); i--) s->resident[i] = s->resident[i - 1];
    s->resident[i] = seq;
    seq->place = SEQ_RESIDENT;
}

static fl_status preempt(scheduler *s, sequence *seq, fl_err *err)
{
    seq_image *image = NULL;
    if (seq->n_cached > 0) {
        fl_status st = image_make(s, &image, seq, 0, err);
        if (st != FL_OK) return st;
        image->n_owners = 1;
    }
    resident_remove(s, seq);
    seq->image = image;
    queue_insert(s, seq);
    s->n_preemptions++;
    return FL_OK;
}

/* Free at least one block by taking from the youngest: an image that still holds some, else a resident sequence, which may be the one that asks. */
static fl_status free_some(scheduler *s, fl_err *err)
{
    sequence *tail = s->resident[s->n_resident - 1];
    seq_image *image = image_youngest(s);
    return image && image->request >= tail->request ? image_squeeze(s, image, err) : preempt(s, tail, err);
}

/* Each resident in decode form has the block its next position lies in. */
static fl_status grow_residents(scheduler *s, fl_err *err)
{
    for (int32_t i = 0; i < s->n_resident; i++) {
        sequence *seq = s->resident[i];
        if (seq->is_resting || seq->n_cached < seq->n_prompt || kv_blocks_of((int64_t)seq->n_cached + 1) <= seq->table.n_blocks) continue;
        while (seq->place == SEQ_RESIDENT && kv_cache_blocks_free(s->kv) == 0) {
            fl_status st = free_some(s, err);
            if (st != FL_OK) return st;
        }
        if (seq->place != SEQ_RESIDENT) break;           /* it was the youngest: none follows */
        fl_status st = kv_cache_reserve(s->kv, &seq->table, 1, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- admission ---- */

/* Blocks the sequence needs to run its whole prompt, or its next token. */
static int32_t blocks_wanted(const sequence *seq)
{
    int64_t next = (int64_t)seq->n_cached + 1;
    return kv_blocks_of(next > seq->n_prompt ? next : seq->n_prompt);
}

static fl_status restore(scheduler *s, sequence *seq, fl_err *err)
{
    seq_image *image = seq->image;
    const int32_t n_shared = image->shared.n_blocks, n_blocks = kv_blocks_of(image->n_cached);
    fl_status st = kv_cache_share(s->kv, &seq->table, image->shared.blocks, n_shared, err);
    if (st == FL_OK) st = kv_cache_reserve(s->kv, &seq->table, blocks_wanted(seq) - n_shared, err);
    if (st != FL_OK) return st;
    for (int32_t i = n_shared; i < n_blocks; i++) kv_cache_copy_in(s->kv, seq->table.blocks[i], image->kv[i]);
    if (image->state) state_pool_copy_in(s->states, seq->slot, image->state);
    seq->image = NULL;
    image_drop(s, image);
    return FL_OK;
}

/* Make the head of the queue resident. *was_admitted false: it has to wait for others to end. */
static fl_status admit_head(scheduler *s, bool *was_admitted, fl_err *err)
{
    sequence *seq = s->first;
    fl_status st = FL_OK;
    *was_admitted = false;
    if (!seq || s->n_resident == s->n_resident_max) return FL_OK;
    /* A free block for every fourth resident keeps what was just admitted from being preempted in the next steps; copying a few sequences to the host costs
     * less than leaving room unused. Alone, everything in the pool is its own to take. */
    while (blocks_wanted(seq) - (seq->image ? seq->image->shared.n_blocks : 0) + s->n_resident / 4 > kv_cache_blocks_free(s->kv)) {
        if (s->n_resident > 0) return FL_OK;
        seq_image *image = image_youngest(s);
        FL_ASSERT(image);                                /* else the pool is smaller than one full context */
        if ((st = image_squeeze(s, image, err)) != FL_OK) return st;
    }
    queue_remove(s, seq);
    seq->slot = state_pool_take(s->states);
    FL_ASSERT(seq->slot >= 0);
    resident_insert(s, seq);
    *was_admitted = true;
    return seq->image ? restore(s, seq, err) : kv_cache_reserve(s->kv, &seq->table, blocks_wanted(seq), err);
}

/* ---- steps ---- */

fl_status scheduler_plan(scheduler *s, const plan_entry **entries, int32_t *n, fl_err *err)
{
    bool was_admitted = true;
    fl_status st = grow_residents(s, err);
    while (st == FL_OK && was_admitted) st = admit_head(s, &was_admitted, err);
    if (st != FL_OK) return st;

    /* A chunk for every prompt as far as the budget goes, then what is left of it to the oldest ones: none waits behind a long prompt, and few are under way at a time. */
    int32_t n_entries = 0, n_resting = 0, left = s->prefill_budget;
    for (int32_t i = 0; i < s->n_resident; i++) {
        sequence *seq = s->resident[i];
        if (seq->is_resting) { n_resting++; continue; }
        plan_entry entry = { seq, seq->n_cached, 1, seq->n_cached < seq->n_prompt };
        if (entry.is_prefill) {
            entry.n_rows = seq->n_prompt - seq->n_cached < OPS_BLOCK_TOKENS ? seq->n_prompt - seq->n_cached : OPS_BLOCK_TOKENS;
            if (entry.n_rows > left) continue;
            left -= entry.n_rows;
        }
        s->entries[n_entries++] = entry;
    }
    for (int32_t i = 0; i < n_entries; i++) {
        plan_entry *entry = &s->entries[i];
        if (!entry->is_prefill) continue;
        const int32_t rest = entry->seq->n_prompt - entry->first - entry->n_rows, more = rest <= left ? rest : left / OPS_BLOCK_TOKENS * OPS_BLOCK_TOKENS;
        entry->n_rows += more;
        left -= more;
    }
    FL_ASSERT(n_entries > 0 || n_resting > 0 || (s->n_resident == 0 && s->n_waiting == 0));
    *entries = s->entries;
    *n = n_entries;
    return FL_OK;
}

void scheduler_add(scheduler *s, sequence *seq)
{
    FL_ASSERT(seq->place == SEQ_OUTSIDE && !seq->image);
    queue_insert(s, seq);
}

void scheduler_remove(scheduler *s, sequence *seq)
{
    if (seq->place == SEQ_RESIDENT) resident_remove(s, seq);
    else if (seq->place == SEQ_WAITING) queue_remove(s, seq);
    if (seq->image) image_drop(s, seq->image);
    seq->image = NULL;
}

fl_status scheduler_fork(scheduler *s, const sequence *from, sequence *const *children, int32_t n, fl_err *err)
{
    FL_ASSERT(n >= 1 && (from->place == SEQ_RESIDENT || from->image));
    seq_image *image = from->image;
    if (!image) {
        fl_status st = image_make(s, &image, from, from->n_cached / OPS_BLOCK_TOKENS, err);
        if (st != FL_OK) return st;
    }
    image->n_owners += n;
    for (int32_t i = 0; i < n; i++) {
        FL_ASSERT(children[i]->place == SEQ_OUTSIDE && !children[i]->image);
        children[i]->n_cached = from->n_cached;
        children[i]->image = image;
        queue_insert(s, children[i]);
    }
    return FL_OK;
}
