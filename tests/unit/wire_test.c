#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/wire.h"

static const uint64_t some_rows[] = { 0, 7, 300, UINT64_MAX };
static const uint64_t some_lo[] = { 0, 0, 1, 2 };
static const uint64_t some_hi[] = { 1, 4, 2, 1024 };
static const uint64_t some_lines[] = { 1, 9, 301, 70000 }, some_renamed[] = { 0, 1, 0, 1 };
static const fl_bytes some_parts[] = { { "{\"prompt\":\"a\"}", 14 }, { "b", 1 }, { "", 0 }, { "four", 4 } };

static wire_msg a_grant(void)
{
    return (wire_msg){ .type = WIRE_GRANT, .n_parts = 4, .parts = some_parts,
        .grant = { .job = 0xF00DF00DF00DF00Du, .lease = 12, .term_ms = 60000, .rows = { some_rows, 4 },
                   .sample_lo = { some_lo, 4 }, .sample_hi = { some_hi, 4 }, .lines = { some_lines, 4 }, .renamed = { some_renamed, 4 } } };
}

static void assert_lists_equal(wire_list a, wire_list b)
{
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.v, b.v, a.n * sizeof *a.v);
}

static void assert_grants_equal(const wire_msg *a, const wire_msg *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->grant.job, b->grant.job);
    assert_int_equal(a->grant.lease, b->grant.lease);
    assert_int_equal(a->grant.term_ms, b->grant.term_ms);
    assert_lists_equal(a->grant.rows, b->grant.rows);
    assert_lists_equal(a->grant.sample_lo, b->grant.sample_lo);
    assert_lists_equal(a->grant.sample_hi, b->grant.sample_hi);
    assert_lists_equal(a->grant.lines, b->grant.lines);
    assert_lists_equal(a->grant.renamed, b->grant.renamed);
    assert_int_equal(a->n_parts, b->n_parts);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        assert_int_equal(a->parts[i].bytes, b->parts[i].bytes);
        assert_memory_equal(a->parts[i].data, b->parts[i].data, a->parts[i].bytes);
    }
}

static int open_arena(void **state)
{
    fl_arena *arena = malloc(sizeof *arena);
    fl_arena_init(arena, 4096, 0);
    *state = arena;
    return 0;
}

static int close_arena(void **state)
{
    fl_arena_fini(*state);
    free(*state);
    return 0;
}

static void a_message_comes_back_as_it_was_sent(void **state)
{
    fl_arena *arena = *state;
    wire_msg sent = a_grant(), got;
    const uint8_t *header, *again;
    size_t n, n_again;
    fl_err err;
    assert_int_equal(wire_encode(&sent, arena, &header, &n, &err), FL_OK);
    assert_int_equal(wire_decode(&got, header, n, some_parts, 4, arena, &err), FL_OK);
    assert_grants_equal(&sent, &got);
    assert_int_equal(wire_encode(&got, arena, &again, &n_again, &err), FL_OK);
    assert_int_equal(n, n_again);
    assert_memory_equal(header, again, n);
}

static void zero_and_empty_fields_take_no_bytes(void **state)
{
    fl_arena *arena = *state;
    wire_msg stop = { .type = WIRE_STOP }, got;
    const uint8_t *header;
    size_t n;
    assert_int_equal(wire_encode(&stop, arena, &header, &n, NULL), FL_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(header, "\x82\x00\x02\x01\x0c", 5);
    assert_int_equal(wire_decode(&got, header, n, NULL, 0, arena, NULL), FL_OK);
    assert_int_equal(got.type, WIRE_STOP);
    assert_int_equal(got.stop.drain, 0);
}

static void every_type_has_a_name_and_survives_a_round_trip(void **state)
{
    fl_arena *arena = *state;
    fl_bytes part = { "p", 1 };
    for (int type = 1; type <= WIRE_REPLY; type++) {
        wire_msg sent = { .type = (wire_type)type }, got;
        if (type == WIRE_DETOK || type == WIRE_RESULT) { sent.n_parts = 1; sent.parts = &part; }
        const uint8_t *header;
        size_t n;
        fl_err err;
        assert_string_not_equal(wire_type_name((wire_type)type), "?");
        assert_int_equal(wire_encode(&sent, arena, &header, &n, &err), FL_OK);
        assert_int_equal(wire_decode(&got, header, n, sent.parts, sent.n_parts, arena, &err), FL_OK);
        assert_int_equal(got.type, type);
    }
    assert_string_equal(wire_type_name((wire_type)0), "?");
    assert_string_equal(wire_type_name((wire_type)16), "?");
    assert_string_equal(wire_type_name(WIRE_ROW_ERROR), "ROW_ERROR");
}

static void every_truncation_of_a_header_is_refused(void **state)
{
    fl_arena *arena = *state;
    wire_msg sent = a_grant(), got;
    const uint8_t *header;
    size_t n;
    assert_int_equal(wire_encode(&sent, arena, &header, &n, NULL), FL_OK);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1);                /* so that the address sanitizer sees a read past the end */
        memcpy(exact + 1, header, cut);
        assert_int_equal(wire_decode(&got, exact + 1, cut, some_parts, 4, arena, NULL), FL_CORRUPT);
        free(exact);
    }
    uint8_t longer[256] = { 0 };
    assert_true(n < sizeof longer);
    memcpy(longer, header, n);
    assert_int_equal(wire_decode(&got, longer, n + 1, some_parts, 4, arena, NULL), FL_CORRUPT);
}

/* A header has no checksum (frames and ZeroMQ carry it), so a flip may give another good message, never a broken one. */
static void flipped_bytes_never_break_the_decoder(void **state)
{
    fl_arena *arena = *state, scratch;
    wire_msg sent = a_grant(), got;
    const uint8_t *header;
    size_t n;
    assert_int_equal(wire_encode(&sent, arena, &header, &n, NULL), FL_OK);
    fl_arena_init(&scratch, 4096, 0);
    uint8_t *copy = malloc(n);
    for (size_t i = 0; i < n; i++)
        for (int bits = 1; bits < 256; bits++) {
            memcpy(copy, header, n);
            copy[i] ^= (uint8_t)bits;
            fl_status st = wire_decode(&got, copy, n, some_parts, 4, &scratch, NULL);
            assert_true(st == FL_OK || st == FL_CORRUPT);
            if (i < 5) assert_int_equal(st, FL_CORRUPT); /* the map's size, version and type */
            fl_arena_reset(&scratch);
        }
    free(copy);
    fl_arena_fini(&scratch);
}

static fl_status decode_text(fl_arena *arena, const char *bytes, size_t n, fl_err *err)
{
    wire_msg got;
    return wire_decode(&got, (const uint8_t *)bytes, n, NULL, 0, arena, err);
}
#define DECODE(arena, literal, err) decode_text(arena, literal, sizeof literal - 1, err)

static void hostile_counts_are_refused_before_anything_is_allocated(void **state)
{
    fl_arena *arena = *state;
    fl_err err;
    assert_int_equal(DECODE(arena, "\xdf\xff\xff\xff\xff", &err), FL_CORRUPT);                                 /* map of 2^32-1 */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x06\x08\xdd\xff\xff\xff\xff", &err), FL_CORRUPT);         /* list of 2^32-1 */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x06\x08\xdd\x00\x01\x00\x00\x01", &err), FL_CORRUPT);     /* 65,536, one there */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x01\x04\xdb\xff\xff\xff\xff""abc", &err), FL_CORRUPT);    /* str of 2^32-1 */
    assert_int_equal(DECODE(arena, "\x84\x00\x02\x01\x01\x02\xcd\x90\x01\x04\xa1""a", &err), FL_CORRUPT);      /* 36,865 parts */
    assert_non_null(strstr(err.text, "parts"));
    char deep[40];
    memset(deep, 0x91, sizeof deep);
    memcpy(deep, "\x83\x00\x02\x01\x0c\x30", 6);
    deep[39] = 0;
    assert_int_equal(decode_text(arena, deep, sizeof deep, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "nested"));

    size_t n = 6 + 5 + (1 << 19);                        /* an unknown key with half a million entries: too many for msgpack-c */
    char *many = calloc(1, n);
    memcpy(many, "\x83\x00\x02\x01\x0c\x30\xdd\x00\x08\x00\x00", 11);
    assert_int_equal(decode_text(arena, many, n, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "more than"));
    free(many);
    assert_int_equal(arena->total_bytes, 0);
}

static void foreign_headers_are_refused_with_a_reason(void **state)
{
    fl_arena *arena = *state;
    fl_err err;
    assert_int_equal(DECODE(arena, "\x82\x00\x01\x01\x0c", &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "version 1"));
    assert_int_equal(DECODE(arena, "\x81\x01\x0c", &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "version"));
    assert_int_equal(DECODE(arena, "\x82\x00\x02\x01\x10", &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "not a message type"));
    assert_int_equal(DECODE(arena, "\x92\x00\x01", &err), FL_CORRUPT);                                         /* no map */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x0c\xa1""3\x01", &err), FL_CORRUPT);                      /* key is a str */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x0c\x03\xa1""1", &err), FL_CORRUPT);                      /* drain is a str */
    assert_non_null(strstr(err.text, "STOP.drain is of the wrong type"));
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x0c\x03\xff", &err), FL_CORRUPT);                         /* drain is -1 */
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x0c\x03\x02", &err), FL_CORRUPT);                         /* drain is 2 */
    assert_non_null(strstr(err.text, "above its bound of 1"));
    assert_int_equal(DECODE(arena, "\x84\x00\x02\x01\x0c\x03\x01\x03\x01", &err), FL_CORRUPT);                 /* drain twice */
    assert_non_null(strstr(err.text, "twice"));
    assert_int_equal(DECODE(arena, "\x83\x00\x02\x01\x06\x08\x92\x01\xa0", &err), FL_CORRUPT);                 /* a str in a list */
    assert_int_equal(DECODE(arena, "\xc1", &err), FL_CORRUPT);
}

static void unknown_keys_are_skipped(void **state)
{
    fl_arena *arena = *state;
    wire_msg got;
    const char bytes[] = "\x86\x30\x82\xa1""k\xc0\x05\x91\x92\x01\xcb""12345678"
                         "\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc3\xcd\x01\x03\xc7\x02\x01""xy\x03\x01\x01\x0c\x00\x02";
    assert_int_equal(wire_decode(&got, (const uint8_t *)bytes, sizeof bytes - 1, NULL, 0, arena, NULL), FL_OK);
    assert_int_equal(got.type, WIRE_STOP);
    assert_int_equal(got.stop.drain, 1);
}

static void lists_that_are_not_parallel_and_wrong_part_counts_are_refused(void **state)
{
    fl_arena *arena = *state;
    const uint8_t *header;
    size_t n;
    fl_err err;
    wire_msg got, msg = a_grant();
    msg.grant.lines.n = 3;
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    msg = a_grant();
    msg.n_parts = 3;
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    msg = (wire_msg){ .type = WIRE_RESULT };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    msg = (wire_msg){ .type = WIRE_BYE, .n_parts = 1, .parts = some_parts };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    msg = (wire_msg){ .type = WIRE_REPLY, .n_parts = 2, .parts = some_parts };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);

    msg = a_grant();
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_OK);
    assert_int_equal(wire_decode(&got, header, n, some_parts, 3, arena, &err), FL_CORRUPT);
    assert_int_equal(got.type, 0);
    fl_bytes too_long[4] = { some_parts[0], { some_parts[1].data, FL_FRAME_PAYLOAD_MAX + 1 }, some_parts[2], some_parts[3] };
    assert_int_equal(wire_decode(&got, header, n, too_long, 4, arena, &err), FL_CORRUPT);
}

static void values_over_their_bound_are_not_sent(void **state)
{
    fl_arena *arena = *state;
    const uint8_t *header;
    size_t n;
    fl_err err;
    wire_msg msg = { .type = WIRE_STOP, .stop = { .drain = 2 } };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "STOP.drain"));
    char text[65] = { 0 };
    memset(text, 'x', 64);
    msg = (wire_msg){ .type = WIRE_HELLO, .hello = { .release = wire_text(text) } };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_OK);
    msg.hello.release = (wire_str){ text, 65 };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
    msg = (wire_msg){ .type = (wire_type)99 };
    assert_int_equal(wire_encode(&msg, arena, &header, &n, &err), FL_INVALID);
}

static void an_arena_without_room_is_reported(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 64, 64);
    wire_msg msg = a_grant();
    const uint8_t *header;
    size_t n;
    fl_err err;
    assert_int_equal(wire_encode(&msg, &arena, &header, &n, &err), FL_FULL);
    fl_arena_fini(&arena);
}

/* ---- the stream ---- */

typedef struct { int fds[2]; fl_arena arena; } stream;

static stream open_stream(void)
{
    stream s;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s.fds), 0);
    fl_arena_init(&s.arena, 4096, 0);
    return s;
}

static void close_stream(stream *s)
{
    for (int i = 0; i < 2; i++)
        if (s->fds[i] >= 0) close(s->fds[i]);
    fl_arena_fini(&s->arena);
}

static void messages_travel_over_a_socket_pair_in_order(void **state)
{
    (void)state;
    stream s = open_stream();
    wire_msg got, grant = a_grant(), bye = { .type = WIRE_BYE, .bye = { .worker = 5 } };
    fl_err err;
    assert_int_equal(wire_send_fd(s.fds[0], &grant, &err), FL_OK);
    assert_int_equal(wire_send_fd(s.fds[0], &bye, &err), FL_OK);
    assert_int_equal(wire_recv_fd(s.fds[1], &got, &s.arena, &err), FL_OK);
    assert_grants_equal(&grant, &got);
    fl_arena_reset(&s.arena);
    assert_int_equal(wire_recv_fd(s.fds[1], &got, &s.arena, &err), FL_OK);
    assert_int_equal(got.type, WIRE_BYE);
    assert_int_equal(got.bye.worker, 5);
    close_stream(&s);
}

enum { LARGE_PARTS = 200, LARGE_BYTES = 3 << 20 };

static uint8_t large_byte(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static void *send_large(void *at)
{
    stream *s = at;
    uint8_t *large = malloc(LARGE_BYTES);
    uint64_t numbers[LARGE_PARTS];
    fl_bytes parts[LARGE_PARTS];
    for (size_t i = 0; i < LARGE_BYTES; i++) large[i] = large_byte(i);
    for (size_t i = 0; i < LARGE_PARTS; i++) {
        numbers[i] = i;
        parts[i] = (fl_bytes){ large + i, i == 100 ? LARGE_BYTES - 100 : i * 13 };
    }
    wire_list list = { numbers, LARGE_PARTS };
    wire_msg msg = { .type = WIRE_GRANT, .n_parts = LARGE_PARTS, .parts = parts,
        .grant = { .rows = list, .sample_lo = list, .sample_hi = list, .lines = list, .renamed = list } };
    fl_status st = wire_send_fd(s->fds[0], &msg, NULL);
    close(s->fds[0]);
    s->fds[0] = -1;
    free(large);
    return (void *)(intptr_t)st;
}

static void large_messages_survive_short_reads_and_writes(void **state)
{
    (void)state;
    stream s = open_stream();
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_large, &s), 0);
    wire_msg got;
    fl_err err;
    assert_int_equal(wire_recv_fd(s.fds[1], &got, &s.arena, &err), FL_OK);
    assert_int_equal(got.n_parts, LARGE_PARTS);
    for (uint32_t i = 0; i < LARGE_PARTS; i++) {
        assert_int_equal(got.parts[i].bytes, i == 100 ? LARGE_BYTES - 100 : (int)i * 13);
        const uint8_t *p = got.parts[i].data;
        for (size_t j = 0; j < got.parts[i].bytes; j++)
            if (p[j] != large_byte(i + j)) fail_msg("part %u differs at byte %zu", i, j);
    }
    void *sent;
    pthread_join(sender, &sent);
    assert_int_equal((int)(intptr_t)sent, FL_OK);
    assert_int_equal(wire_recv_fd(s.fds[1], &got, &s.arena, &err), FL_CLOSED);
    close_stream(&s);
}

static ssize_t grant_on_the_stream(uint8_t *bytes, size_t capacity)
{
    stream s = open_stream();
    wire_msg grant = a_grant();
    assert_int_equal(wire_send_fd(s.fds[0], &grant, NULL), FL_OK);
    ssize_t n = recv(s.fds[1], bytes, capacity, 0);
    assert_true(n > 24 && (size_t)n < capacity);
    close_stream(&s);
    return n;
}

static fl_status receive_bytes(const uint8_t *bytes, ssize_t n)
{
    stream s = open_stream();
    wire_msg got;
    if (n) assert_int_equal(write(s.fds[0], bytes, (size_t)n), n);
    close(s.fds[0]);
    s.fds[0] = -1;
    fl_status st = wire_recv_fd(s.fds[1], &got, &s.arena, NULL);
    close_stream(&s);
    return st;
}

static void an_end_between_messages_is_closed_and_inside_one_is_corrupt(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    ssize_t n = grant_on_the_stream(bytes, sizeof bytes);
    for (ssize_t cut = 0; cut < n; cut++) assert_int_equal(receive_bytes(bytes, cut), cut == 0 ? FL_CLOSED : FL_CORRUPT);
    assert_int_equal(receive_bytes(bytes, n), FL_OK);
}

static void a_flipped_byte_on_the_stream_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    ssize_t n = grant_on_the_stream(bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++) {
        bytes[i] ^= 0x10;
        assert_int_equal(receive_bytes(bytes, n), FL_CORRUPT);
        bytes[i] ^= 0x10;
    }
}

static void sending_to_a_peer_that_is_gone_is_closed_and_raises_no_signal(void **state)
{
    (void)state;
    stream s = open_stream();
    close(s.fds[1]);
    s.fds[1] = -1;
    wire_msg bye = { .type = WIRE_BYE };
    fl_err err;
    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(wire_send_fd(s.fds[0], &bye, &err), FL_CLOSED);
    close_stream(&s);
}

static void a_pipe_carries_messages_too(void **state)
{
    fl_arena *arena = *state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    wire_msg grant = a_grant(), got;
    assert_int_equal(wire_send_fd(fds[1], &grant, NULL), FL_OK);
    assert_int_equal(wire_recv_fd(fds[0], &got, arena, NULL), FL_OK);
    assert_grants_equal(&grant, &got);
    close(fds[0]);
    close(fds[1]);
}

/* Lines of one byte less than a frame, of a frame, of one byte more and of three frames, each between short ones. */
static void a_long_line_travels_in_several_parts(void **state)
{
    fl_arena *arena = *state;
    static const size_t sizes[] = { 3, FL_FRAME_PAYLOAD_MAX - 1, 1, FL_FRAME_PAYLOAD_MAX, FL_FRAME_PAYLOAD_MAX + 1, 3 * (size_t)FL_FRAME_PAYLOAD_MAX, 2 };
    enum { N = sizeof sizes / sizeof *sizes };
    uint8_t *bytes = malloc(3 * (size_t)FL_FRAME_PAYLOAD_MAX);
    assert_non_null(bytes);
    for (size_t i = 0; i < 3 * (size_t)FL_FRAME_PAYLOAD_MAX; i++) bytes[i] = (uint8_t)(i * 31 >> 8);
    uint64_t numbers[N];
    fl_bytes parts[4 * N], *end = parts;
    for (uint32_t i = 0; i < N; end += wire_line_parts(sizes[i++])) {
        numbers[i] = i + 1;
        wire_line_cut((fl_bytes){ bytes, sizes[i] }, end);
    }
    wire_list list = { numbers, N };
    wire_msg sent = { .type = WIRE_GRANT, .n_parts = (uint32_t)(end - parts), .parts = parts, .grant = { .job = 1, .lease = 1, .rows = list, .sample_lo = list, .sample_hi = list, .lines = list, .renamed = list } }, got;
    const uint8_t *header;
    size_t n;
    fl_err err;
    assert_int_equal(sent.n_parts, N + 5);
    assert_int_equal(wire_encode(&sent, arena, &header, &n, &err), FL_OK);
    assert_int_equal(wire_decode(&got, header, n, parts, sent.n_parts, arena, &err), FL_OK);
    uint32_t at = 0;
    for (uint32_t i = 0; i < N; i++) {
        fl_bytes line = wire_line_next(&got, &at, arena);
        assert_int_equal(line.bytes, sizes[i]);
        assert_true(memcmp(line.data, bytes, line.bytes) == 0);
    }
    assert_int_equal(at, sent.n_parts);
    parts[sent.n_parts - 1] = (fl_bytes){ bytes, FL_FRAME_PAYLOAD_MAX };     /* a last line that does not end */
    assert_int_equal(wire_decode(&got, header, n, parts, sent.n_parts, arena, &err), FL_CORRUPT);
    free(bytes);
}

/* A packed message in memory of exactly its size, so that the address sanitizer sees a read past the end. */
static uint8_t *packed(const wire_msg *msg, fl_arena *arena, size_t *n_bytes)
{
    wire_packing p;
    fl_err err;
    if (wire_pack_begin(&p, msg, arena, &err) != FL_OK) fail_msg("%s", err.text);
    uint8_t *out = malloc(p.n_bytes);
    assert_non_null(out);
    wire_pack(&p, msg, out);
    *n_bytes = p.n_bytes;
    return out;
}

static void a_packed_message_comes_back_as_one_frame(void **state)
{
    fl_arena *arena = *state;
    wire_msg sent = a_grant(), stop = { .type = WIRE_STOP }, got;
    size_t n, sum = 0;
    uint8_t *frame = packed(&sent, arena, &n);
    assert_int_equal(wire_unpack(&got, frame, n, arena, NULL), FL_OK);
    assert_grants_equal(&sent, &got);
    for (uint32_t i = 0; i < sent.n_parts; i++) sum += 4 + sent.parts[i].bytes;
    assert_true(got.n_parts == sent.n_parts && got.parts[0].data > (void *)frame && n > sum);
    free(frame);
    frame = packed(&stop, arena, &n);
    assert_int_equal(n, 5);
    assert_int_equal(wire_unpack(&got, frame, n, arena, NULL), FL_OK);
    assert_int_equal(got.type, WIRE_STOP);
    assert_int_equal(got.n_parts, 0);
    free(frame);
}

static void every_truncation_and_lengthening_of_a_packed_message_is_refused(void **state)
{
    fl_arena *arena = *state;
    wire_msg sent = a_grant(), got;
    fl_err err;
    size_t n;
    uint8_t *frame = packed(&sent, arena, &n);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact + 1, frame, cut);
        assert_int_equal(wire_unpack(&got, exact + 1, cut, arena, &err), FL_CORRUPT);
        assert_int_equal(got.type, 0);
        free(exact);
    }
    uint8_t *longer = calloc(1, n + 1);
    memcpy(longer, frame, n);
    assert_int_equal(wire_unpack(&got, longer, n + 1, arena, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "1 bytes after the end of a GRANT"));
    free(longer);
    free(frame);
}

static void sizes_of_parts_that_are_not_there_are_refused(void **state)
{
    fl_arena *arena = *state;
    static const uint8_t body[100];
    fl_bytes part = { body, sizeof body };
    wire_msg sent = { .type = WIRE_RESULT, .n_parts = 1, .parts = &part, .result = { .job = 1, .lease = 2, .n_pieces = 1 } }, got;
    static const uint32_t sizes[] = { 0, 99, 101, FL_FRAME_PAYLOAD_MAX + 1, UINT32_MAX };
    size_t n;
    uint8_t *frame = packed(&sent, arena, &n);
    assert_int_equal(wire_unpack(&got, frame, n, arena, NULL), FL_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_put_u32(frame + n - sizeof body - 4, sizes[i]);
        assert_int_equal(wire_unpack(&got, frame, n, arena, NULL), FL_CORRUPT);
    }
    free(frame);
    static const char many[] = "\x83\x00\x02\x01\x05\x02\xcd\x90\x00";    /* a GRANT that announces 36,864 parts and ends */
    fl_err err;
    assert_int_equal(wire_unpack(&got, (const uint8_t *)many, sizeof many - 1, arena, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "announces 36864 parts and has 0 bytes"));
}

/* A release before sent the header as a frame of its own: it must hear that its version is another one. */
static void a_peer_of_the_version_before_is_told_so(void **state)
{
    wire_msg got;
    fl_err err;
    assert_int_equal(wire_unpack(&got, (const uint8_t *)"\x84\x00\x01\x01\x07\x02\x01\x08\x01", 9, *state, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "the peer speaks version 1 of the protocol, this program version 2"));
}

static void a_message_of_more_bytes_than_a_frame_of_ours_is_refused(void **state)
{
    enum { N = 9 };
    uint64_t numbers[N];
    fl_bytes parts[2 * N], *end = parts;
    uint8_t *bytes = calloc(1, FL_FRAME_PAYLOAD_MAX);
    for (uint32_t i = 0; i < N; end += wire_line_parts(FL_FRAME_PAYLOAD_MAX)) {
        numbers[i++] = 1;
        wire_line_cut((fl_bytes){ bytes, FL_FRAME_PAYLOAD_MAX }, end);
    }
    wire_list list = { numbers, N };
    wire_msg msg = { .type = WIRE_GRANT, .n_parts = (uint32_t)(end - parts), .parts = parts, .grant = { .job = 1, .lease = 1, .rows = list, .sample_lo = list, .sample_hi = list, .lines = list, .renamed = list } };
    wire_packing p;
    fl_err err;
    assert_int_equal(wire_pack_begin(&p, &msg, *state, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "is more than the"));
    list.n = N - 1;                                      /* 64 MB of lines fit */
    msg.grant = (wire_grant){ .job = 1, .lease = 1, .rows = list, .sample_lo = list, .sample_hi = list, .lines = list, .renamed = list };
    msg.n_parts = 2 * (N - 1);
    assert_int_equal(wire_pack_begin(&p, &msg, *state, &err), FL_OK);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_message_comes_back_as_it_was_sent, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(zero_and_empty_fields_take_no_bytes, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(a_packed_message_comes_back_as_one_frame, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(every_truncation_and_lengthening_of_a_packed_message_is_refused, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(sizes_of_parts_that_are_not_there_are_refused, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(a_peer_of_the_version_before_is_told_so, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(a_message_of_more_bytes_than_a_frame_of_ours_is_refused, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(every_type_has_a_name_and_survives_a_round_trip, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(every_truncation_of_a_header_is_refused, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(flipped_bytes_never_break_the_decoder, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(hostile_counts_are_refused_before_anything_is_allocated, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(foreign_headers_are_refused_with_a_reason, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(unknown_keys_are_skipped, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(lists_that_are_not_parallel_and_wrong_part_counts_are_refused, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(values_over_their_bound_are_not_sent, open_arena, close_arena),
        cmocka_unit_test(an_arena_without_room_is_reported),
        cmocka_unit_test(messages_travel_over_a_socket_pair_in_order),
        cmocka_unit_test(large_messages_survive_short_reads_and_writes),
        cmocka_unit_test(an_end_between_messages_is_closed_and_inside_one_is_corrupt),
        cmocka_unit_test(a_flipped_byte_on_the_stream_is_refused),
        cmocka_unit_test(sending_to_a_peer_that_is_gone_is_closed_and_raises_no_signal),
        cmocka_unit_test_setup_teardown(a_pipe_carries_messages_too, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(a_long_line_travels_in_several_parts, open_arena, close_arena),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
