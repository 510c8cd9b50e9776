#include "proto/msgpack_check.h"

/* What the first byte of an object says: how many bytes of big-endian length follow it, how many bytes of fixed payload, and
 * what the length counts. */
typedef struct { uint8_t length_bytes; uint8_t fixed_bytes; uint8_t entry_objects; } item_form;

enum { COUNTS_BYTES = 0, COUNTS_ENTRIES = 1, COUNTS_PAIRS = 2 };

/* Of the first bytes 0xC0 .. 0xDF, in order (msgpack specification, "formats"). */
static const item_form forms[32] = {
    [0x00] = { 0, 0, 0 },                                                     /* nil */
    [0x02] = { 0, 0, 0 }, [0x03] = { 0, 0, 0 },                               /* false, true */
    [0x04] = { 1, 0, COUNTS_BYTES }, [0x05] = { 2, 0, COUNTS_BYTES }, [0x06] = { 4, 0, COUNTS_BYTES },   /* bin */
    [0x07] = { 1, 1, COUNTS_BYTES }, [0x08] = { 2, 1, COUNTS_BYTES }, [0x09] = { 4, 1, COUNTS_BYTES },   /* ext, with its type */
    [0x0A] = { 0, 4, 0 }, [0x0B] = { 0, 8, 0 },                               /* float */
    [0x0C] = { 0, 1, 0 }, [0x0D] = { 0, 2, 0 }, [0x0E] = { 0, 4, 0 }, [0x0F] = { 0, 8, 0 },              /* unsigned */
    [0x10] = { 0, 1, 0 }, [0x11] = { 0, 2, 0 }, [0x12] = { 0, 4, 0 }, [0x13] = { 0, 8, 0 },              /* signed */
    [0x14] = { 0, 2, 0 }, [0x15] = { 0, 3, 0 }, [0x16] = { 0, 5, 0 }, [0x17] = { 0, 9, 0 }, [0x18] = { 0, 17, 0 },   /* fixext */
    [0x19] = { 1, 0, COUNTS_BYTES }, [0x1A] = { 2, 0, COUNTS_BYTES }, [0x1B] = { 4, 0, COUNTS_BYTES },   /* str */
    [0x1C] = { 2, 0, COUNTS_ENTRIES }, [0x1D] = { 4, 0, COUNTS_ENTRIES },     /* array */
    [0x1E] = { 2, 0, COUNTS_PAIRS }, [0x1F] = { 4, 0, COUNTS_PAIRS },         /* map */
};

/* The object's own bytes, without the objects in it, and how many objects those are. 0 bytes: cut or not msgpack. */
static size_t item_size(const uint8_t *data, size_t n_bytes, uint64_t *n_inside)
{
    uint8_t first = data[0];
    *n_inside = 0;
    if (first < 0x80 || first >= 0xE0) return 1;                              /* small integers */
    if (first < 0x90) { *n_inside = 2u * (first & 0x0Fu); return 1; }         /* small map */
    if (first < 0xA0) { *n_inside = first & 0x0Fu; return 1; }                /* small array */
    if (first < 0xC0) return 1 + (first & 0x1Fu) <= n_bytes ? 1 + (first & 0x1Fu) : 0;   /* small str */
    if (first == 0xC1) return 0;                                              /* never used */

    item_form form = forms[first - 0xC0];
    size_t head = 1u + form.length_bytes + form.fixed_bytes;
    if (head > n_bytes) return 0;
    uint64_t length = 0;
    for (int i = 0; i < form.length_bytes; i++) length = length << 8 | data[1 + i];
    if (form.entry_objects == COUNTS_BYTES) return length <= n_bytes - head ? head + (size_t)length : 0;
    *n_inside = length * form.entry_objects;
    return head;
}

fl_status fl_msgpack_check(const uint8_t *data, size_t n_bytes, size_t items_max, size_t *used, fl_err *err)
{
    uint64_t open[FL_MSGPACK_DEPTH_MAX] = { 1 };         /* objects still to come at each depth */
    uint64_t pending = 1, n_items = 0;                   /* their sum; those walked */
    int depth = 0;
    size_t at = 0;
    while (pending > 0) {
        if (pending > n_bytes - at)
            return fl_fail(err, FL_CORRUPT, "msgpack: %llu objects announced, %zu bytes left at byte %zu", (unsigned long long)pending, n_bytes - at, at);
        uint64_t n_inside;
        size_t size = item_size(data + at, n_bytes - at, &n_inside);
        if (size == 0) return fl_fail(err, FL_CORRUPT, "msgpack: no whole object at byte %zu of %zu", at, n_bytes);
        at += size;
        pending += n_inside - 1;
        n_items++;
        if (n_items + pending > items_max)
            return fl_fail(err, FL_CORRUPT, "msgpack: more than the %zu objects that are allowed here", items_max);
        while (depth > 0 && open[depth] == 0) depth--;
        open[depth]--;
        if (n_inside == 0) continue;
        if (++depth == FL_MSGPACK_DEPTH_MAX) return fl_fail(err, FL_CORRUPT, "msgpack: nested deeper than %d", FL_MSGPACK_DEPTH_MAX);
        open[depth] = n_inside;
    }
    *used = at;
    return FL_OK;
}
