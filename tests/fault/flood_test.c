/* Who sends or asks without end, and reads nothing, is slowed or refused, holds a bounded part of the coordinator's memory, and disturbs nobody else. The flooder is a process of
 * its own, so that what it holds is not ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include "proto/clock.h"
#include "tests/fault/daemon_stub.h"

#define N_QUESTIONS 20000
#define N_FLOOD 3000
#define FLOOD_BYTES (64u << 10)                          /* a result of the flooder */
#define MEMORY_MAX (112u << 20)                          /* more than before: a turn of messages, an inbox of libzmq, what waits for one peer */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_MEMORY_OURS 0                                 /* the sanitizer keeps freed memory for a while */
#else
#define IS_MEMORY_OURS 1
#endif

/* ---- memory ---- */

static size_t resident(void)
{
    unsigned long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

typedef struct { size_t before, most; } memory_watch;

static void watch(memory_watch *m)
{
    size_t now = resident();
    if (now > m->most) m->most = now;
}

static void assert_modest(const memory_watch *m)
{
    if (IS_MEMORY_OURS && m->most > m->before + MEMORY_MAX) fail_msg("%zu MB of memory were taken", (m->most - m->before) >> 20);
}

/* ---- the flooder ---- */

typedef struct { pid_t pid; int go, done; } flooder;     /* done: readable when it has sent everything */

/* It is forked before the daemon has threads (the thread sanitizer insists) and waits for the word. */
static flooder make_flooder(void (*work)(stub *w))
{
    int ends[2], go[2];
    flooder f;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(go), 0);
    f.pid = fork();
    assert_true(f.pid >= 0);
    if (f.pid == 0) {
        stub w;
        char word;
        close(ends[0]);
        close(go[1]);
        if (read(go[0], &word, 1) != 1) _exit(0);
        stub_open(&w, endpoint, 66);
        work(&w);
        if (write(ends[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    close(go[0]);
    f.go = go[1];
    f.done = ends[0];
    fcntl(f.done, F_SETFL, O_NONBLOCK);
    return f;
}

static void flood(const flooder *f)
{
    assert_int_equal(write(f->go, "", 1), 1);
}

static bool has_sent_all(const flooder *f)
{
    char byte;
    return read(f->done, &byte, 1) == 1;
}

static void end_flood(flooder *f)
{
    kill(f->pid, SIGKILL);
    assert_int_equal(waitpid(f->pid, NULL, 0), f->pid);
    close(f->go);
    close(f->done);
}

/* Until the daemon has noticed that the flooder is gone, however long libzmq takes; `other` says that it lives. */
static void bury(coord_daemon *d, stub *other)
{
    for (int64_t until = fl_boot_ms() + WAIT_MS; coord_n_workers(daemon_core(d)) > 1; ) {
        assert_true(fl_boot_ms() < until);
        daemon_child_died(d);
        stub_send(other, &(wire_msg){ .type = WIRE_BEAT });
        for (int64_t probed = fl_boot_ms() + 200; fl_boot_ms() < probed; turn(d)) continue;
    }
}

static void ask_without_end(stub *w)
{
    for (int i = 0; i < N_QUESTIONS; i++) ask(w, "fetch", "out", 0);
}

/* Results of leases that nobody granted, and of nobody's lease again and again. */
static void send_results_without_end(stub *w)
{
    static uint8_t body[FLOOD_BYTES];
    stub_hello(w);
    for (int i = 0; i < N_FLOOD; i++) stub_result(w, &(held){ 0x51, (uint64_t)(i % 7) + 100000, (uint64_t)i % N_GOOD, 0 }, body, sizeof body);
}

/* Pieces of results that never end, of the rows it is granted. */
static void send_pieces_without_end(stub *w)
{
    static uint8_t body[FLOOD_BYTES];
    fl_bytes part = { body, sizeof body };
    stub_hello(w);
    while (w->n_held == 0) {
        stub_read(w);
        poll(NULL, 0, 1);
    }
    for (int i = 0; i < N_FLOOD; i++) {
        const held *h = &w->held[i % w->n_held];
        stub_send(w, &(wire_msg){ .type = WIRE_RESULT, .n_parts = 1, .parts = &part,
                                  .result = { .job = h->job, .lease = h->lease, .row = h->row, .sample = h->sample, .piece = (uint64_t)(i / w->n_held), .n_pieces = 4096 } });
    }
}

/* ---- the tests ---- */

static void make_file_large(const coord_daemon *d, const stored_job *job, off_t n_bytes)
{
    char *path = daemon_output_path(d, job, false);
    assert_int_equal(truncate(path, n_bytes), 0);
    free(path);
}

static void a_client_that_never_reads_holds_a_few_answers_and_slows_nobody(void **unused)
{
    (void)unused;
    stub w, client;
    flooder f = make_flooder(ask_without_end);
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    stub_open(&client, endpoint, 78);
    serve_to_the_end(d, job, &w);
    make_file_large(d, job, 3 << 20);                    /* a piece is 1 MB */
    memory_watch memory = { .before = resident() };
    flood(&f);
    int n_heard = 0;
    int64_t slowest_ms = 0;
    for (int64_t until = fl_boot_ms() + WAIT_MS; !has_sent_all(&f); n_heard++) {
        int64_t asked_ms = fl_boot_ms();
        assert_true(asked_ms < until);
        ask(&client, "status", "", 0);
        hear(d, &client);
        assert_int_equal(client.reply_status, FL_OK);
        if (fl_boot_ms() - asked_ms > slowest_ms) slowest_ms = fl_boot_ms() - asked_ms;
        watch(&memory);
    }
    for (int i = 0; i < 200; i++, watch(&memory)) turn(d);
    queue_figures unsent = daemon_queue_figures(d).unsent;
    assert_true(unsent.high_water >= SERVICE_UNREAD_BYTES_MAX && unsent.high_water < SERVICE_UNREAD_BYTES_MAX + 4 * SERVICE_PIECE_BYTES);
    assert_true(unsent.depth > 0 && n_heard > 0);
    assert_modest(&memory);
    const json_t *queues = json_object_get(client.reply, "queues"), *first = json_array_get(queues, 0);
    assert_int_equal(json_array_size(queues), 7);
    assert_string_equal(json_string_value(json_object_get(first, "queue")), "messages to one peer");
    assert_true(json_integer_value(json_object_get(first, "high_water")) > 0);
    printf("%d other answers while %d were asked for, the slowest after %lld ms; %zu MB of memory, %llu KB to one peer\n", n_heard, N_QUESTIONS, (long long)slowest_ms,
           (memory.most - memory.before) >> 20, (unsigned long long)unsent.high_water >> 10);
    end_flood(&f);
    for (int64_t until = fl_boot_ms() + WAIT_MS; daemon_queue_figures(d).unsent.depth > 0; turn(d)) assert_true(fl_boot_ms() < until);     /* and gives it back */
    stub_close(&client);
    stop_serving(d, &w);
}

static void a_worker_that_floods_with_results_disturbs_nobody(void **unused)
{
    (void)unused;
    stub w;
    flooder f = make_flooder(send_results_without_end);
    coord_daemon *d = start_daemon();
    stored_job *job = the_job(d);
    stub_open(&w, endpoint, 77);
    memory_watch memory = { .before = resident() };
    flood(&f);
    stub_hello(&w);
    for (int64_t until = fl_boot_ms() + WAIT_MS; !has_sent_all(&f); watch(&memory)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&w);
        stub_work(&w);
    }
    end_flood(&f);
    bury(d, &w);                                         /* what it was granted is free then */
    serve_to_the_end(d, job, &w);
    assert_modest(&memory);
    assert_int_equal(w.n_refused, 0);
    assert_sound(d, job);
    stop_serving(d, &w);
}

/* With a full disk nothing is answered: what a worker sends beyond its credit is dropped, and pieces of results that never end are bounded too. */
static void a_worker_that_floods_while_the_disk_is_full_is_refused_beyond_its_credit(void **unused)
{
    (void)unused;
    stub w;
    flooder f = make_flooder(send_pieces_without_end);
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    int64_t until = fl_boot_ms() + WAIT_MS;
    wait_for_rows(d, &w);
    memory_watch memory = { .before = resident() };
    flood(&f);
    while (coord_partials(daemon_core(d)).depth == 0) {  /* it has rows of its own and sends */
        assert_true(fl_boot_ms() < until);
        turn(d);
    }
    disk_is_full = true;
    stub_work(&w);
    while (!daemon_disk_full(d)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
    }
    while (!has_sent_all(&f)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        watch(&memory);
    }
    for (int i = 0; i < 100; i++, watch(&memory)) turn(d);
    daemon_queues q = daemon_queue_figures(d);
    assert_true(q.not_durable.depth > 0 && q.not_durable.depth <= q.not_durable.capacity);
    assert_modest(&memory);
    end_flood(&f);
    bury(d, &w);
    disk_is_full = false;
    serve_to_the_end(d, job, &w);
    assert_int_equal(daemon_queue_figures(d).not_durable.depth, 0);
    assert_int_equal(coord_partials(daemon_core(d)).depth, 0);
    assert_sound(d, job);
    stop_serving(d, &w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_client_that_never_reads_holds_a_few_answers_and_slows_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_floods_with_results_disturbs_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_floods_while_the_disk_is_full_is_refused_beyond_its_credit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
