/* outbox.c - see outbox.h. */
#include "worker/outbox.h"

#include <stdlib.h>
#include <string.h>

typedef struct { uint8_t *data; size_t bytes; } piece;

struct outbox_entry {
    uint64_t job, lease, row, sample;        /* sample WIRE_WHOLE_ROW: a row error */
    uint64_t n_tokens;
    uint32_t n_pieces, n_in;                 /* pieces of the body, and how many came */
    piece *pieces;                           /* owned [n_pieces] */
    uint64_t code; char *text; uint32_t text_bytes;      /* text owned; of a row error */
    size_t bytes;                            /* what it holds, with its own size */
    outbox_entry *next;
};

struct outbox {
    size_t limit_bytes, bytes, count;
    outbox_entry *head, *tail;               /* whole entries, oldest first */
    outbox_entry *building;                  /* a body whose last piece has not come; NULL when none */
    outbox_entry *cursor; uint32_t cursor_piece;         /* the next to send; NULL = all sent */
};

fl_status outbox_open(outbox **out, size_t limit_bytes, fl_err *err)
{
    outbox *box = calloc(1, sizeof *box);
    if (!box) return fl_fail(err, FL_FULL, "worker: no memory for the outbox");
    box->limit_bytes = limit_bytes;
    *out = box;
    return FL_OK;
}

static void entry_free(outbox *box, outbox_entry *e)
{
    box->bytes -= e->bytes;
    for (uint32_t i = 0; i < e->n_in; i++) free(e->pieces[i].data);
    free(e->pieces);
    free(e->text);
    free(e);
}

void outbox_close(outbox *box)
{
    if (!box) return;
    outbox_drop_partial(box);
    while (box->head) {
        outbox_entry *next = box->head->next;
        entry_free(box, box->head);
        box->head = next;
    }
    free(box);
}

static void count_bytes(outbox *box, outbox_entry *e, size_t n)
{
    e->bytes += n;
    box->bytes += n;
}

static void append(outbox *box, outbox_entry *e)
{
    if (box->tail) box->tail->next = e;
    else box->head = e;
    box->tail = e;
    box->count++;
    if (!box->cursor) {
        box->cursor = e;
        box->cursor_piece = 0;
    }
}

static fl_status put_error(outbox *box, const wire_row_error *m, fl_err *err)
{
    outbox_entry *e = calloc(1, sizeof *e);
    char *text = malloc(m->text.n + 1);
    if (!e || !text) {
        free(e);
        free(text);
        return fl_fail(err, FL_FULL, "worker: no memory for a row error");
    }
    if (m->text.n) memcpy(text, m->text.p, m->text.n);
    *e = (outbox_entry){ .job = m->job, .lease = m->lease, .row = m->row, .sample = WIRE_WHOLE_ROW, .code = m->code, .text = text, .text_bytes = m->text.n };
    count_bytes(box, e, sizeof *e + m->text.n);
    append(box, e);
    return FL_OK;
}

static fl_status begin_body(outbox *box, const wire_result *m, fl_err *err)
{
    outbox_entry *e = calloc(1, sizeof *e);
    piece *pieces = calloc(m->n_pieces, sizeof *pieces);
    if (!e || !pieces) {
        free(e);
        free(pieces);
        return fl_fail(err, FL_FULL, "worker: no memory for a result");
    }
    *e = (outbox_entry){ .job = m->job, .lease = m->lease, .row = m->row, .sample = m->sample, .n_tokens = m->n_tokens,
                         .n_pieces = (uint32_t)m->n_pieces, .pieces = pieces };
    count_bytes(box, e, sizeof *e + m->n_pieces * sizeof *pieces);
    box->building = e;
    return FL_OK;
}

static bool continues(const outbox_entry *e, const wire_result *m)
{
    return e && e->job == m->job && e->lease == m->lease && e->row == m->row && e->sample == m->sample && e->n_in == m->piece && e->n_pieces == m->n_pieces;
}

fl_status outbox_put(outbox *box, const wire_msg *msg, bool *complete, fl_err *err)
{
    const wire_result *m = &msg->result;
    fl_status st = FL_OK;
    *complete = true;
    if (msg->type == WIRE_ROW_ERROR) return put_error(box, &msg->row_error, err);
    if (m->n_pieces == 0 || m->piece >= m->n_pieces) return fl_fail(err, FL_CORRUPT, "worker: a result of no pieces");
    if (m->piece == 0 && !box->building && (st = begin_body(box, m, err)) != FL_OK) return st;
    outbox_entry *e = box->building;
    if (!continues(e, m)) return fl_fail(err, FL_CORRUPT, "worker: piece %llu of a result came out of order", (unsigned long long)m->piece);
    size_t n = msg->parts[0].bytes;
    uint8_t *data = malloc(n + 1);
    if (!data) return fl_fail(err, FL_FULL, "worker: no memory for %zu bytes of a result", n);
    if (n) memcpy(data, msg->parts[0].data, n);
    e->pieces[e->n_in++] = (piece){ data, n };
    count_bytes(box, e, n);
    *complete = e->n_in == e->n_pieces;
    if (*complete) {
        box->building = NULL;
        append(box, e);
    }
    return FL_OK;
}

void outbox_drop_partial(outbox *box)
{
    if (box->building) entry_free(box, box->building);
    box->building = NULL;
}

/* Unlink *link, whose predecessor is `before` (NULL at the head). */
static void unlink_entry(outbox *box, outbox_entry *before, outbox_entry *e)
{
    if (before) before->next = e->next;
    else box->head = e->next;
    if (box->tail == e) box->tail = before;
    if (box->cursor == e) {
        box->cursor = e->next;
        box->cursor_piece = 0;
    }
    box->count--;
    entry_free(box, e);
}

bool outbox_answer(outbox *box, uint64_t job, uint64_t lease, uint64_t row, uint64_t sample)
{
    outbox_entry *before = NULL;
    for (outbox_entry *e = box->head; e; before = e, e = e->next) {
        if (e->lease != lease || e->row != row || e->sample != sample || e->job != job) continue;
        unlink_entry(box, before, e);
        return true;
    }
    return false;
}

static size_t drop_matching(outbox *box, uint64_t lease, bool whole_lease, uint64_t row, uint64_t sample)
{
    size_t n = 0;
    outbox_entry *before = NULL, *next;
    for (outbox_entry *e = box->head; e; e = next) {
        next = e->next;
        if (e->lease == lease && (whole_lease || (e->row == row && (sample == WIRE_WHOLE_ROW || e->sample == sample)))) {
            unlink_entry(box, before, e);
            n++;
        } else before = e;
    }
    return n;
}

size_t outbox_drop_lease(outbox *box, uint64_t lease)
{
    return drop_matching(box, lease, true, 0, 0);
}

size_t outbox_drop(outbox *box, uint64_t lease, uint64_t row, uint64_t sample)
{
    return drop_matching(box, lease, false, row, sample);
}

bool outbox_next(outbox *box, wire_msg *msg, fl_bytes *part)
{
    const outbox_entry *e = box->cursor;
    if (!e) return false;
    if (e->sample == WIRE_WHOLE_ROW) {
        *msg = (wire_msg){ .type = WIRE_ROW_ERROR, .row_error = { .job = e->job, .lease = e->lease, .row = e->row, .code = e->code, .text = { e->text, e->text_bytes } } };
        return true;
    }
    *part = (fl_bytes){ e->pieces[box->cursor_piece].data, e->pieces[box->cursor_piece].bytes };
    *msg = (wire_msg){ .type = WIRE_RESULT, .n_parts = 1, .parts = part, .result = {
        .job = e->job, .lease = e->lease, .row = e->row, .sample = e->sample, .piece = box->cursor_piece, .n_pieces = e->n_pieces, .n_tokens = e->n_tokens,
    } };
    return true;
}

void outbox_sent(outbox *box)
{
    FL_ASSERT(box->cursor);
    if (++box->cursor_piece < box->cursor->n_pieces) return;
    box->cursor = box->cursor->next;
    box->cursor_piece = 0;
}

void outbox_resend(outbox *box)
{
    box->cursor = box->head;
    box->cursor_piece = 0;
}

bool outbox_is_full(const outbox *box)
{
    return box->bytes >= box->limit_bytes && !box->building;
}

size_t outbox_count(const outbox *box)
{
    return box->count;
}

size_t outbox_bytes(const outbox *box)
{
    return box->bytes;
}
