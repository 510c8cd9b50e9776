/* The daemon with a stub worker over a real ipc socket, in one process: a job from submit to output; the daemon killed at its n-th sync, for every n, and
 * started again; a full disk; a worker that sends nonsense. write, pwrite and fdatasync of this program stand before the C library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <zmq.h>
#include "coordinator/daemon.h"
#include "coordinator/job_verify.h"
#include "coordinator/service.h"
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

static bool is_named(int fd, const char *part)
{
    char link[40], path[300] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && strstr(path, part);
}

static bool has_room(int fd)
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

static void stub_send(stub *w, const wire_msg *msg)
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

static void stub_hello(stub *w)
{
    wire_msg msg = { .type = WIRE_HELLO, .hello = { .worker = w->id, .release = wire_text("test"), .model = wire_text("tiny"), .fingerprint = wire_text(FIXTURE_FINGERPRINT),
                     .numerics = wire_text(FIXTURE_NUMERICS), .n_vocab = FIXTURE_VOCAB, .context = 100, .credit_tokens = 60, .credit_bytes = 1 << 20, .has_tokenizer = 1 } };
    stub_send(w, &msg);
}

static void stub_open(stub *w, const char *endpoint, uint64_t id)
{
    int zero = 0;
    *w = (stub){ .id = id, .context = zmq_ctx_new() };
    fl_arena_init(&w->arena, 1 << 16, 0);
    w->socket = zmq_socket(w->context, ZMQ_DEALER);
    zmq_setsockopt(w->socket, ZMQ_LINGER, &zero, sizeof zero);
    assert_int_equal(zmq_connect(w->socket, endpoint), 0);
}

static void stub_close(stub *w)
{
    json_decref(w->reply);
    free(w->part);
    zmq_close(w->socket);
    zmq_ctx_term(w->context);
    fl_arena_fini(&w->arena);
}

static void stub_take_grant(stub *w, const wire_grant *grant, uint32_t n_parts)
{
    assert_int_equal(n_parts, grant->rows.n);
    for (uint32_t i = 0; i < grant->rows.n; i++) {
        for (uint64_t sample = grant->sample_lo.v[i]; sample < grant->sample_hi.v[i]; sample++) {
            assert_true(w->n_held < HELD_MAX);
            w->held[w->n_held++] = (held){ grant->job, grant->lease, grant->rows.v[i], (uint32_t)sample };
        }
    }
}

static void stub_take_answer(stub *w, const wire_answer *answer)
{
    for (uint32_t i = 0; i < answer->rows.n; i++) {
        w->n_answers++;
        w->n_committed += answer->fates.v[i] == WIRE_COMMITTED;
        w->n_refused += answer->fates.v[i] == WIRE_REFUSED;
    }
}

static void stub_take(stub *w, const wire_msg *msg)
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

static void stub_read(stub *w)
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

static void stub_result(stub *w, const held *h, const uint8_t *body, size_t n_bytes)
{
    fl_bytes part = { body, n_bytes };
    stub_send(w, &(wire_msg){ .type = WIRE_RESULT, .n_parts = 1, .parts = &part,
                              .result = { .job = h->job, .lease = h->lease, .row = h->row, .sample = h->sample, .n_pieces = 1, .n_tokens = 3 } });
    w->n_sent++;
}

/* Do all the work that is held. */
static void stub_work(stub *w)
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

static int setup(void **unused)
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

static int teardown(void **unused)
{
    (void)unused;
    disk_is_full = false;
    full_for = NULL;
    fixture_remove(folder);
    return 0;
}

static coord_daemon *start_daemon(void)
{
    coord_daemon *d = NULL;
    fl_err err;
    daemon_options options = { .spool = spool_at, .endpoint = endpoint, .beat_ms = 100, .term_ms = 10000, .workers_are_children = true };
    if (daemon_open(&d, &options, &err) != FL_OK) fail_msg("%s", err.text);
    return d;
}

/* The spool's job; made when there is none. */
static stored_job *the_job(coord_daemon *d)
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

static void turn(coord_daemon *d)
{
    fl_err err;
    if (daemon_turn(d, 5, &err) != FL_OK) fail_msg("%s", err.text);
}

/* What a client asks about the only job. */
static void ask(stub *client, const char *verb, const char *file, size_t offset)
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

static void hear(coord_daemon *d, stub *client)
{
    for (int64_t until = daemon_now_ms() + WAIT_MS; !client->reply; stub_read(client)) {
        assert_true(daemon_now_ms() < until);
        turn(d);
    }
}

static bool is_whole(const stub *client)
{
    return json_is_true(json_object_get(client->reply, "whole"));
}

/* Ask for OUT behind `got`, and add what comes. */
static void fetch_more(coord_daemon *d, stub *client, char *got, size_t *n_got)
{
    ask(client, "fetch", "out", *n_got);
    hear(d, client);
    if (client->reply_status != FL_OK) fail_msg("%s", json_string_value(json_object_get(client->reply, "error")));
    memcpy(got + *n_got, client->part, client->part_bytes + 1);
    *n_got += client->part_bytes;
}

static void serve_to_the_end(coord_daemon *d, stored_job *job, stub *w)
{
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (job->state == JOB_OPEN || job->outputs_due) {
        turn(d);
        stub_read(w);
        stub_work(w);
        assert_true(daemon_now_ms() < until);
    }
    for (int i = 0; i < 20; i++) {                       /* the last answers */
        turn(d);
        stub_read(w);
    }
}

static char *output_of(const coord_daemon *d, const stored_job *job, bool errors)
{
    char *path = daemon_output_path(d, job, errors), *text = fixture_read(path, NULL);
    free(path);
    return text;
}

static void assert_sound(const coord_daemon *d, const stored_job *job)
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

/* A whole life in one process; returns OUT, which the caller frees. */
static char *run_once(void)
{
    stub w;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    serve_to_the_end(d, job, &w);
    assert_sound(d, job);
    char *out = output_of(d, job, false);
    stub_close(&w);
    daemon_close(d);
    return out;
}

/* ---- the tests ---- */

static void a_job_is_served_to_its_end_and_every_result_is_answered(void **unused)
{
    (void)unused;
    stub w;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    serve_to_the_end(d, job, &w);
    assert_true(w.is_welcome);
    assert_int_equal(w.n_sent, N_GOOD + N_GOOD / 4);
    assert_int_equal(w.n_committed, w.n_sent);
    assert_int_equal(w.n_answers, w.n_sent);
    assert_int_equal(job->state, JOB_COMPLETED);
    char *out = output_of(d, job, false), *errors = output_of(d, job, true);
    assert_int_equal(fixture_count_lines(out), N_GOOD);
    assert_int_equal(fixture_count_lines(errors), N_GOOD / 10);
    assert_sound(d, job);
    free(out);
    free(errors);
    stub_close(&w);
    daemon_close(d);
}

/* A spool may have more finished jobs than a process descriptors, and a start must not wait for the disk for each of them. */
static void a_finished_job_costs_a_start_no_sync_and_holds_no_file(void **unused)
{
    (void)unused;
    char *out = run_once();
    n_ledger_syncs = 0;
    coord_daemon *d = start_daemon();
    stored_job *job = daemon_job_at(d, 0);
    assert_int_equal(n_ledger_syncs, 0);
    assert_int_equal(job->state, JOB_COMPLETED);
    assert_null(job->rows);
    assert_null(job->ledger);
    assert_true(job_store_failures(job)->n_examples > 0);
    job->outputs_due = true;                             /* as `run` does, which writes them again */
    while (job->outputs_due) turn(d);
    char *again = output_of(d, job, false);
    assert_string_equal(again, out);
    assert_sound(d, job);
    free(again);
    free(out);
    daemon_close(d);
}

/* Each death is a process that ends at its n-th sync, before or after it, wherever in the three phases that is. */
static void a_daemon_killed_at_any_sync_gives_the_same_bytes_when_started_again(void **unused)
{
    (void)unused;
    char *reference = run_once();
    int deaths = 0;
    fixture_remove(spool_at);
    for (int n = 0; ; n++) {
        pid_t child = fork();
        if (child == 0) {
            syncs_left = n / 2;
            dies_after_sync = n % 2;
            free(run_once());
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
        deaths += WEXITSTATUS(status) == DIED;
        char *out = run_once();                          /* in this process nothing dies */
        assert_string_equal(out, reference);
        free(out);
        fixture_remove(spool_at);
        if (WEXITSTATUS(status) == 0) break;
    }
    assert_true(deaths > 10);
    free(reference);
}

static void a_full_disk_answers_nothing_and_goes_on_when_there_is_room(void **unused)
{
    (void)unused;
    stub w;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (w.n_held == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
    }
    disk_is_full = true;
    int answered = w.n_answers;
    stub_work(&w);
    while (!daemon_disk_full(d)) {
        assert_true(daemon_now_ms() < until);
        turn(d);
    }
    for (int i = 0; i < 50; i++) {
        turn(d);
        stub_read(&w);
    }
    assert_int_equal(w.n_answers, answered);
    disk_is_full = false;
    serve_to_the_end(d, job, &w);
    assert_null(daemon_disk_full(d));
    assert_int_equal(w.n_committed, w.n_sent);
    assert_sound(d, job);
    stub_close(&w);
    daemon_close(d);
}

/* The closing record is durable, the journal has no room: to clients the job runs on until its end can be performed, and nobody is shown files that are not there. */
static void a_job_whose_end_waits_for_the_journal_is_not_ended_to_clients(void **unused)
{
    (void)unused;
    stub w, client;
    fl_err err;
    char got[65536];
    size_t n_got = 0;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_open(&client, endpoint, 78);
    stub_hello(&w);
    for (int64_t until = daemon_now_ms() + WAIT_MS; w.n_committed == 0; stub_read(&w)) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        if (w.n_sent == 0) stub_work(&w);
    }
    full_for = "journal.db";
    event ev = { .type = EVENT_JOB_CLOSE, .job_id = job->id, .cause = LEDGER_CANCELLED };
    assert_int_equal(daemon_step(d, &ev, &err), FL_OK);
    turn(d);
    assert_true(ledger_is_closed(job->ledger));
    for (int i = 0; i < 20; i++) {
        fetch_more(d, &client, got, &n_got);
        assert_false(is_whole(&client));
        assert_non_null(strstr(json_string_value(json_object_get(client.reply, "why")), "the disk is full"));
    }
    ask(&client, "status", "", 0);
    hear(d, &client);
    const json_t *status = json_object_get(client.reply, "job");
    assert_string_equal(json_string_value(json_object_get(status, "state")), "running");
    assert_false(json_is_true(json_object_get(status, "outputs")));
    assert_non_null(strstr(json_string_value(json_object_get(status, "why")), "the disk is full"));
    ask(&client, "delete", "", 0);
    hear(d, &client);
    assert_int_equal(client.reply_status, FL_CONFLICT);
    ask(&client, "cancel", "", 0);
    hear(d, &client);
    assert_int_equal(client.reply_status, FL_CONFLICT);
    full_for = NULL;
    do fetch_more(d, &client, got, &n_got);
    while (!is_whole(&client) || client.part_bytes > 0);
    assert_int_equal(job->state, JOB_CANCELLED);
    char *out = output_of(d, job, false);
    assert_string_equal(got, out);
    assert_sound(d, job);
    free(out);
    stub_close(&client);
    stub_close(&w);
    daemon_close(d);
}

/* The files of a running job that is fetched find no room: the writer takes them away and ends; the client waits, and goes on where it was. */
static void a_fetch_waits_for_files_that_a_full_disk_took_away(void **unused)
{
    (void)unused;
    stub w, client;
    char got[65536], temporary[400];
    size_t n_got = 0;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_open(&client, endpoint, 78);
    stub_hello(&w);
    for (int64_t until = daemon_now_ms() + WAIT_MS; n_got == 0; stub_read(&w)) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        if (w.n_sent == 0) stub_work(&w);
        if (w.n_committed > 0) fetch_more(d, &client, got, &n_got);
    }
    snprintf(temporary, sizeof temporary, "%s/out.jsonl.tmp-job-0000000000000051", job->dir);
    assert_int_equal(access(temporary, F_OK), 0);
    full_for = ".tmp-job-";
    int committed = w.n_committed;
    for (int64_t until = daemon_now_ms() + WAIT_MS; w.n_committed == committed; stub_read(&w)) {
        assert_true(daemon_now_ms() < until);
        stub_work(&w);
        turn(d);
    }
    for (int64_t until = daemon_now_ms() + WAIT_MS; access(temporary, F_OK) == 0; poll(NULL, 0, 1)) assert_true(daemon_now_ms() < until);
    size_t before = n_got;
    ask(&client, "fetch", "out", 0);                     /* gone, and the loop does not know it yet */
    hear(d, &client);
    assert_int_equal(client.reply_status, FL_OK);
    assert_int_equal(json_integer_value(json_object_get(client.reply, "size")), 0);
    bool was_told = false;
    for (int i = 0; i < 20; i++) {
        fetch_more(d, &client, got, &n_got);
        was_told |= strstr(json_string_value(json_object_get(client.reply, "why")), "space") != NULL;
    }
    assert_true(was_told);
    assert_int_equal(n_got, before);
    full_for = NULL;
    for (int64_t until = daemon_now_ms() + WAIT_MS; !is_whole(&client) || client.part_bytes > 0; stub_work(&w)) {
        assert_true(daemon_now_ms() < until);
        fetch_more(d, &client, got, &n_got);
        stub_read(&w);
    }
    char *out = output_of(d, job, false);
    assert_string_equal(got, out);
    assert_sound(d, job);
    free(out);
    stub_close(&client);
    stub_close(&w);
    daemon_close(d);
}

static void a_daemon_that_ends_on_a_full_disk_loses_nothing_that_was_answered(void **unused)
{
    (void)unused;
    char *reference = run_once();
    fixture_remove(spool_at);
    stub w;
    coord_daemon *d = start_daemon();
    the_job(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (w.n_committed == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
        stub_work(&w);
    }
    disk_is_full = true;
    while (!daemon_disk_full(d)) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
        stub_work(&w);
    }
    stub_close(&w);
    daemon_close(d);
    disk_is_full = false;
    char *out = run_once();
    assert_string_equal(out, reference);
    free(out);
    free(reference);
}

static void nonsense_is_dropped_or_refused_and_the_daemon_goes_on(void **unused)
{
    (void)unused;
    stub w, stranger;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_open(&stranger, endpoint, 78);
    zmq_send(stranger.socket, "nonsense", 8, 0);
    zmq_send(stranger.socket, "", 0, ZMQ_SNDMORE);
    zmq_send(stranger.socket, "more", 4, 0);
    stub_send(&stranger, &(wire_msg){ .type = WIRE_BEAT });
    stub_send(&stranger, &(wire_msg){ .type = WIRE_REQUEST, .request = { .number = 1, .verb = wire_text("dance"), .args = wire_text("[1") } });
    stub_hello(&w);
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (w.n_held == 0 || stranger.n_hello_wanted == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
        stub_read(&stranger);
    }
    stub_result(&w, &w.held[0], (const uint8_t *)"no result", 9);
    w.n_sent--;
    while (w.n_refused == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
    }
    serve_to_the_end(d, job, &w);
    assert_sound(d, job);
    stub_close(&stranger);
    stub_close(&w);
    daemon_close(d);
}

static void a_worker_that_dies_gives_its_rows_to_the_next(void **unused)
{
    (void)unused;
    stub dead, w;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&dead, endpoint, 70);
    dead.answers_nothing = true;
    stub_hello(&dead);
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (dead.n_held == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&dead);
    }
    stub_close(&dead);
    daemon_child_died(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    serve_to_the_end(d, job, &w);                        /* well before the lease's term */
    assert_true(daemon_now_ms() < until);
    assert_sound(d, job);
    stub_close(&w);
    daemon_close(d);
}

static void a_cancelled_job_is_closed_with_what_was_committed(void **unused)
{
    (void)unused;
    stub w;
    fl_err err;
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    int64_t until = daemon_now_ms() + WAIT_MS;
    while (w.n_committed == 0) {
        assert_true(daemon_now_ms() < until);
        turn(d);
        stub_read(&w);
        if (w.n_sent == 0) stub_work(&w);
    }
    event ev = { .type = EVENT_JOB_CLOSE, .job_id = job->id, .cause = LEDGER_CANCELLED };
    assert_int_equal(daemon_step(d, &ev, &err), FL_OK);
    while (job->state == JOB_OPEN || job->outputs_due) turn(d);
    assert_int_equal(job->state, JOB_CANCELLED);
    assert_true(job->counts.completed > 0 && job->counts.completed < N_GOOD);
    assert_sound(d, job);
    stub_close(&w);
    daemon_close(d);
    d = start_daemon();                                  /* and stays so */
    job = daemon_job_at(d, 0);
    assert_int_equal(job->state, JOB_CANCELLED);
    assert_false(job->outputs_due);
    daemon_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_is_served_to_its_end_and_every_result_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(a_finished_job_costs_a_start_no_sync_and_holds_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_daemon_killed_at_any_sync_gives_the_same_bytes_when_started_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_answers_nothing_and_goes_on_when_there_is_room, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_whose_end_waits_for_the_journal_is_not_ended_to_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fetch_waits_for_files_that_a_full_disk_took_away, setup, teardown),
        cmocka_unit_test_setup_teardown(a_daemon_that_ends_on_a_full_disk_loses_nothing_that_was_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_is_dropped_or_refused_and_the_daemon_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_dies_gives_its_rows_to_the_next, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancelled_job_is_closed_with_what_was_committed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
