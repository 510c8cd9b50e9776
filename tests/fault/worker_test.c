/* worker_test.c - the real tokenfleet-worker with the demo model against a coordinator played by this test over an ipc socket: the engine is killed, the coordinator restarts, messages
 * are repeated, leases are revoked, the worker drains. Every result arrives until it is answered, and nothing after. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "proto/clock.h"
#include "proto/detok.h"
#include "proto/result.h"
#include "proto/row_error.h"
#include "proto/wire.h"

#define BEAT_MS 100
#define WAIT_MS 30000                /* generous: sanitizer builds on a busy machine */
#define JOB 77

typedef struct {
    void *context, *router;
    char folder[64], endpoint[128];
    pid_t pid;                       /* of the worker */
    zmq_msg_t peer; bool has_peer;   /* identity of the connection that spoke last */
    zmq_msg_t frame;                 /* the message that was read last */
    fl_arena arena;
    int64_t beat_at_ms;
    bool is_mute;                    /* the coordinator says nothing by itself */
    wire_beat last_beat; uint64_t beat_leases[16];
    uint32_t n_beats;
    uint32_t n_vocab;
} fleet;

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* ---- the coordinator's side ---- */

static void bind_router(fleet *f)
{
    int none = 0;
    f->router = zmq_socket(f->context, ZMQ_ROUTER);
    assert_non_null(f->router);
    zmq_setsockopt(f->router, ZMQ_LINGER, &none, sizeof none);
    assert_int_equal(zmq_bind(f->router, f->endpoint), 0);
    f->has_peer = false;
}

static void close_router(fleet *f)
{
    zmq_close(f->router);
    f->router = NULL;
}

static void say(fleet *f, const wire_msg *m)
{
    fl_arena arena;
    wire_packing p;
    zmq_msg_t frame;
    fl_arena_init(&arena, 4096, 0);
    assert_true(f->has_peer);
    assert_int_equal(wire_pack_begin(&p, m, &arena, NULL), FL_OK);
    assert_int_equal(zmq_msg_init_size(&frame, p.n_bytes), 0);
    wire_pack(&p, m, zmq_msg_data(&frame));
    assert_true(zmq_send(f->router, zmq_msg_data(&f->peer), zmq_msg_size(&f->peer), ZMQ_SNDMORE) >= 0);
    assert_true(zmq_msg_send(&frame, f->router, 0) >= 0);
    fl_arena_fini(&arena);
}

/* Read one message within timeout_ms; heartbeats are noted and given back like the rest. */
static bool read_message(fleet *f, wire_msg *m, int64_t timeout_ms)
{
    zmq_pollitem_t item = { .socket = f->router, .events = ZMQ_POLLIN };
    if (f->has_peer && !f->is_mute && fl_awake_ms() >= f->beat_at_ms) {
        say(f, &(wire_msg){ .type = WIRE_BEAT });
        f->beat_at_ms = fl_awake_ms() + BEAT_MS;
    }
    if (zmq_poll(&item, 1, timeout_ms < BEAT_MS ? timeout_ms : BEAT_MS) <= 0) return false;
    if (f->has_peer) zmq_msg_close(&f->peer);
    zmq_msg_init(&f->peer);
    assert_true(zmq_msg_recv(&f->peer, f->router, 0) >= 0);
    f->has_peer = true;
    zmq_msg_close(&f->frame);
    zmq_msg_init(&f->frame);
    assert_true(zmq_msg_recv(&f->frame, f->router, 0) >= 0);
    assert_false(zmq_msg_more(&f->frame));
    fl_arena_reset(&f->arena);
    fl_err err;
    fl_status st = wire_unpack(m, zmq_msg_data(&f->frame), zmq_msg_size(&f->frame), &f->arena, &err);
    if (st != FL_OK) fail_msg("%s", err.text);
    if (m->type == WIRE_BEAT) {
        assert_true(m->beat.leases.n <= 16);
        f->last_beat = m->beat;
        for (uint32_t i = 0; i < m->beat.leases.n; i++) f->beat_leases[i] = m->beat.leases.v[i];
        f->last_beat.leases.v = f->beat_leases;
        f->n_beats++;
    }
    return true;
}

/* The next message but heartbeats; false after timeout_ms. */
static bool next_within(fleet *f, wire_msg *m, int64_t timeout_ms)
{
    int64_t end = fl_awake_ms() + timeout_ms;
    while (fl_awake_ms() < end)
        if (read_message(f, m, end - fl_awake_ms()) && m->type != WIRE_BEAT) return true;
    return false;
}

static void expect(fleet *f, wire_msg *m, wire_type type)
{
    if (!next_within(f, m, WAIT_MS)) fail_msg("no %s came", wire_type_name(type));
    if (m->type != type) fail_msg("%s came instead of %s", wire_type_name(m->type), wire_type_name(type));
}

static void expect_quiet(fleet *f, int64_t ms)
{
    wire_msg m;
    if (next_within(f, &m, ms)) fail_msg("%s came where nothing was due", wire_type_name(m.type));
}

/* Two heartbeats: the first may have been on its way before the worker read what was said last. */
static void await_beat(fleet *f)
{
    wire_msg m;
    uint32_t before = f->n_beats;
    int64_t end = fl_awake_ms() + WAIT_MS;
    while (f->n_beats < before + 2) {
        assert_true(fl_awake_ms() < end);
        if (read_message(f, &m, BEAT_MS) && m.type != WIRE_BEAT) fail_msg("%s came where a heartbeat was due", wire_type_name(m.type));
    }
}

static void welcome(fleet *f, wire_list alive)
{
    say(f, &(wire_msg){ .type = WIRE_WELCOME, .welcome = { .accepted = 1, .beat_ms = BEAT_MS, .leases = alive } });
}

static void tell_job(fleet *f)
{
    say(f, &(wire_msg){ .type = WIRE_JOB, .job = { .job = JOB, .seed = 5 } });
}

/* Grant `n` rows from row `first` on under `lease`, each with samples 0 .. n_samples - 1. */
static void grant(fleet *f, uint64_t lease, uint64_t first, uint64_t n_samples, int n, const char *const *lines)
{
    uint64_t rows[16], lo[16], hi[16], numbers[16], renamed[16] = { 0 };
    fl_bytes parts[16];
    for (int i = 0; i < n; i++) {
        rows[i] = first + (uint64_t)i;
        lo[i] = 0;
        hi[i] = n_samples;
        numbers[i] = rows[i] + 1;
        parts[i] = (fl_bytes){ lines[i], strlen(lines[i]) };
    }
    uint32_t count = (uint32_t)n;
    say(f, &(wire_msg){ .type = WIRE_GRANT, .n_parts = count, .parts = parts, .grant = {
        .job = JOB, .lease = lease, .term_ms = 60000, .rows = { rows, count }, .sample_lo = { lo, count }, .sample_hi = { hi, count }, .lines = { numbers, count }, .renamed = { renamed, count } } });
}

static void answer(fleet *f, uint64_t lease, uint64_t row, uint64_t sample, uint64_t fate)
{
    uint64_t job = JOB;
    say(f, &(wire_msg){ .type = WIRE_ANSWER, .answer = { .jobs = { &job, 1 }, .leases = { &lease, 1 }, .rows = { &row, 1 }, .samples = { &sample, 1 }, .fates = { &fate, 1 } } });
}

/* ---- the worker's side ---- */

static void start_worker(fleet *f, const char *const *more)
{
    const char *args[24] = {BIN_DIR "/tokenfleet-worker", "--connect", f->endpoint, "--model", OPS_DIR "/demo_model", "--threads", "1"};
    int n = 7;
    while (more && *more) args[n++] = *more++;
    f->pid = fork();
    assert_true(f->pid >= 0);
    if (f->pid == 0) {
        execv(args[0], (char **)(uintptr_t)args);
        _exit(99);
    }
}

/* The one child of the worker: its engine. Waits until it is another than `but`. */
static pid_t engine_pid(const fleet *f, pid_t but)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)f->pid, (int)f->pid);
    for (int64_t end = fl_awake_ms() + WAIT_MS; fl_awake_ms() < end; sleep_ms(5)) {
        int pid = 0;
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        int n = fscanf(file, "%d", &pid);
        fclose(file);
        if (n == 1 && pid != but) return pid;
    }
    fail_msg("the worker has no engine process");
    return 0;
}

static long peak_kb(pid_t pid)
{
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld", &kb);
    fclose(file);
    return kb;
}

static int exit_status(fleet *f, int64_t timeout_ms)
{
    int status = 0;
    for (int64_t end = fl_awake_ms() + timeout_ms; fl_awake_ms() < end; sleep_ms(5))
        if (waitpid(f->pid, &status, WNOHANG) == f->pid) {
            f->pid = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    fail_msg("the worker does not end");
    return -1;
}

/* A worker that was welcomed and knows the job. */
static void set_up(fleet *f, const char *const *more)
{
    wire_msg m;
    *f = (fleet){ .context = zmq_ctx_new() };
    zmq_msg_init(&f->frame);
    fl_arena_init(&f->arena, 65536, 0);
    strcpy(f->folder, "/tmp/worker-test-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->endpoint, sizeof f->endpoint, "ipc://%s/s", f->folder);
    bind_router(f);
    start_worker(f, more);
    expect(f, &m, WIRE_HELLO);
    assert_true(m.hello.worker != 0);
    assert_true(m.hello.credit_tokens > 0 && m.hello.credit_bytes > 0);
    assert_int_equal(m.hello.leases.n, 0);
    assert_int_equal(m.hello.has_tokenizer, 1);
    f->n_vocab = (uint32_t)m.hello.n_vocab;
    welcome(f, (wire_list){ 0 });
    tell_job(f);
}

static void tear_down(fleet *f)
{
    char path[80];
    if (f->pid) {
        kill(f->pid, SIGKILL);
        waitpid(f->pid, NULL, 0);
    }
    zmq_msg_close(&f->frame);
    if (f->has_peer) zmq_msg_close(&f->peer);
    if (f->router) close_router(f);
    zmq_ctx_term(f->context);
    fl_arena_fini(&f->arena);
    snprintf(path, sizeof path, "%s/s", f->folder);
    unlink(path);
    rmdir(f->folder);
}

/* ---- rows ---- */

static const char *const SHORT[] = {"{\"custom_id\": \"a\", \"prompt\": \"def f(x):\\n\", \"max_tokens\": 6, \"temperature\": 0, \"ignore_eos\": true}",
                                    "{\"custom_id\": \"b\", \"prompt\": [5, 6, 7], \"max_tokens\": 4, \"ignore_eos\": true, \"n\": 2, \"return_token_ids\": true}",
                                    "{\"custom_id\": \"c\", \"prompt\": \"def g(y):\\n\", \"max_tokens\": 5, \"ignore_eos\": true}"};
/* Minutes of work. */
static const char *const LONG[] = {"{\"custom_id\": \"l\", \"prompt\": [1, 2, 3], \"max_tokens\": 8000, \"ignore_eos\": true, \"n\": 1024}",
                                   "{\"custom_id\": \"m\", \"prompt\": [1, 2, 4], \"max_tokens\": 8000, \"ignore_eos\": true, \"n\": 1024}"};

static void check_body(fleet *f, const wire_msg *m, size_t n_ids)
{
    fl_result r = { 0 };
    fl_err err;
    assert_int_equal(m->result.n_pieces, 1);
    if (fl_result_decode(&r, m->parts[0].data, m->parts[0].bytes, (int32_t)f->n_vocab, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(r.n_ids, n_ids);
    assert_int_equal(m->result.n_tokens, n_ids);
    fl_result_free(&r);
}

/* Take `n` results of `lease` and answer each. */
static void take_results(fleet *f, uint64_t lease, int n)
{
    wire_msg m;
    while (n-- > 0) {
        expect(f, &m, WIRE_RESULT);
        assert_int_equal(m.result.lease, lease);
        answer(f, lease, m.result.row, m.result.sample, WIRE_COMMITTED);
    }
}

/* ---- what holds ---- */

static void each_result_arrives_until_it_is_answered_and_not_after(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    uint64_t lease = 3;
    set_up(&f, NULL);
    grant(&f, lease, 0, 1, 1, &SHORT[0]);
    expect(&f, &m, WIRE_RESULT);
    assert_int_equal(m.result.lease, lease);
    assert_int_equal(m.result.row, 0);
    check_body(&f, &m, 6);
    await_beat(&f);
    await_beat(&f);
    assert_int_equal(f.last_beat.leases.n, 1);
    assert_true(f.last_beat.unanswered_bytes > 0);

    close_router(&f);                            /* the coordinator restarts; its leases live on */
    sleep_ms(200);
    bind_router(&f);
    expect(&f, &m, WIRE_HELLO);
    assert_int_equal(m.hello.leases.n, 1);
    assert_int_equal(m.hello.leases.v[0], lease);
    welcome(&f, (wire_list){ &lease, 1 });
    expect(&f, &m, WIRE_RESULT);
    check_body(&f, &m, 6);
    answer(&f, lease, 0, 0, WIRE_COMMITTED);
    answer(&f, lease, 0, 0, WIRE_DUPLICATE);     /* an answer may come twice */
    expect_quiet(&f, 500);
    assert_int_equal(f.last_beat.leases.n, 0);
    assert_int_equal(f.last_beat.unanswered_bytes, 0);
    assert_true(f.last_beat.decode_tokens >= 5);

    close_router(&f);
    bind_router(&f);
    expect(&f, &m, WIRE_HELLO);
    assert_int_equal(m.hello.leases.n, 0);
    welcome(&f, (wire_list){ 0 });
    expect_quiet(&f, 500);
    tear_down(&f);
}

static void every_fate_empties_the_outbox(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    for (uint64_t fate = WIRE_COMMITTED; fate <= WIRE_REFUSED; fate++) {
        grant(&f, 10 + fate, 0, 1, 1, &SHORT[0]);
        expect(&f, &m, WIRE_RESULT);
        answer(&f, 10 + fate, 0, 0, fate);
    }
    await_beat(&f);
    await_beat(&f);
    assert_int_equal(f.last_beat.leases.n, 0);
    assert_int_equal(f.last_beat.unanswered_bytes, 0);
    tear_down(&f);
}

static void prompt_ids_travel_with_sample_0_alone(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 1, 2, 1, &SHORT[1]);
    for (int i = 0; i < 2; i++) {
        fl_result r = { 0 };
        expect(&f, &m, WIRE_RESULT);
        assert_int_equal(fl_result_decode(&r, m.parts[0].data, m.parts[0].bytes, (int32_t)f.n_vocab, NULL), FL_OK);
        assert_int_equal(r.n_prompt, 3);
        assert_true((r.prompt_ids != NULL) == (m.result.sample == 0));
        if (r.prompt_ids) assert_int_equal(r.prompt_ids[2], 7);
        fl_result_free(&r);
    }
    tear_down(&f);
}

static void a_repeated_grant_is_worked_on_once(void **state)
{
    (void)state;
    fleet f;
    set_up(&f, NULL);
    grant(&f, 4, 0, 1, 3, SHORT);
    grant(&f, 4, 0, 1, 3, SHORT);
    take_results(&f, 4, 3);
    grant(&f, 5, 7, 1, 1, &SHORT[2]);            /* had the repeat been taken, its results would come before this one */
    take_results(&f, 5, 1);
    expect_quiet(&f, 500);
    tear_down(&f);
}

static void bad_rows_are_row_errors_with_their_reason(void **state)
{
    (void)state;
    static const char *const lines[] = {"{", "{\"prompt\": [999999]}", "{\"prompt\": [1, 2], \"max_tokens\": 8191}", "{\"prompt\": []}"};
    static const fl_row_error codes[] = {ROW_INVALID_JSON, ROW_INVALID_REQUEST, ROW_CONTEXT_OVERFLOW, ROW_INVALID_REQUEST};
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 0, 2, 4, lines);
    for (uint64_t i = 0; i < 4; i++) {
        expect(&f, &m, WIRE_ROW_ERROR);
        assert_int_equal(m.row_error.lease, 1);
        assert_int_equal(m.row_error.row, i);
        assert_int_equal(m.row_error.code, codes[i]);
        assert_true(m.row_error.text.n > 0);
        answer(&f, 1, i, WIRE_WHOLE_ROW, WIRE_COMMITTED);
    }
    await_beat(&f);
    await_beat(&f);
    assert_int_equal(f.last_beat.leases.n, 0);
    tear_down(&f);
}

static void chats_are_rendered_in_the_engine_process(void **state)
{
    (void)state;
    static const char *const lines[] = {"{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 3, \"ignore_eos\": true}",
                                        "{\"messages\": [{\"role\": \"user\", \"content\": \"you\"}], \"max_tokens\": 3, \"ignore_eos\": true}"};
    fleet f;
    set_up(&f, NULL);
    grant(&f, 1, 0, 1, 2, lines);
    take_results(&f, 1, 2);
    tear_down(&f);
}

static void a_row_above_this_workers_context_is_handed_back(void **state)
{
    (void)state;
    static const char *const line = "{\"prompt\": [1, 2], \"max_tokens\": 500}";
    fleet f;
    wire_msg m;
    set_up(&f, (const char *const[]){"--max-context", "256", NULL});
    say(&f, &(wire_msg){ .type = WIRE_JOB, .job = { .job = 78, .max_context = 8192 } });
    uint64_t row = 9, lo = 0, hi = 1, number = 10, renamed = 0;
    fl_bytes part = { line, strlen(line) };
    say(&f, &(wire_msg){ .type = WIRE_GRANT, .n_parts = 1, .parts = &part, .grant = { .job = 78, .lease = 6, .rows = { &row, 1 }, .sample_lo = { &lo, 1 },
        .sample_hi = { &hi, 1 }, .lines = { &number, 1 }, .renamed = { &renamed, 1 } } });
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 6);
    assert_int_equal(m.handback.rows.n, 1);
    assert_int_equal(m.handback.rows.v[0], 9);
    assert_int_equal(m.handback.reason, WIRE_HAND_NO_ROOM);
    tear_down(&f);
}

static void a_chat_that_this_machine_cannot_render_is_handed_back(void **state)
{
    (void)state;
    static const char *const lines[] = { "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 2}", "{\"prompt\": [1, 2], \"max_tokens\": 2}" };
    fleet f;
    wire_msg m;
    setenv("TOKENFLEET_PYTHON", "/nowhere/python3", 1);
    set_up(&f, NULL);
    grant(&f, 5, 3, 1, 1, &lines[0]);
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 5);
    assert_int_equal(m.handback.reason, WIRE_HAND_NO_CHATS);
    assert_non_null(memmem(m.handback.text.p, m.handback.text.n, "/nowhere/python3", 16));
    grant(&f, 6, 4, 1, 1, &lines[1]);            /* other rows go on */
    expect(&f, &m, WIRE_RESULT);
    tear_down(&f);
    unsetenv("TOKENFLEET_PYTHON");
}

static void a_killed_engine_hands_its_leases_back_and_comes_again(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 0, 1, 1, &SHORT[0]);
    expect(&f, &m, WIRE_RESULT);                 /* made and not answered: it outlives the engine */
    grant(&f, 2, 20, 4, 1, &LONG[0]);
    await_beat(&f);
    for (int round = 0; round < 2; round++) {
        pid_t engine = engine_pid(&f, 0);
        kill(engine, SIGKILL);
        if (round == 0) {
            expect(&f, &m, WIRE_HANDBACK);
            assert_int_equal(m.handback.lease, 2);
            assert_int_equal(m.handback.rows.n, 0);
            assert_int_equal(m.handback.reason, WIRE_HAND_ENGINE_ENDED);
            assert_non_null(memmem(m.handback.text.p, m.handback.text.n, "SIGKILL", 7));
        }
        engine_pid(&f, engine);
        grant(&f, 30 + (uint64_t)round, 40, 1, 3, SHORT);       /* also before the new engine is ready */
        take_results(&f, 30 + (uint64_t)round, 3);
    }
    answer(&f, 1, 0, 0, WIRE_COMMITTED);
    expect_quiet(&f, 400);
    assert_int_equal(f.last_beat.leases.n, 0);
    tear_down(&f);
}

/* The next engine opens its model by way of a pipe into which nobody writes. */
static void rows_that_waited_for_an_engine_are_no_suspects(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    enum { N_FILES = sizeof files / sizeof *files };
    fleet f;
    wire_msg m;
    char folder[] = "/tmp/worker-model-XXXXXX", target[1200], link[64];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < N_FILES; i++) {
        snprintf(target, sizeof target, OPS_DIR "/demo_model/%s", files[i]);
        snprintf(link, sizeof link, "%s/%s", folder, files[i]);
        assert_int_equal(symlink(target, link), 0);
    }
    set_up(&f, (const char *const[]){"--model", folder, NULL});
    await_beat(&f);
    snprintf(link, sizeof link, "%s/config.json", folder);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkfifo(link, 0600), 0);
    pid_t engine = engine_pid(&f, 0), next;
    kill(engine, SIGKILL);
    next = engine_pid(&f, engine);
    grant(&f, 1, 20, 1, 1, &LONG[0]);
    await_beat(&f);
    assert_int_equal(f.last_beat.leases.n, 1);
    kill(next, SIGKILL);
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 1);
    assert_int_equal(m.handback.reason, WIRE_HAND_DRAIN);
    tear_down(&f);
    for (int i = 0; i < N_FILES; i++) {
        snprintf(link, sizeof link, "%s/%s", folder, files[i]);
        unlink(link);
    }
    rmdir(folder);
}

static void only_a_crash_of_a_row_alone_is_blamed_on_it(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 20, 2, 1, &LONG[0]);
    await_beat(&f);
    sleep_ms(300);                               /* the engine has the row */
    pid_t engine = engine_pid(&f, 0);
    kill(engine, SIGSEGV);
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 1);
    if (m.handback.reason != WIRE_HAND_ENGINE_CRASHED_ALONE)     /* a sanitizer's handler turns the signal into an exit status */
        assert_non_null(memmem(m.handback.text.p, m.handback.text.n, "Sanitizer", 9));
    else {
        assert_int_equal(m.handback.rows.n, 1);
        assert_int_equal(m.handback.rows.v[0], 20);
    }
    engine_pid(&f, engine);
    grant(&f, 2, 20, 2, 2, LONG);
    grant(&f, 3, 0, 1, 1, &SHORT[0]);
    take_results(&f, 3, 1);                      /* so it is ready and works on both */
    kill(engine_pid(&f, engine), SIGSEGV);
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 2);
    assert_int_equal(m.handback.reason, WIRE_HAND_ENGINE_ENDED);
    tear_down(&f);
}

static void revoked_work_stops_and_the_rest_goes_on(void **state)
{
    (void)state;
    const char *lines[] = {LONG[0], SHORT[0]};
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 0, 1, 2, lines);                /* row 0 is long, row 1 short */
    expect(&f, &m, WIRE_RESULT);
    assert_int_equal(m.result.row, 1);
    uint64_t row = 0, sample = 0;
    say(&f, &(wire_msg){ .type = WIRE_REVOKE, .revoke = { .lease = 1, .rows = { &row, 1 }, .samples = { &sample, 1 } } });
    answer(&f, 1, 1, 0, WIRE_COMMITTED);
    await_beat(&f);
    await_beat(&f);
    assert_int_equal(f.last_beat.leases.n, 0);

    grant(&f, 2, 0, 3, 2, LONG);
    say(&f, &(wire_msg){ .type = WIRE_REVOKE, .revoke = { .lease = 2 } });
    expect_quiet(&f, 1500);
    assert_int_equal(f.last_beat.leases.n, 0);
    assert_int_equal(f.last_beat.running, 0);    /* the engine has let go of it */
    grant(&f, 3, 5, 1, 1, &SHORT[2]);
    take_results(&f, 3, 1);
    tear_down(&f);
}

static void a_lease_that_did_not_survive_is_dropped_with_its_results(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    uint64_t alive = 2;
    set_up(&f, NULL);
    grant(&f, 1, 0, 1, 1, &SHORT[0]);
    expect(&f, &m, WIRE_RESULT);
    grant(&f, 2, 5, 1, 1, &SHORT[2]);
    expect(&f, &m, WIRE_RESULT);
    grant(&f, 3, 20, 1, 1, &LONG[0]);
    await_beat(&f);
    close_router(&f);
    bind_router(&f);
    expect(&f, &m, WIRE_HELLO);
    assert_int_equal(m.hello.leases.n, 3);
    welcome(&f, (wire_list){ &alive, 1 });
    take_results(&f, 2, 1);
    expect_quiet(&f, 1500);
    assert_int_equal(f.last_beat.leases.n, 0);
    assert_int_equal(f.last_beat.running, 0);
    tear_down(&f);
}

static void a_silent_coordinator_hears_hello_again(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    await_beat(&f);
    f.is_mute = true;
    expect(&f, &m, WIRE_HELLO);
    welcome(&f, (wire_list){ 0 });
    f.is_mute = false;
    expect_quiet(&f, 400);
    tear_down(&f);
}

static void a_coordinator_that_forgot_the_worker_gets_its_hello(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    uint64_t lease = 8;
    set_up(&f, NULL);
    grant(&f, lease, 0, 1, 1, &SHORT[0]);
    expect(&f, &m, WIRE_RESULT);
    say(&f, &(wire_msg){ .type = WIRE_BEAT, .beat.say_hello = 1 });
    expect(&f, &m, WIRE_HELLO);
    assert_int_equal(m.hello.leases.n, 1);
    welcome(&f, (wire_list){ &lease, 1 });
    take_results(&f, lease, 1);
    say(&f, &(wire_msg){ .type = WIRE_WELCOME, .welcome = { .accepted = 0, .why = wire_text("no job of yours"), .beat_ms = BEAT_MS } });
    expect_quiet(&f, 400);
    welcome(&f, (wire_list){ 0 });
    grant(&f, 9, 0, 1, 1, &SHORT[0]);
    take_results(&f, 9, 1);
    tear_down(&f);
}

/* None ends before the heartbeat, all within the grace of a drain. */
#ifdef __SANITIZE_THREAD__
#define DRAIN_TOKENS "60"
#elif defined(__SANITIZE_ADDRESS__)
#define DRAIN_TOKENS "400"
#else
#define DRAIN_TOKENS "1500"
#endif
#define DRAIN_ROW(id) "{\"prompt\": [" id "], \"max_tokens\": " DRAIN_TOKENS ", \"ignore_eos\": true, \"n\": 2}"

static void sigterm_finishes_what_runs_then_says_bye(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    static const char *const rows[] = {DRAIN_ROW("5"), DRAIN_ROW("6"), DRAIN_ROW("7")};
    set_up(&f, NULL);
    grant(&f, 1, 0, 2, 3, rows);
    await_beat(&f);
    kill(f.pid, SIGTERM);
    int n_results = 0, n_handed = 0;
    do {
        assert_true(next_within(&f, &m, WAIT_MS));
        if (m.type == WIRE_RESULT) {
            answer(&f, 1, m.result.row, m.result.sample, WIRE_COMMITTED);
            if (++n_results == 3) grant(&f, 2, 9, 1, 1, &SHORT[0]);      /* crossed the drain on its way */
        } else if (m.type == WIRE_HANDBACK) {
            assert_int_equal(m.handback.lease, 2);
            assert_int_equal(m.handback.reason, WIRE_HAND_DRAIN);
            n_handed++;
        }
    } while (m.type != WIRE_BYE);
    assert_int_equal(n_results, 6);
    assert_true(n_handed <= 1);                  /* none when the grant came after the last answer */
    assert_int_equal(exit_status(&f, WAIT_MS), 0);
    assert_int_equal(f.last_beat.draining, 1);
    tear_down(&f);
}

static void a_second_sigterm_hands_back_at_once(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 20, 2, 2, LONG);
    await_beat(&f);
    kill(f.pid, SIGTERM);
    expect_quiet(&f, 500);
    kill(f.pid, SIGTERM);
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.lease, 1);
    assert_int_equal(m.handback.reason, WIRE_HAND_DRAIN);
    expect(&f, &m, WIRE_BYE);
    assert_int_equal(exit_status(&f, 5000), 0);
    tear_down(&f);
}

static void stop_from_the_coordinator_drains_too(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    set_up(&f, NULL);
    grant(&f, 1, 20, 1, 1, LONG);
    await_beat(&f);
    say(&f, &(wire_msg){ .type = WIRE_STOP, .stop.drain = 0 });
    expect(&f, &m, WIRE_HANDBACK);
    assert_int_equal(m.handback.reason, WIRE_HAND_DRAIN);
    expect(&f, &m, WIRE_BYE);
    assert_int_equal(exit_status(&f, WAIT_MS), 0);
    tear_down(&f);
}

static void the_engine_dies_with_its_worker(void **state)
{
    (void)state;
    fleet f;
    set_up(&f, NULL);
    pid_t engine = engine_pid(&f, 0);
    kill(f.pid, SIGKILL);
    waitpid(f.pid, NULL, 0);
    f.pid = 0;
    int64_t end = fl_awake_ms() + WAIT_MS;
    while (kill(engine, 0) == 0 && fl_awake_ms() < end) {
        char path[64], line[64] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", (int)engine);
        FILE *file = fopen(path, "r");
        if (file) {
            char *got = fgets(line, sizeof line, file);
            fclose(file);
            if (got && strstr(line, ") Z ")) break;              /* dead, and nobody here collects it */
        }
        sleep_ms(5);
    }
    assert_true(fl_awake_ms() < end);
    tear_down(&f);
}

static void the_id_table_comes_when_it_is_wanted(void **state)
{
    (void)state;
    fleet f;
    wire_msg m;
    fl_detok *table = NULL;
    set_up(&f, NULL);
    say(&f, &(wire_msg){ .type = WIRE_WELCOME, .welcome = { .accepted = 1, .beat_ms = BEAT_MS, .want_detok = 1 } });
    expect(&f, &m, WIRE_DETOK);
    assert_int_equal(fl_detok_decode(&table, m.parts[0].data, m.parts[0].bytes, NULL), FL_OK);
    assert_int_equal(fl_detok_vocab(table), f.n_vocab);
    fl_detok_free(table);
    tear_down(&f);
}

static void a_worker_and_its_engine_stay_small(void **state)
{
    (void)state;
    fleet f;
    set_up(&f, NULL);
    for (uint64_t i = 0; i < 20; i++) {
        grant(&f, 1 + i, i * 3, 1, 3, SHORT);
        take_results(&f, 1 + i, 3);
    }
    long worker_kb = peak_kb(f.pid), engine_kb = peak_kb(engine_pid(&f, 0));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(worker_kb + engine_kb, 1, 200 * 1024);
#endif
    print_message("worker %ld kB, engine %ld kB\n", worker_kb, engine_kb);
    tear_down(&f);
}

static int run_to_its_end(const char *const *args)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execv(BIN_DIR "/tokenfleet-worker", (char **)(uintptr_t)args);
        _exit(99);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void what_cannot_work_is_said_by_the_exit_status(void **state)
{
    (void)state;
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "ipc:///tmp/nobody-listens-here", "--model", "/nonexistent/model", NULL}), 3);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "tcp://10.1.2.3:5000", "--model", "demo", NULL}), 2);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "nonsense", "--model", "demo", NULL}), 2);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--model", "demo", NULL}), 2);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "tcp://127.0.0.1:1", "--model", "demo", "--roles", "grade,sing", NULL}), 2);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "tcp://127.0.0.1:1", "--model", "demo", "--device", "cuda:0", NULL}), 3);
    assert_int_equal(run_to_its_end((const char *const[]){"w", "--connect", "tcp://127.0.0.1:1", "--model", "demo", "--threads", "many", NULL}), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_result_arrives_until_it_is_answered_and_not_after),
        cmocka_unit_test(every_fate_empties_the_outbox),
        cmocka_unit_test(prompt_ids_travel_with_sample_0_alone),
        cmocka_unit_test(a_repeated_grant_is_worked_on_once),
        cmocka_unit_test(bad_rows_are_row_errors_with_their_reason),
        cmocka_unit_test(chats_are_rendered_in_the_engine_process),
        cmocka_unit_test(a_row_above_this_workers_context_is_handed_back),
        cmocka_unit_test(a_chat_that_this_machine_cannot_render_is_handed_back),
        cmocka_unit_test(a_killed_engine_hands_its_leases_back_and_comes_again),
        cmocka_unit_test(rows_that_waited_for_an_engine_are_no_suspects),
        cmocka_unit_test(only_a_crash_of_a_row_alone_is_blamed_on_it),
        cmocka_unit_test(revoked_work_stops_and_the_rest_goes_on),
        cmocka_unit_test(a_lease_that_did_not_survive_is_dropped_with_its_results),
        cmocka_unit_test(a_silent_coordinator_hears_hello_again),
        cmocka_unit_test(a_coordinator_that_forgot_the_worker_gets_its_hello),
        cmocka_unit_test(sigterm_finishes_what_runs_then_says_bye),
        cmocka_unit_test(a_second_sigterm_hands_back_at_once),
        cmocka_unit_test(stop_from_the_coordinator_drains_too),
        cmocka_unit_test(the_engine_dies_with_its_worker),
        cmocka_unit_test(the_id_table_comes_when_it_is_wanted),
        cmocka_unit_test(a_worker_and_its_engine_stay_small),
        cmocka_unit_test(what_cannot_work_is_said_by_the_exit_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
