/* wire.h - every message between coordinator, worker, engine child and client.
 * Form     a message is one msgpack header and 0 .. n parts of raw bytes. Header and part have at most FL_FRAME_PAYLOAD_MAX bytes each.
 *          Over ZeroMQ it is one frame (wire_pack): the header, a little-endian u32 with the bytes of each part, the parts. Never several frames: a connection
 *          that ends while a DEALER reads the frames of one message aborts the process inside libzmq 4.3 (fq.cpp: !_more). Over the engine child's socket
 *          pair it is a frame.h frame of kind WIRE_HEADER and one of kind WIRE_PART for each part.
 *          The header is a map with small-integer keys: 0 = WIRE_VERSION, 1 = type, 2 = number of parts, then the fields of
 *          the tables below under their keys. A field is left out when it is zero or empty; an unknown key is skipped; another
 *          version, a wrong type, a value over its bound or a missing part is FL_CORRUPT. Array and map counts are
 *          checked against the bytes that remain before msgpack sees the header.
 * Shape    all lists of one message are parallel: of one length. GRANT has the lines of its entries as parts (wire_line_next; of grade rows, grade lines: grade_line.h), DETOK and
 *          RESULT one, REQUEST and REPLY at most one, the others none. A message of ours that breaks a bound or a shape is
 *          FL_INVALID, a foreign one FL_CORRUPT.
 * Memory   a decoded message borrows strings and parts from the bytes it was decoded from; lists live in its arena.
 * Threads  plain functions. */
#ifndef FL_WIRE_H
#define FL_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include "proto/arena.h"
#include "proto/frame.h"
#include "proto/ids.h"
#include "proto/status.h"

#define WIRE_VERSION 2                  /* 2: one frame a message over ZeroMQ */
#define WIRE_PARTS_MAX 36864            /* a GRANT of 4,096 lines of 64 MB */
#define WIRE_BYTES_MAX (66u << 20)      /* of a packed message: a GRANT of 64 MB of lines, with its header and the sizes of its parts */
#define WIRE_BYTES_MAX_UP (10u << 20)   /* of one to the coordinator: a part, and a header with a million bytes of arguments or 65,536 leases */
enum { WIRE_HEADER = 1, WIRE_PART = 2 };                 /* frame kinds on a socket pair */

typedef struct { const char *p; uint32_t n; } wire_str;              /* UTF-8 or bytes; not NUL-terminated */
typedef struct { const uint64_t *v; uint32_t n; } wire_list;

/* Field kinds: U64 (bound = largest value), STR (bound = bytes), LIST of u64 (bound = entries). X(kind, key, name, bound)
 *                                                                                         who sends it, and what it means */
#define WIRE_HELLO_FIELDS(X)            /* worker, engine child -> : first message of a connection, sent again on reconnect */ \
    X(U64,  3, worker, UINT64_MAX)      /* worker_id of this process start */ \
    X(STR,  4, release, 64)             /* program version */ \
    X(STR,  5, model, 256)              /* announced name */ \
    X(STR,  6, fingerprint, 64)         /* model fingerprint, hex */ \
    X(STR,  7, numerics, 256)           /* numerics id */ \
    X(U64,  8, n_vocab, 1 << 22) \
    X(U64,  9, context, UINT32_MAX)     /* largest prompt + completion it can hold */ \
    X(U64, 10, credit_tokens, UINT64_MAX)   /* work it wants to hold, in tokens; with batch it may get more */ \
    X(U64, 11, credit_bytes, UINT64_MAX)    /* unanswered result bytes it may hold */ \
    X(LIST,12, leases, 65536)           /* lease ids still held */ \
    X(STR, 13, place, 256)              /* host, pid, device: for people and the log only */ \
    X(U64, 14, has_tokenizer, 1) \
    X(U64, 15, grades, 1)               /* 1: it grades samples and has no model (fields 5 to 9 and 14 are empty); credit_tokens counts samples then */ \
    X(U64, 16, gpu, 1 << 16)            /* 1 + the number of the GPU that it computes on; 0: the CPU. For people only */ \
    X(U64, 17, batch, 1 << 16)          /* sequences in a step that costs little more than one of a single sequence would: so many samples it should hold at once, from the start, and later twice as many. 0: no such wish */ \
    X(U64, 18, kv_tokens, UINT64_MAX)   /* that its KV pool holds; what batch asks for is at most twice that */
#define WIRE_WELCOME_FIELDS(X)          /* coordinator -> worker */ \
    X(U64,  3, accepted, 1)             /* 0: stay idle, `why` says the reason */ \
    X(STR,  4, why, 480) \
    X(U64,  5, beat_ms, 600000)         /* heartbeat interval both sides keep */ \
    X(LIST, 6, leases, 65536)           /* of the presented leases: those that live on; the worker drops the others */ \
    X(U64,  7, want_detok, 1)           /* send DETOK */
#define WIRE_DETOK_FIELDS(X)            /* worker -> ; 1 part: fl_detok_encode's bytes */ \
    X(STR,  3, fingerprint, 64)
#define WIRE_JOB_FIELDS(X)              /* -> worker, engine child: before the first GRANT of the job on this connection */ \
    X(U64,  3, job, UINT64_MAX) \
    X(U64,  4, seed, UINT64_MAX) \
    X(U64,  5, max_context, UINT32_MAX) /* 0 = the model's */ \
    X(U64,  6, now_s, UINT32_MAX)       /* what strftime_now returns */ \
    X(STR,  7, defaults, 65536)         /* --set as one JSON object */
#define WIRE_GRANT_FIELDS(X)            /* -> worker, engine child; parts: the line of each item */ \
    X(U64,  3, job, UINT64_MAX) \
    X(U64,  4, lease, UINT64_MAX) \
    X(U64,  5, term_ms, UINT32_MAX) \
    X(LIST, 6, rows, 4096)              /* row_index of each item */ \
    X(LIST, 7, sample_lo, 4096)         /* samples sample_lo .. sample_hi - 1 of that row */ \
    X(LIST, 8, sample_hi, 4096) \
    X(LIST, 9, lines, 4096)             /* physical line number of each item */ \
    X(LIST,10, renamed, 4096)           /* 1: the item's row is called ID#<line> (fl_row_rename), 0: as its line says */
#define WIRE_BEAT_FIELDS(X)             /* both ways: I live, and how far I am */ \
    X(U64,  3, prefill_tokens, UINT64_MAX)  /* totals since the process start */ \
    X(U64,  4, decode_tokens, UINT64_MAX) \
    X(U64,  5, running, UINT32_MAX)     /* sequences in the engine */ \
    X(U64,  6, waiting, UINT32_MAX)     /* samples not begun */ \
    X(U64,  7, unanswered_bytes, UINT64_MAX) \
    X(LIST, 8, leases, 65536)           /* held; each is renewed by this beat */ \
    X(U64,  9, preemptions, UINT64_MAX) \
    X(U64, 10, draining, 1) \
    X(U64, 11, say_hello, 1)            /* coordinator -> : I do not know you (I restarted, or you were silent for long): send HELLO again */ \
    X(U64, 12, busy_us, UINT64_MAX)     /* microseconds that its GPU worked, in all since the process start; 0: the CPU */
#define WIRE_RESULT_FIELDS(X)           /* worker -> ; 1 part: a piece of fl_result_encode's body */ \
    X(U64,  3, job, UINT64_MAX) \
    X(U64,  4, lease, UINT64_MAX) \
    X(U64,  5, row, UINT64_MAX) \
    X(U64,  6, sample, 1023) \
    X(U64,  7, piece, 4095)             /* pieces of one body come in order */ \
    X(U64,  8, n_pieces, 4096) \
    X(U64,  9, n_tokens, UINT32_MAX)    /* generated, for counters */
#define WIRE_ROW_ERROR_FIELDS(X)        /* worker -> : the row cannot be served, whatever the attempt */ \
    X(U64,  3, job, UINT64_MAX) \
    X(U64,  4, lease, UINT64_MAX) \
    X(U64,  5, row, UINT64_MAX) \
    X(U64,  6, code, 255)               /* fl_row_error */ \
    X(STR,  7, text, 480)
#define WIRE_HANDBACK_FIELDS(X)         /* worker -> : rows of a lease it will not finish */ \
    X(U64,  3, lease, UINT64_MAX) \
    X(LIST, 4, rows, 4096)              /* empty = all that is left of the lease */ \
    X(U64,  5, reason, 4)               /* wire_handback_reason */ \
    X(STR,  6, text, 480)               /* last words of the engine, for people */
#define WIRE_ANSWER_FIELDS(X)           /* coordinator -> worker: the fate of each result; sent after the sync */ \
    X(LIST, 3, jobs, 4096) \
    X(LIST, 4, leases, 4096) \
    X(LIST, 5, rows, 4096) \
    X(LIST, 6, samples, 4096)           /* 2^32-1 answers a ROW_ERROR */ \
    X(LIST, 7, fates, 4096)             /* wire_fate */
#define WIRE_REVOKE_FIELDS(X)           /* coordinator -> worker, engine child: stop work on these */ \
    X(U64,  3, lease, UINT64_MAX) \
    X(LIST, 4, rows, 4096)              /* empty = the whole lease */ \
    X(LIST, 5, samples, 4096)           /* parallel to rows; 2^32-1 = the whole row */
#define WIRE_STOP_FIELDS(X)             /* -> worker, engine child: finish (drain 1) or hand back (0), then exit */ \
    X(U64,  3, drain, 1)
#define WIRE_BYE_FIELDS(X)              /* worker -> : the last message */ \
    X(U64,  3, worker, UINT64_MAX)
#define WIRE_REQUEST_FIELDS(X)          /* client -> coordinator; 0 or 1 part: a piece of an upload */ \
    X(U64,  3, number, UINT64_MAX)      /* echoed in the reply */ \
    X(STR,  4, verb, 32)                /* submit_begin, submit_piece, submit_end, list, status, fetch, verify, cancel, ... */ \
    X(STR,  5, args, 1 << 20)           /* JSON object */
#define WIRE_REPLY_JSON_MAX (4 << 20)
#define WIRE_REPLY_FIELDS(X)            /* coordinator -> client; 0 or 1 part: a piece of a download */ \
    X(U64,  3, number, UINT64_MAX) \
    X(U64,  4, status, 255)             /* fl_status */ \
    X(STR,  5, json, WIRE_REPLY_JSON_MAX)       /* answer, or {"error": sentence} */

#define WIRE_TYPES(X) \
    X(1, HELLO, hello) X(2, WELCOME, welcome) X(3, DETOK, detok) X(4, JOB, job) X(5, GRANT, grant) X(6, BEAT, beat) \
    X(7, RESULT, result) X(8, ROW_ERROR, row_error) X(9, HANDBACK, handback) X(10, ANSWER, answer) X(11, REVOKE, revoke) \
    X(12, STOP, stop) X(13, BYE, bye) X(14, REQUEST, request) X(15, REPLY, reply)

typedef enum {
#define WIRE_TYPE_ENUM(number, NAME, name) WIRE_##NAME = number,
    WIRE_TYPES(WIRE_TYPE_ENUM)
#undef WIRE_TYPE_ENUM
} wire_type;
/* NO_ROOM: the worker's context is too short for the row. NO_CHATS: its machine cannot run the chat template. Both name rows that another worker may serve. */
typedef enum { WIRE_HAND_DRAIN = 0, WIRE_HAND_NO_ROOM = 1, WIRE_HAND_ENGINE_ENDED = 2, WIRE_HAND_ENGINE_CRASHED_ALONE = 3, WIRE_HAND_NO_CHATS = 4 } wire_handback_reason;
typedef enum { WIRE_COMMITTED = 1, WIRE_DUPLICATE = 2, WIRE_STALE = 3, WIRE_REFUSED = 4 } wire_fate;
#define WIRE_WHOLE_ROW UINT32_MAX

#define WIRE_C_U64(name)  uint64_t name;
#define WIRE_C_STR(name)  wire_str name;
#define WIRE_C_LIST(name) wire_list name;
#define WIRE_STRUCT_FIELD(kind, key, name, bound) WIRE_C_##kind(name)
#define WIRE_DEFINE_STRUCT(number, NAME, name) typedef struct { WIRE_##NAME##_FIELDS(WIRE_STRUCT_FIELD) } wire_##name;
WIRE_TYPES(WIRE_DEFINE_STRUCT)

typedef struct {
    wire_type type;
    uint32_t n_parts;
    const fl_bytes *parts;               /* [n_parts] */
    union {
#define WIRE_UNION_MEMBER(number, NAME, name) wire_##name name;
        WIRE_TYPES(WIRE_UNION_MEMBER)
#undef WIRE_UNION_MEMBER
    };
} wire_msg;

/* Header bytes of `msg` (parts are sent as they are). *out lives in `arena`. */
fl_status wire_encode(const wire_msg *msg, fl_arena *arena, const uint8_t **out, size_t *n_bytes, fl_err *err);

/* Decode a header; parts[n_parts] are the frames that came with it and must be as many as it says. `msg` borrows from
 * header, parts and arena. */
fl_status wire_decode(wire_msg *msg, const uint8_t *header, size_t n_bytes, const fl_bytes *parts, uint32_t n_parts, fl_arena *arena, fl_err *err);

/* A whole message as one frame, in two steps, so that it is written once, where it is sent from. begin: the header, in `arena`, and how many bytes the message takes;
 * FL_INVALID as wire_encode, and above WIRE_BYTES_MAX. wire_pack writes p->n_bytes bytes. unpack is the way back: `msg` borrows from `data` and arena; FL_CORRUPT also
 * where the sizes are not those of the bytes that follow. */
typedef struct { const uint8_t *header; size_t header_bytes, n_bytes; } wire_packing;
fl_status wire_pack_begin(wire_packing *p, const wire_msg *msg, fl_arena *arena, fl_err *err);
void      wire_pack(const wire_packing *p, const wire_msg *msg, uint8_t *out);
fl_status wire_unpack(wire_msg *msg, const uint8_t *data, size_t n_bytes, fl_arena *arena, fl_err *err);

/* A GRANT's lines as parts: a part of FL_FRAME_PAYLOAD_MAX bytes goes on in the next one, a shorter part ends its line.
 * cut fills parts[wire_line_parts(line.bytes)] with pieces of the line. next gives the line that begins with part *at of a GRANT that was decoded and moves
 * *at behind it; a line of one part is borrowed, a longer one is joined in `arena` (data NULL: no memory). */
uint32_t wire_line_parts(size_t n_bytes);
void     wire_line_cut(fl_bytes line, fl_bytes *parts);
fl_bytes wire_line_next(const wire_msg *msg, uint32_t *at, fl_arena *arena);

const char *wire_type_name(wire_type type);              /* "GRANT"; "?" outside the table */
wire_str    wire_text(const char *text);                 /* borrow a C string */

/* A message stream over a socket pair or pipe (blocking descriptors are fine; one reader and one writer thread each).
 * send writes the whole message. recv returns one message that lives in `arena` (reset it between messages); FL_CLOSED at the end of
 * the stream between messages, FL_CORRUPT inside one; send gives FL_CLOSED when the peer is gone (no SIGPIPE on a socket; for a pipe the
 * process ignores it). After any failure but send's FL_INVALID the stream is lost: close it. poll(2) on fd may be used before recv. */
fl_status wire_send_fd(int fd, const wire_msg *msg, fl_err *err);
fl_status wire_recv_fd(int fd, wire_msg *msg, fl_arena *arena, fl_err *err);

#endif
