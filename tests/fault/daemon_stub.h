/* daemon_stub.h - the daemon with stub workers and clients over a real ipc socket, in one process, on a disk that can fail: what daemon_test and flood_test share. write, pwrite
 * and fdatasync of the program that includes it stand before the C library's. */
#ifndef TESTS_FAULT_DAEMON_STUB_H
#define TESTS_FAULT_DAEMON_STUB_H

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <zmq.h>
#include "coordinator/daemon.h"
#include "coordinator/job_verify.h"
#include "coordinator/service.h"
#include "proto/clock.h"
#include "tests/job_fixture.h"

#define N_GOOD 40
#define HELD_MAX 1024
#define DIED 9
#define WAIT_MS 60000                    /* generous: sanitizer builds on a busy machine */

/* ---- a disk that fails ---- */

static bool disk_is_full;
static const char *full_for;                             /* writes to files with this in their name find no room; NULL: none do */
static int syncs_left = -1;                              /* the process ends at the sync that finds 0; -1: never */
static bool dies_after_sync;
static int n_ledger_syncs;                               /* so far */

static inline bool is_named(int fd, const char *part)
{
    char link[40], path[300] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && strstr(path, part);
}

static inline bool has_room(int fd)
{
    if (!disk_is_full && !(full_for && is_named(fd, full_for))) return true;
    errno = ENOSPC;
    return false;
}

ssize_t write(int fd, const void *data, size_t n)
{
    return !full_for || has_room(fd) ? syscall(SYS_write, fd, data, n) : -1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return has_room(fd) ? syscall(SYS_pwrite64, fd, data, n, offset) : -1;
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset)       /* SQLite's */
{
    return pwrite(fd, data, n, offset);
}

int fdatasync(int fd)
{
    n_ledger_syncs += is_named(fd, "/ledger/");
    bool dies = syncs_left >= 0 && syncs_left-- == 0;
    if (dies && !dies_after_sync) _exit(DIED);
    int result = (int)syscall(SYS_fdatasync, fd);
    if (dies) _exit(DIED);
    return result;
}

/* ---- the stub worker ---- */

typedef struct { uint64_t job, lease, row; uint32_t sample; } held;
typedef struct {
    void *context, *socket;
    uint64_t id;
    held held[HELD_MAX]; int n_held;                     /* granted and not answered */
    int n_sent, n_answers, n_committed, n_refused, n_hello_wanted;
    bool answers_nothing;                                /* takes grants and does not work on them */
    bool is_welcome;
    json_t *reply; fl_status reply_status;               /* owned; to the last question of a client */
    char *part; size_t part_bytes;                       /* owned; what came with it */
    fl_arena arena;
} stub;

static inline void stub_send(stub *w, const wire_msg *msg)
{
    fl_err err;
    fl_arena arena;
    wire_packing p;
    zmq_msg_t frame;
    fl_arena_init(&arena, 4096, 0);
    assert_int_equal(wire_pack_begin(&p, msg, &arena, &err), FL_OK);
    assert_int_equal(zmq_msg_init_size(&frame, p.n_bytes), 0);
    wire_pack(&p, msg, zmq_msg_data(&frame));
    assert_true(zmq_msg_send(&frame, w->socket, 0) >= 0);
    fl_arena_fini(&arena);
}

static inline void stub_hello(stub *w)
{
    wire_msg msg = { .type = WIRE_HELLO, .hello = { .worker = w->id, .release = wire_text("test"), .model = wire_text("tiny"), .fingerprint = wire_text(FIXTURE_FINGERPRINT),
                     .numerics = wire_text(FIXTURE_NUMERICS), .n_vocab = FIXTURE_VOCAB, .context = 100, .credit_tokens = 60, .credit_bytes = 1 << 20, .has_tokenizer = 1 } };
    stub_send(w, &msg);
}

static inline void stub_open(stub *w, const char *endpoint, uint64_t id)
{
    int zero = 0;
    *w = (stub){ .id = id, .context = zmq_ctx_new() };
    fl_arena_init(&w->arena, 1 << 16, 0);
    w->socket = zmq_socket(w->context, ZMQ_DEALER);
    zmq_setsockopt(w->socket, ZMQ_LINGER, &zero, sizeof zero);
    assert_int_equal(zmq_connect(w->socket, endpoint), 0);
}

static inline void stub_close(stub *w)
{
    json_decref(w->reply);
    free(w->part);
    zmq_close(w->socket);
    zmq_ctx_term(w->context);
    fl_arena_fini(&w->arena);
}

static inline void stub_take_grant(stub *w, const wire_grant *grant, uint32_t n_parts)
{
    assert_int_equal(n_parts, grant->rows.n);
    for (uint32_t i = 0; i < grant->rows.n; i++) {
        for (uint64_t sample = grant->sample_lo.v[i]; sample < grant->sample_hi.v[i]; sample++) {
            assert_true(w->n_held < HELD_MAX);
            w->held[w->n_held++] = (held){ grant->job, grant->lease, grant->rows.v[i], (uint32_t)sample };
        }
    }
}

static inline void stub_take_answer(stub *w, const wire_answer *answer)
{
    for (uint32_t i = 0; i < answer->rows.n; i++) {
        w->n_answers++;
        w->n_committed += answer->fates.v[i] == WIRE_COMMITTED;
        w->n_refused += answer->fates.v[i] == WIRE_REFUSED;
    }
}

static inline void stub_take(stub *w, const wire_msg *msg)
{
    size_t n_bytes = 0;
    uint8_t *table = NULL;
    fl_bytes part;
    switch (msg->type) {
    case WIRE_WELCOME:
        w->is_welcome = msg->welcome.accepted;
        if (!msg->welcome.want_detok) return;
        table = fixture_detok(&n_bytes);
        part = (fl_bytes){ table, n_bytes };
        stub_send(w, &(wire_msg){ .type = WIRE_DETOK, .n_parts = 1, .parts = &part, .detok = { .fingerprint = wire_text(FIXTURE_FINGERPRINT) } });
        free(table);
        return;
    case WIRE_GRANT: stub_take_grant(w, &msg->grant, msg->n_parts); return;
    case WIRE_ANSWER: stub_take_answer(w, &msg->answer); return;
    case WIRE_BEAT: w->n_hello_wanted += (int)msg->beat.say_hello; return;
    case WIRE_REPLY:
        w->reply = json_loadb(msg->reply.json.p, msg->reply.json.n, 0, NULL);
        w->reply_status = (fl_status)msg->reply.status;
        w->part_bytes = msg->n_parts ? msg->parts[0].bytes : 0;
        w->part = calloc(1, w->part_bytes + 1);
        if (w->part_bytes) memcpy(w->part, msg->parts[0].data, w->part_bytes);
        return;
    default: return;
    }
}

static inline void stub_read(stub *w)
{
    for (;;) {
        zmq_msg_t frame;
        wire_msg msg;
        fl_err err;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, w->socket, ZMQ_DONTWAIT) < 0) return;
        assert_false(zmq_msg_more(&frame));
        fl_arena_reset(&w->arena);
        assert_int_equal(wire_unpack(&msg, zmq_msg_data(&frame), zmq_msg_size(&frame), &w->arena, &err), FL_OK);
        stub_take(w, &msg);
        zmq_msg_close(&frame);
    }
}

static inline void stub_result(stub *w, const held *h, const uint8_t *body, size_t n_bytes)
{
    fl_bytes part = { body, n_bytes };
    stub_send(w, &(wire_msg){ .type = WIRE_RESULT, .n_parts = 1, .parts = &part,
                              .result = { .job = h->job, .lease = h->lease, .row = h->row, .sample = h->sample, .n_pieces = 1, .n_tokens = 3 } });
    w->n_sent++;
}

/* Do all the work that is held. */
static inline void stub_work(stub *w)
{
    for (int i = 0; i < w->n_held && !w->answers_nothing; i++) {
        size_t n_bytes = 0;
        uint8_t *body = fixture_result(w->held[i].row, w->held[i].sample, &n_bytes);
        stub_result(w, &w->held[i], body, n_bytes);
        free(body);
    }
    if (!w->answers_nothing) w->n_held = 0;
}

/* ---- one daemon ---- */

static char folder[32], spool_at[64], job_at[64], endpoint[80];

static inline int setup(void **unused)
{
    (void)unused;
    strcpy(folder, "/tmp/tokenfleet-dmn-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(spool_at, sizeof spool_at, "%s/spool", folder);
    snprintf(job_at, sizeof job_at, "%s/job.jsonl", folder);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    fixture_write_job(job_at, N_GOOD);
    disk_is_full = false;
    full_for = NULL;
    syncs_left = -1;
    return 0;
}

static inline int teardown(void **unused)
{
    (void)unused;
    disk_is_full = false;
    full_for = NULL;
    fixture_remove(folder);
    return 0;
}

static inline coord_daemon *start_daemon(void)
{
    coord_daemon *d = NULL;
    fl_err err;
    daemon_options options = { .spool = spool_at, .endpoint = endpoint, .beat_ms = 100, .term_ms = 10000, .workers_are_children = true };
    if (daemon_open(&d, &options, &err) != FL_OK) fail_msg("%s", err.text);
    return d;
}

/* The spool's job; made when there is none. */
static inline stored_job *the_job(coord_daemon *d)
{
    fl_err err;
    stored_job *job = NULL;
    ingest_report report;
    job_settings settings = { .name = "job.jsonl", .seed = 7 };
    if (daemon_n_jobs(d) == 0) {
        if (job_store_create(&job, daemon_spool(d), (job_id){ 0x51 }, &settings, &(job_draft_options){ .path = job_at }, &report, &err) != FL_OK) fail_msg("%s", err.text);
        if (daemon_add_job(d, &job, &err) != FL_OK) fail_msg("%s", err.text);
    }
    return daemon_job_at(d, 0);
}

static inline void turn(coord_daemon *d)
{
    fl_err err;
    if (daemon_turn(d, 5, &err) != FL_OK) fail_msg("%s", err.text);
}

/* What a client asks about the only job. */
static inline void ask(stub *client, const char *verb, const char *file, size_t offset)
{
    char name[FL_JOB_NAME_BYTES], args[200];
    fl_job_name((job_id){ 0x51 }, name);
    snprintf(args, sizeof args, "{\"job\": \"%s\", \"file\": \"%s\", \"offset\": %zu}", name, file, offset);
    json_decref(client->reply);
    free(client->part);
    client->reply = NULL;
    client->part = NULL;
    stub_send(client, &(wire_msg){ .type = WIRE_REQUEST, .request = { .number = 1, .verb = wire_text(verb), .args = wire_text(args) } });
}

static inline void hear(coord_daemon *d, stub *client)
{
    for (int64_t until = fl_boot_ms() + WAIT_MS; !client->reply; stub_read(client)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
    }
}

static inline bool is_whole(const stub *client)
{
    return json_is_true(json_object_get(client->reply, "whole"));
}

/* Ask for OUT behind `got`, and add what comes. */
static inline void fetch_more(coord_daemon *d, stub *client, char *got, size_t *n_got)
{
    ask(client, "fetch", "out", *n_got);
    hear(d, client);
    if (client->reply_status != FL_OK) fail_msg("%s", json_string_value(json_object_get(client->reply, "error")));
    memcpy(got + *n_got, client->part, client->part_bytes + 1);
    *n_got += client->part_bytes;
}

static inline void serve_to_the_end(coord_daemon *d, stored_job *job, stub *w)
{
    int64_t until = fl_boot_ms() + WAIT_MS;
    while (job->state == JOB_OPEN || job->outputs_due) {
        turn(d);
        stub_read(w);
        stub_work(w);
        assert_true(fl_boot_ms() < until);
    }
    for (int i = 0; i < 20; i++) {                       /* the last answers */
        turn(d);
        stub_read(w);
    }
}

static inline char *output_of(const coord_daemon *d, const stored_job *job, bool errors)
{
    char *path = daemon_output_path(d, job, errors), *text = fixture_read(path, NULL);
    free(path);
    return text;
}

static inline void assert_sound(const coord_daemon *d, const stored_job *job)
{
    char *out = daemon_output_path(d, job, false), *errors = daemon_output_path(d, job, true);
    json_t *report = NULL;
    fl_err err;
    assert_int_equal(job_verify(job->dir, job->ledger_dir, out, errors, &report, &err), FL_OK);
    assert_string_equal(json_string_value(json_object_get(report, "state")), "sound");
    json_decref(report);
    free(out);
    free(errors);
}

/* A daemon with its job, and a worker that has said hello. */
static inline coord_daemon *start_serving(stored_job **job, stub *w)
{
    coord_daemon *d = start_daemon();
    *job = the_job(d);
    stub_open(w, endpoint, 77);
    stub_hello(w);
    return d;
}

static inline void stop_serving(coord_daemon *d, stub *w)
{
    stub_close(w);
    daemon_close(d);
}

static inline void wait_for_rows(coord_daemon *d, stub *w)
{
    for (int64_t until = fl_boot_ms() + WAIT_MS; w->n_held == 0; stub_read(w)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
    }
}

/* A whole life in one process; returns OUT, which the caller frees. */
static inline char *run_once(void)
{
    stub w;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    serve_to_the_end(d, job, &w);
    assert_sound(d, job);
    char *out = output_of(d, job, false);
    stop_serving(d, &w);
    return out;
}

#endif
