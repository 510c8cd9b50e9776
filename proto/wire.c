/* wire.c - one encoder and one decoder for every message, driven by the tables of wire.h.
 *
 *   wire.h tables ──▶ field[] of each type: kind, key, bound, offset in its struct
 *                        │
 *   wire_encode: keys 0 1 2, then each non-zero field by ascending key (tables are in that order, so the bytes are canonical)
 *   wire_decode: fl_msgpack_check ──▶ msgpack-c ──▶ version, type ──▶ each known key into its field ──▶ parts
 *   wire_pack:   header ‖ u32 size of each part ‖ the parts
 */
#include "proto/wire.h"

#include <errno.h>
#include <msgpack.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/bytes.h"
#include "proto/msgpack_check.h"

#define KEY_VERSION 0
#define KEY_TYPE 1
#define KEY_N_PARTS 2
#define PART_SIZE_BYTES 4
#define ITEMS_MAX (1u << 18)                             /* the largest list and plenty of keys not known yet: 6 MB in msgpack-c */

typedef enum { FIELD_U64, FIELD_STR, FIELD_LIST } field_kind;
typedef struct { field_kind kind; uint8_t key; size_t offset; uint64_t bound; const char *name; } field;

/* parts_min > parts_max marks GRANT: the lines of as many items as its lists have entries. */
typedef struct { const char *name; const field *fields; size_t n_fields; uint32_t parts_min, parts_max; } message_form;

#define FIELD_ROW(kind, key, name, bound) { FIELD_##kind, key, offsetof(message, name), (uint64_t)(bound), #name },
#define FORM_CASE(number, NAME, name_) \
    case number: { \
        typedef wire_##name_ message; \
        static const field fields[] = { WIRE_##NAME##_FIELDS(FIELD_ROW) }; \
        static const message_form form = { \
            #NAME, fields, sizeof fields / sizeof fields[0], \
            (number) == WIRE_DETOK || (number) == WIRE_RESULT || (number) == WIRE_GRANT, \
            (number) == WIRE_DETOK || (number) == WIRE_RESULT || (number) == WIRE_REQUEST || (number) == WIRE_REPLY }; \
        return &form; \
    }

/* NULL when `type` is no message. */
static const message_form *form_of(uint64_t type)
{
    switch (type) {
        WIRE_TYPES(FORM_CASE)
    default: return NULL;
    }
}

/* Every message stands at the start of the union. */
static void *field_at(wire_msg *msg, const field *f)
{
    return (char *)msg + offsetof(wire_msg, hello) + f->offset;
}

static const void *field_in(const wire_msg *msg, const field *f)
{
    return (const char *)msg + offsetof(wire_msg, hello) + f->offset;
}

const char *wire_type_name(wire_type type)
{
    const message_form *form = form_of((uint64_t)type);
    return form ? form->name : "?";
}

wire_str wire_text(const char *text)
{
    size_t n = strlen(text);
    FL_ASSERT(n <= UINT32_MAX);
    return (wire_str){ text, (uint32_t)n };
}

/* ---- lines as parts ---- */

uint32_t wire_line_parts(size_t n_bytes)
{
    return (uint32_t)(n_bytes / FL_FRAME_PAYLOAD_MAX) + 1;
}

void wire_line_cut(fl_bytes line, fl_bytes *parts)
{
    const uint8_t *p = line.data;
    size_t left = line.bytes;
    for (; left >= FL_FRAME_PAYLOAD_MAX; left -= FL_FRAME_PAYLOAD_MAX, p += FL_FRAME_PAYLOAD_MAX) *parts++ = (fl_bytes){ p, FL_FRAME_PAYLOAD_MAX };
    *parts = (fl_bytes){ p, left };
}

fl_bytes wire_line_next(const wire_msg *msg, uint32_t *at, fl_arena *arena)
{
    uint32_t first = *at, last = first;
    while (msg->parts[last].bytes == FL_FRAME_PAYLOAD_MAX) last++;
    *at = last + 1;
    if (last == first) return msg->parts[first];
    size_t n_bytes = (size_t)(last - first) * FL_FRAME_PAYLOAD_MAX + msg->parts[last].bytes, used = 0;
    uint8_t *joined = fl_arena_take(arena, n_bytes);
    for (uint32_t i = first; joined && i <= last; used += msg->parts[i++].bytes) {
        if (msg->parts[i].bytes) memcpy(joined + used, msg->parts[i].data, msg->parts[i].bytes);
    }
    return (fl_bytes){ joined, n_bytes };
}

static bool has_whole_lines(const wire_msg *msg, uint32_t n_lines)
{
    uint32_t n = 0;
    bool is_open = false;
    for (uint32_t i = 0; i < msg->n_parts; i++) {
        is_open = msg->parts[i].bytes == FL_FRAME_PAYLOAD_MAX;
        n += !is_open;
    }
    return n == n_lines && !is_open;
}

/* ---- shape ---- */

/* The rules that the tables of wire.h state in words: parallel lists, and how many parts a type has. `failure` is FL_INVALID
 * for a message of ours and FL_CORRUPT for a foreign one. */
static fl_status check_shape(const wire_msg *msg, const message_form *form, fl_status failure, fl_err *err)
{
    const wire_list *first = NULL;
    for (size_t i = 0; i < form->n_fields; i++) {
        if (form->fields[i].kind != FIELD_LIST) continue;
        const wire_list *list = field_in(msg, &form->fields[i]);
        if (!first) first = list;
        if (list->n != first->n)
            return fl_fail(err, failure, "wire: %s has %u entries in %s and another list of %u", form->name, list->n, form->fields[i].name, first->n);
    }
    bool has_lines = form->parts_min > form->parts_max;
    if (!has_lines && (msg->n_parts < form->parts_min || msg->n_parts > form->parts_max))
        return fl_fail(err, failure, "wire: %s with %u parts instead of %u to %u", form->name, msg->n_parts, form->parts_min, form->parts_max);
    for (uint32_t i = 0; i < msg->n_parts; i++)
        if (msg->parts[i].bytes > FL_FRAME_PAYLOAD_MAX)
            return fl_fail(err, failure, "wire: part %u of %s has %zu bytes, more than the %u a frame may hold", i, form->name,
                           msg->parts[i].bytes, FL_FRAME_PAYLOAD_MAX);
    if (has_lines && !has_whole_lines(msg, first->n)) return fl_fail(err, failure, "wire: %s with parts that are not the lines of its %u items", form->name, first->n);
    return FL_OK;
}

/* ---- encode ---- */

typedef struct { uint8_t *bytes; size_t used, capacity; } out_buffer;

static int out_write(void *data, const char *bytes, size_t n_bytes)
{
    out_buffer *out = data;
    FL_ASSERT(n_bytes <= out->capacity - out->used);     /* encoded_bytes_max counted everything */
    memcpy(out->bytes + out->used, bytes, n_bytes);
    out->used += n_bytes;
    return 0;
}

/* The field's size (0 = left out) after its bound was checked; *n_bytes grows by the most that it takes. */
static fl_status check_field(const wire_msg *msg, const message_form *form, const field *f, size_t *size, size_t *n_bytes, fl_err *err)
{
    const void *at = field_in(msg, f);
    uint64_t value = f->kind == FIELD_U64 ? *(const uint64_t *)at : f->kind == FIELD_STR ? ((const wire_str *)at)->n : ((const wire_list *)at)->n;
    if (value > f->bound)
        return fl_fail(err, FL_INVALID, "wire: %s.%s is %llu, above its bound of %llu", form->name, f->name, (unsigned long long)value,
                       (unsigned long long)f->bound);
    *size = value != 0;
    if (value) *n_bytes += 10 + (f->kind == FIELD_U64 ? 0 : f->kind == FIELD_STR ? (size_t)value : 9 * (size_t)value);
    return FL_OK;
}

static void pack_field(msgpack_packer *packer, const wire_msg *msg, const field *f)
{
    const void *at = field_in(msg, f);
    const wire_str *str = at;
    const wire_list *list = at;
    msgpack_pack_uint64(packer, f->key);
    switch (f->kind) {
    case FIELD_U64: msgpack_pack_uint64(packer, *(const uint64_t *)at); break;
    case FIELD_STR:
        msgpack_pack_str(packer, str->n);
        msgpack_pack_str_body(packer, str->p, str->n);
        break;
    case FIELD_LIST:
        msgpack_pack_array(packer, list->n);
        for (uint32_t i = 0; i < list->n; i++) msgpack_pack_uint64(packer, list->v[i]);
        break;
    }
}

fl_status wire_encode(const wire_msg *msg, fl_arena *arena, const uint8_t **out, size_t *n_bytes, fl_err *err)
{
    const message_form *form = form_of((uint64_t)msg->type);
    if (!form) return fl_fail(err, FL_INVALID, "wire: %d is not a message type", (int)msg->type);
    fl_status st = check_shape(msg, form, FL_INVALID, err);
    size_t n_fields = 2 + (msg->n_parts != 0), room = 16, present[64] = { 0 };
    FL_ASSERT(form->n_fields <= 64);
    for (size_t i = 0; st == FL_OK && i < form->n_fields; i++) {
        st = check_field(msg, form, &form->fields[i], &present[i], &room, err);
        n_fields += present[i];
    }
    if (st != FL_OK) return st;

    out_buffer buffer = { fl_arena_take(arena, room), 0, room };
    if (!buffer.bytes) return fl_fail(err, FL_FULL, "wire: no memory for a %s of %zu bytes", form->name, room);
    msgpack_packer packer;
    msgpack_packer_init(&packer, &buffer, out_write);
    msgpack_pack_map(&packer, n_fields);
    msgpack_pack_uint64(&packer, KEY_VERSION);
    msgpack_pack_uint64(&packer, WIRE_VERSION);
    msgpack_pack_uint64(&packer, KEY_TYPE);
    msgpack_pack_uint64(&packer, (uint64_t)msg->type);
    if (msg->n_parts) {
        msgpack_pack_uint64(&packer, KEY_N_PARTS);
        msgpack_pack_uint64(&packer, msg->n_parts);
    }
    for (size_t i = 0; i < form->n_fields; i++)
        if (present[i]) pack_field(&packer, msg, &form->fields[i]);
    if (buffer.used > FL_FRAME_PAYLOAD_MAX)
        return fl_fail(err, FL_INVALID, "wire: a %s header of %zu bytes is more than the %u a frame may hold", form->name, buffer.used, FL_FRAME_PAYLOAD_MAX);
    *out = buffer.bytes;
    *n_bytes = buffer.used;
    return FL_OK;
}

/* ---- decode ---- */

static fl_status read_field(wire_msg *msg, const message_form *form, const field *f, const msgpack_object *value, fl_arena *arena, fl_err *err)
{
    void *at = field_at(msg, f);
    static const msgpack_object_type types[] = { MSGPACK_OBJECT_POSITIVE_INTEGER, MSGPACK_OBJECT_STR, MSGPACK_OBJECT_ARRAY };
    if (value->type != types[f->kind]) return fl_fail(err, FL_CORRUPT, "wire: %s.%s is of the wrong type", form->name, f->name);
    uint64_t size = f->kind == FIELD_U64 ? value->via.u64 : f->kind == FIELD_STR ? value->via.str.size : value->via.array.size;
    if (size > f->bound)
        return fl_fail(err, FL_CORRUPT, "wire: %s.%s is %llu, above its bound of %llu", form->name, f->name, (unsigned long long)size,
                       (unsigned long long)f->bound);
    if (f->kind == FIELD_U64) *(uint64_t *)at = value->via.u64;
    if (f->kind == FIELD_STR && size) *(wire_str *)at = (wire_str){ value->via.str.ptr, value->via.str.size };
    if (f->kind != FIELD_LIST || size == 0) return FL_OK;

    uint64_t *entries = fl_arena_take(arena, (size_t)size * sizeof *entries);
    if (!entries) return fl_fail(err, FL_FULL, "wire: no memory for the %llu entries of %s.%s", (unsigned long long)size, form->name, f->name);
    for (size_t i = 0; i < size; i++) {
        const msgpack_object *entry = &value->via.array.ptr[i];
        if (entry->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return fl_fail(err, FL_CORRUPT, "wire: entry %zu of %s.%s is not an unsigned integer", i, form->name, f->name);
        entries[i] = entry->via.u64;
    }
    *(wire_list *)at = (wire_list){ entries, (uint32_t)size };
    return FL_OK;
}

/* Keys are unsigned integers and none of ours stands twice, so that one header has one meaning. */
static fl_status check_keys(const msgpack_object_map *map, fl_err *err)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (key->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return fl_fail(err, FL_CORRUPT, "wire: a header key is not an unsigned integer");
        if (key->via.u64 >= 64) continue;
        if (seen >> key->via.u64 & 1) return fl_fail(err, FL_CORRUPT, "wire: header key %d stands twice", (int)key->via.u64);
        seen |= UINT64_C(1) << key->via.u64;
    }
    return FL_OK;
}

/* The small integer under `key`, 0 when it is left out, UINT64_MAX when it is something else. */
static uint64_t small_integer(const msgpack_object_map *map, uint64_t key)
{
    for (uint32_t i = 0; i < map->size; i++)
        if (map->ptr[i].key.via.u64 == key) return map->ptr[i].val.type == MSGPACK_OBJECT_POSITIVE_INTEGER ? map->ptr[i].val.via.u64 : UINT64_MAX;
    return 0;
}

static fl_status read_map(wire_msg *msg, const msgpack_object_map *map, fl_arena *arena, fl_err *err)
{
    fl_status st = check_keys(map, err);
    if (st != FL_OK) return st;
    uint64_t version = small_integer(map, KEY_VERSION), type = small_integer(map, KEY_TYPE), n_parts = small_integer(map, KEY_N_PARTS);
    if (version != WIRE_VERSION)
        return fl_fail(err, FL_CORRUPT, "wire: the peer speaks version %lld of the protocol, this program version %d; run the same release on both",
                       (long long)version, WIRE_VERSION);
    const message_form *form = form_of(type);
    if (!form) return fl_fail(err, FL_CORRUPT, "wire: %lld is not a message type", (long long)type);
    if (n_parts > WIRE_PARTS_MAX)
        return fl_fail(err, FL_CORRUPT, "wire: %s announces %lld parts, at most %d are allowed", form->name, (long long)n_parts, WIRE_PARTS_MAX);
    msg->type = (wire_type)type;
    msg->n_parts = (uint32_t)n_parts;
    for (uint32_t i = 0; st == FL_OK && i < map->size; i++)
        for (size_t j = 0; st == FL_OK && j < form->n_fields; j++)
            if (form->fields[j].key == map->ptr[i].key.via.u64) st = read_field(msg, form, &form->fields[j], &map->ptr[i].val, arena, err);
    return st;
}

/* Everything but the parts: msg->n_parts is what the header announces. *used: the header's bytes, behind which others may stand. */
static fl_status decode_header(wire_msg *msg, const uint8_t *data, size_t n_bytes, size_t *used, fl_arena *arena, fl_err *err)
{
    *msg = (wire_msg){ 0 };
    fl_status st = fl_msgpack_check(data, n_bytes < FL_FRAME_PAYLOAD_MAX ? n_bytes : FL_FRAME_PAYLOAD_MAX, ITEMS_MAX, used, err);
    if (st != FL_OK) return st;

    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t offset = 0;
    msgpack_unpack_return unpack = msgpack_unpack_next(&unpacked, (const char *)data, *used, &offset);
    if (unpack == MSGPACK_UNPACK_NOMEM_ERROR) st = fl_fail(err, FL_FULL, "wire: no memory for a header of %zu bytes", *used);
    else if (unpack != MSGPACK_UNPACK_SUCCESS) st = fl_fail(err, FL_CORRUPT, "wire: the header is not msgpack");
    else if (unpacked.data.type != MSGPACK_OBJECT_MAP) st = fl_fail(err, FL_CORRUPT, "wire: the header is not a map");
    else st = read_map(msg, &unpacked.data.via.map, arena, err);
    msgpack_unpacked_destroy(&unpacked);
    return st;
}

/* The same of bytes that are a header and nothing else. */
static fl_status decode_whole_header(wire_msg *msg, const uint8_t *header, size_t n_bytes, fl_arena *arena, fl_err *err)
{
    size_t used = 0;
    if (n_bytes > FL_FRAME_PAYLOAD_MAX)
        return fl_fail(err, FL_CORRUPT, "wire: a header of %zu bytes is more than the %u a frame may hold", n_bytes, FL_FRAME_PAYLOAD_MAX);
    fl_status st = decode_header(msg, header, n_bytes, &used, arena, err);
    return st == FL_OK && used != n_bytes ? fl_fail(err, FL_CORRUPT, "wire: %zu bytes after the header's end", n_bytes - used) : st;
}

fl_status wire_decode(wire_msg *msg, const uint8_t *header, size_t n_bytes, const fl_bytes *parts, uint32_t n_parts, fl_arena *arena, fl_err *err)
{
    fl_status st = decode_whole_header(msg, header, n_bytes, arena, err);
    if (st == FL_OK && msg->n_parts != n_parts)
        st = fl_fail(err, FL_CORRUPT, "wire: %s announces %u parts and came with %u", wire_type_name(msg->type), msg->n_parts, n_parts);
    if (st == FL_OK) {
        msg->parts = parts;
        st = check_shape(msg, form_of(msg->type), FL_CORRUPT, err);
    }
    if (st != FL_OK) *msg = (wire_msg){ 0 };
    return st;
}

/* ---- one frame a message ---- */

fl_status wire_pack_begin(wire_packing *p, const wire_msg *msg, fl_arena *arena, fl_err *err)
{
    fl_status st = wire_encode(msg, arena, &p->header, &p->header_bytes, err);
    if (st != FL_OK) return st;
    p->n_bytes = p->header_bytes;
    for (uint32_t i = 0; i < msg->n_parts; i++) p->n_bytes += PART_SIZE_BYTES + msg->parts[i].bytes;
    if (p->n_bytes <= WIRE_BYTES_MAX) return FL_OK;
    return fl_fail(err, FL_INVALID, "wire: a %s of %zu bytes is more than the %u a message may have", wire_type_name(msg->type), p->n_bytes, WIRE_BYTES_MAX);
}

void wire_pack(const wire_packing *p, const wire_msg *msg, uint8_t *out)
{
    memcpy(out, p->header, p->header_bytes);
    out += p->header_bytes;
    for (uint32_t i = 0; i < msg->n_parts; i++, out += PART_SIZE_BYTES) fl_put_u32(out, (uint32_t)msg->parts[i].bytes);
    for (uint32_t i = 0; i < msg->n_parts; out += msg->parts[i++].bytes) {
        if (msg->parts[i].bytes) memcpy(out, msg->parts[i].data, msg->parts[i].bytes);
    }
}

/* The parts of `msg` in the bytes behind its header, which they fill. */
static fl_status unpack_parts(wire_msg *msg, const uint8_t *data, size_t n_bytes, fl_arena *arena, fl_err *err)
{
    const char *name = wire_type_name(msg->type);
    const uint8_t *sizes = data;
    if (msg->n_parts > n_bytes / PART_SIZE_BYTES)
        return fl_fail(err, FL_CORRUPT, "wire: %s announces %u parts and has %zu bytes behind its header", name, msg->n_parts, n_bytes);
    fl_bytes *parts = msg->n_parts ? fl_arena_take(arena, msg->n_parts * sizeof *parts) : NULL;
    if (msg->n_parts && !parts) return fl_fail(err, FL_FULL, "wire: no memory for the %u parts of a %s", msg->n_parts, name);
    data += msg->n_parts * PART_SIZE_BYTES;
    n_bytes -= msg->n_parts * PART_SIZE_BYTES;
    for (uint32_t i = 0; i < msg->n_parts; i++) {
        size_t size = fl_get_u32(sizes + i * PART_SIZE_BYTES);
        if (size > n_bytes) return fl_fail(err, FL_CORRUPT, "wire: part %u of %s has %zu bytes and %zu are there", i, name, size, n_bytes);
        parts[i] = (fl_bytes){ data, size };
        data += size;
        n_bytes -= size;
    }
    if (n_bytes) return fl_fail(err, FL_CORRUPT, "wire: %zu bytes after the end of a %s", n_bytes, name);
    msg->parts = parts;
    return FL_OK;
}

fl_status wire_unpack(wire_msg *msg, const uint8_t *data, size_t n_bytes, fl_arena *arena, fl_err *err)
{
    size_t used = 0;
    fl_status st = decode_header(msg, data, n_bytes, &used, arena, err);
    if (st == FL_OK) st = unpack_parts(msg, data + used, n_bytes - used, arena, err);
    if (st == FL_OK) st = check_shape(msg, form_of(msg->type), FL_CORRUPT, err);
    if (st != FL_OK) *msg = (wire_msg){ 0 };
    return st;
}

/* ---- a stream of frames over a descriptor ---- */

#define BATCH_FRAMES 32

typedef struct { int fd; int n_frames; int n_pieces; uint8_t headers[BATCH_FRAMES][FL_FRAME_HEADER_BYTES]; struct iovec pieces[2 * BATCH_FRAMES]; } send_batch;

/* One write of some of the pieces; a peer that is gone gives EPIPE and no signal on a socket. */
static ssize_t write_some(int fd, struct iovec *pieces, int n_pieces)
{
    struct msghdr message = { .msg_iov = pieces, .msg_iovlen = (size_t)n_pieces };
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    return n < 0 && errno == ENOTSOCK ? writev(fd, pieces, n_pieces) : n;
}

static fl_status wait_for(int fd, short events, fl_err *err)
{
    struct pollfd p = { .fd = fd, .events = events };
    return poll(&p, 1, -1) < 0 && errno != EINTR ? fl_fail_errno(err, errno, "wire: wait for the peer") : FL_OK;
}

static fl_status batch_flush(send_batch *batch, fl_err *err)
{
    struct iovec *piece = batch->pieces;
    int left = batch->n_pieces;
    while (left > 0) {
        ssize_t n = write_some(batch->fd, piece, left);
        if (n < 0) {
            fl_status st = FL_OK;
            if (errno == EAGAIN || errno == EWOULDBLOCK) st = wait_for(batch->fd, POLLOUT, err);
            else if (errno == EPIPE || errno == ECONNRESET) st = fl_fail(err, FL_CLOSED, "wire: the peer closed the stream");
            else if (errno != EINTR) st = fl_fail_errno(err, errno, "wire: send to the peer");
            if (st != FL_OK) return st;
            continue;
        }
        size_t sent = (size_t)n;
        for (; left > 0 && sent >= piece->iov_len; piece++, left--) sent -= piece->iov_len;
        if (left > 0) {
            piece->iov_base = (uint8_t *)piece->iov_base + sent;
            piece->iov_len -= sent;
        }
    }
    batch->n_frames = batch->n_pieces = 0;
    return FL_OK;
}

static fl_status batch_add(send_batch *batch, uint16_t kind, const fl_bytes *payload, fl_err *err)
{
    fl_status st = batch->n_frames == BATCH_FRAMES ? batch_flush(batch, err) : FL_OK;
    if (st != FL_OK) return st;
    uint8_t *header = batch->headers[batch->n_frames++];
    fl_frame_header(header, kind, payload, 1, 0);
    batch->pieces[batch->n_pieces++] = (struct iovec){ header, FL_FRAME_HEADER_BYTES };
    if (payload->bytes) batch->pieces[batch->n_pieces++] = (struct iovec){ (void *)(uintptr_t)payload->data, payload->bytes };
    return FL_OK;
}

fl_status wire_send_fd(int fd, const wire_msg *msg, fl_err *err)
{
    fl_arena arena;
    fl_arena_init(&arena, 4096, 0);
    send_batch batch = { .fd = fd };
    const uint8_t *header;
    size_t header_bytes;
    fl_status st = wire_encode(msg, &arena, &header, &header_bytes, err);
    if (st == FL_OK) st = batch_add(&batch, WIRE_HEADER, &(fl_bytes){ header, header_bytes }, err);
    for (uint32_t i = 0; st == FL_OK && i < msg->n_parts; i++) st = batch_add(&batch, WIRE_PART, &msg->parts[i], err);
    if (st == FL_OK) st = batch_flush(&batch, err);
    fl_arena_fini(&arena);
    return st;
}

/* Read exactly n_bytes. FL_CLOSED: the stream ended before the first of them. */
static fl_status read_whole(int fd, uint8_t *out, size_t n_bytes, fl_err *err)
{
    size_t got = 0;
    while (got < n_bytes) {
        ssize_t n = read(fd, out + got, n_bytes - got);
        if (n > 0) got += (size_t)n;
        else if (n == 0 || errno == ECONNRESET)
            return got == 0 ? fl_fail(err, FL_CLOSED, "wire: the peer closed the stream")
                            : fl_fail(err, FL_CORRUPT, "wire: the stream ended after %zu of %zu bytes", got, n_bytes);
        else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            fl_status st = wait_for(fd, POLLIN, err);
            if (st != FL_OK) return st;
        } else if (errno != EINTR) return fl_fail_errno(err, errno, "wire: read from the peer");
    }
    return FL_OK;
}

/* The next frame's payload, in the arena. FL_CLOSED: the stream ended before its first byte. */
static fl_status read_frame(int fd, uint16_t kind, fl_bytes *payload, fl_arena *arena, fl_err *err)
{
    uint8_t header[FL_FRAME_HEADER_BYTES];
    fl_frame frame;
    fl_status st = read_whole(fd, header, sizeof header, err);
    if (st != FL_OK) return st;
    st = fl_frame_decode(&frame, header, sizeof header, 0, err);
    if (st != FL_OK && st != FL_AGAIN) return st;
    if (frame.kind != kind) return fl_fail(err, FL_CORRUPT, "wire: a frame of kind %u where kind %u belongs", frame.kind, kind);

    size_t frame_bytes = sizeof header + frame.payload_bytes;
    uint8_t *whole = fl_arena_take(arena, frame_bytes);
    if (!whole) return fl_fail(err, FL_FULL, "wire: no memory for a frame of %zu bytes", frame_bytes);
    memcpy(whole, header, sizeof header);
    st = read_whole(fd, whole + sizeof header, frame.payload_bytes, err);
    if (st == FL_CLOSED) st = fl_fail(err, FL_CORRUPT, "wire: the stream ended inside a frame");
    if (st == FL_OK) st = fl_frame_decode(&frame, whole, frame_bytes, 0, err);
    if (st == FL_OK) *payload = (fl_bytes){ frame.payload, frame.payload_bytes };
    return st;
}

fl_status wire_recv_fd(int fd, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    fl_bytes header, *parts = NULL;
    *msg = (wire_msg){ 0 };
    fl_status st = read_frame(fd, WIRE_HEADER, &header, arena, err);
    if (st != FL_OK) return st;
    wire_msg got;
    if ((st = decode_whole_header(&got, header.data, header.bytes, arena, err)) != FL_OK) return st;
    if (got.n_parts && !(parts = fl_arena_take(arena, got.n_parts * sizeof *parts)))
        return fl_fail(err, FL_FULL, "wire: no memory for the %u parts of a %s", got.n_parts, wire_type_name(got.type));
    for (uint32_t i = 0; st == FL_OK && i < got.n_parts; i++) st = read_frame(fd, WIRE_PART, &parts[i], arena, err);
    if (st == FL_CLOSED) st = fl_fail(err, FL_CORRUPT, "wire: the stream ended inside a %s", wire_type_name(got.type));
    got.parts = parts;
    if (st == FL_OK) st = check_shape(&got, form_of(got.type), FL_CORRUPT, err);
    if (st == FL_OK) *msg = got;
    return st;
}
