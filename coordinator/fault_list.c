#include "coordinator/fault_list.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/spill.h"
#include "proto/bytes.h"

enum { LIST_BUFFER = 1 << 20, FIRST_BYTES = 4096, FAULT_HEAD = 32 };

struct fault_list {
    char *dir;                           /* owned */
    uint8_t *buffer; size_t used, capacity;              /* owned; what is not in the file yet. Read: [at, used) comes next, then the file from file_at on */
    int fd;                              /* -1: all of it is in memory */
    uint64_t file_bytes;
    bool is_reading; uint64_t file_at; size_t at;
};

size_t fault_encode(uint8_t out[FAULT_BYTES_MAX], const fault_entry *fault)
{
    FL_ASSERT(fault->custom_id_bytes <= FAULT_ID_MAX && fault->text_bytes <= FAULT_TEXT_MAX);
    fl_put_u64(out, fault->row);
    fl_put_u64(out + 8, fault->line);
    fl_put_u64(out + 16, fault->offset);
    fl_put_u16(out + 24, (uint16_t)fault->code);
    fl_put_u16(out + 26, (uint16_t)fault->custom_id_bytes);
    fl_put_u32(out + 28, fault->text_bytes);
    memcpy(out + FAULT_HEAD, fault->custom_id, fault->custom_id_bytes);
    memcpy(out + FAULT_HEAD + fault->custom_id_bytes, fault->text, fault->text_bytes);
    return FAULT_HEAD + fault->custom_id_bytes + fault->text_bytes;
}

size_t fault_decode(fault_entry *fault, const uint8_t *bytes)
{
    *fault = (fault_entry){ .row = fl_get_u64(bytes), .line = fl_get_u64(bytes + 8), .offset = fl_get_u64(bytes + 16), .code = (fl_row_error)fl_get_u16(bytes + 24),
                            .custom_id_bytes = fl_get_u16(bytes + 26), .text_bytes = fl_get_u32(bytes + 28) };
    fault->custom_id = (const char *)bytes + FAULT_HEAD;
    fault->text = fault->custom_id + fault->custom_id_bytes;
    return FAULT_HEAD + fault->custom_id_bytes + fault->text_bytes;
}

void fault_set_row(uint8_t *bytes, uint64_t row) { fl_put_u64(bytes, row); }

fl_status fault_list_open(fault_list **out, const char *dir, fl_err *err)
{
    fault_list *l = calloc(1, sizeof *l);
    if (!l || !(l->dir = strdup(dir))) {
        free(l);
        return fl_fail(err, FL_FULL, "no memory for the bad lines of a job");
    }
    l->fd = -1;
    *out = l;
    return FL_OK;
}

void fault_list_close(fault_list *l)
{
    if (!l) return;
    if (l->fd >= 0) close(l->fd);
    free(l->buffer);
    free(l->dir);
    free(l);
}

static fl_status flush(fault_list *l, fl_err *err)
{
    fl_status st = l->fd < 0 ? spill_create(&l->fd, l->dir, err) : FL_OK;
    if (st == FL_OK) st = spill_write(l->fd, l->dir, l->buffer, l->used, l->file_bytes, err);
    if (st != FL_OK) return st;
    l->file_bytes += l->used;
    l->used = 0;
    return FL_OK;
}

fl_status fault_list_add(fault_list *l, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    if (l->used + n_bytes > LIST_BUFFER) {
        fl_status st = flush(l, err);
        if (st != FL_OK) return st;
    }
    if (l->used + n_bytes > l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : FIRST_BYTES;
        uint8_t *buffer = realloc(l->buffer, capacity);
        if (!buffer) return fl_fail(err, FL_FULL, "no memory for the bad lines of a job");
        l->buffer = buffer;
        l->capacity = capacity;
    }
    memcpy(l->buffer + l->used, bytes, n_bytes);
    l->used += n_bytes;
    return FL_OK;
}

fl_status fault_list_begin(fault_list *l, fl_err *err)
{
    if (l->fd >= 0 && !l->is_reading) {
        fl_status st = flush(l, err);
        if (st != FL_OK) return st;
    }
    l->is_reading = true;
    l->at = 0;
    l->file_at = 0;
    if (l->fd >= 0) l->used = 0;
    return FL_OK;
}

fl_status fault_list_next(fault_list *l, fault_entry *fault, fl_err *err)
{
    if (l->used - l->at < FAULT_BYTES_MAX && l->file_at < l->file_bytes) {
        memmove(l->buffer, l->buffer + l->at, l->used - l->at);
        l->used -= l->at;
        l->at = 0;
        size_t n = l->capacity - l->used;
        if (n > l->file_bytes - l->file_at) n = (size_t)(l->file_bytes - l->file_at);
        fl_status st = spill_read(l->fd, l->dir, l->buffer + l->used, n, l->file_at, err);
        if (st != FL_OK) return st;
        l->used += n;
        l->file_at += n;
    }
    if (l->at == l->used) return FL_CLOSED;
    l->at += fault_decode(fault, l->buffer + l->at);
    return FL_OK;
}
