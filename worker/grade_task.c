#include "worker/grade_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct task_table {
    task_entry **entries;                /* owned, and each of them; open addressing, at most half full */
    size_t n, room;
};

fl_status task_table_open(task_table **out, fl_err *err)
{
    task_table *table = calloc(1, sizeof *table);
    if (table) table->entries = calloc(table->room = 1024, sizeof *table->entries);
    if (!table || !table->entries) { free(table); return fl_fail(err, FL_FULL, "grading: no memory for the task table"); }
    *out = table;
    return FL_OK;
}

void task_table_close(task_table *table)
{
    if (!table) return;
    for (size_t i = 0; i < table->room; i++) {
        if (!table->entries[i]) continue;
        free(table->entries[i]->fields);
        free(table->entries[i]);
    }
    free(table->entries);
    free(table);
}

static task_entry **place_of(task_entry **entries, size_t room, const uint64_t hash[2])
{
    size_t at = (size_t)hash[0] & (room - 1);
    while (entries[at] && (entries[at]->hash[0] != hash[0] || entries[at]->hash[1] != hash[1])) at = (at + 1) & (room - 1);
    return &entries[at];
}

static fl_status grow(task_table *table, fl_err *err)
{
    size_t room = 2 * table->room;
    task_entry **entries = calloc(room, sizeof *entries);
    if (!entries) return fl_fail(err, FL_FULL, "grading: no memory for %zu tasks", table->n);
    for (size_t i = 0; i < table->room; i++) {
        if (table->entries[i]) *place_of(entries, room, table->entries[i]->hash) = table->entries[i];
    }
    free(table->entries);
    table->entries = entries;
    table->room = room;
    return FL_OK;
}

/* Each field: eight bytes of length (little-endian), then its bytes. The completion and the numbers of one sample follow in the file that the checker gets. */
static unsigned char *make_fields(const grade_task *task, size_t *n_bytes, size_t *canonical_at)
{
    static const char *const modes[] = {[GRADE_CHECK] = "check", [GRADE_ASSERTS] = "asserts", [GRADE_INPUTS] = "inputs"};
    const char *mode = modes[task->mode];
    const grade_text fields[] = {{mode, strlen(mode)}, task->task_id, task->prompt, task->entry_point, task->test, task->canonical_solution, task->base_inputs, task->plus_inputs};
    size_t n = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) n += 8 + fields[i].n;
    unsigned char *made = malloc(n), *at = made;
    for (size_t i = 0; made && i < sizeof fields / sizeof *fields; i++) {
        uint64_t length = fields[i].n;
        for (int b = 0; b < 8; b++) *at++ = (unsigned char)(length >> (8 * b));
        if (i == 5) *canonical_at = (size_t)(at - made);
        if (length > 0) memcpy(at, fields[i].bytes, fields[i].n);
        at += length;
    }
    *n_bytes = n;
    return made;
}

static fl_status check_task(const grade_task *task, fl_err *err)
{
    int n = (int)(task->task_id.n < 80 ? task->task_id.n : 80);
    const char *id = task->task_id.n ? task->task_id.bytes : "";
    if (task->entry_point.n == 0) return fl_fail(err, FL_INVALID, "grading: task %.*s has no entry_point", n, id);
    if (task->mode != GRADE_INPUTS && task->test.n == 0) return fl_fail(err, FL_INVALID, "grading: task %.*s has no test", n, id);
    if (task->mode == GRADE_INPUTS && task->canonical_solution.n == 0) return fl_fail(err, FL_INVALID, "grading: task %.*s has inputs and no canonical_solution that says what they give", n, id);
    return FL_OK;
}

fl_status task_table_take(task_table *table, const grade_task *task, task_entry **out, fl_err *err)
{
    size_t n_bytes = 0, canonical_at = 0;
    task_entry *made = NULL;
    fl_status st = check_task(task, err);
    if (st != FL_OK) return st;
    unsigned char *fields = make_fields(task, &n_bytes, &canonical_at);
    if (!fields) return fl_fail(err, FL_FULL, "grading: no memory for a task of %zu bytes", n_bytes);
    XXH64_hash_t seed = 0;                                           /* the tolerance is part of the task too */
    memcpy(&seed, &task->atol, sizeof seed);
    XXH128_hash_t h = XXH3_128bits_withSeed(fields, n_bytes, seed);
    const uint64_t hash[2] = {h.low64, h.high64};
    task_entry **place = place_of(table->entries, table->room, hash);
    if (!*place) {
        if (2 * (table->n + 1) > table->room && (st = grow(table, err)) != FL_OK) goto done;
        made = calloc(1, sizeof *made);
        if (!made) { st = fl_fail(err, FL_FULL, "grading: no memory for a task"); goto done; }
        *made = (task_entry){.hash = {hash[0], hash[1]}, .has_canonical = task->canonical_solution.n > 0, .canonical_at = canonical_at, .canonical_bytes = task->canonical_solution.n, .atol = task->atol};
        snprintf(made->id, sizeof made->id, "%.*s", (int)(task->task_id.n < 79 ? task->task_id.n : 79), task->task_id.n ? task->task_id.bytes : "");
        *(place = place_of(table->entries, table->room, hash)) = made;
        table->n++;
    }
    task_entry *entry = *place;
    if (!entry->fields) {
        entry->fields = fields;
        entry->fields_bytes = n_bytes;
        fields = NULL;
    }
    entry->n_pending++;
    *out = entry;
done:
    free(fields);
    return st;
}

void task_entry_drop(task_entry *entry)
{
    FL_ASSERT(entry->n_pending > 0);
    if (--entry->n_pending > 0) return;
    free(entry->fields);
    entry->fields = NULL;
}
