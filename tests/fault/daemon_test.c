/* The daemon with a stub worker over a real ipc socket, in one process: a job from submit to output; the daemon killed at its n-th sync, for every n, and
 * started again; a full disk; a worker that sends nonsense. write, pwrite and fdatasync of this program stand before the C library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proto/clock.h"
#include "tests/fault/daemon_stub.h"

/* ---- the tests ---- */

static void a_job_is_served_to_its_end_and_every_result_is_answered(void **unused)
{
    (void)unused;
    stub w;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
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
    stop_serving(d, &w);
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
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    int64_t until = fl_boot_ms() + WAIT_MS;
    wait_for_rows(d, &w);
    disk_is_full = true;
    int answered = w.n_answers;
    stub_work(&w);
    while (!daemon_disk_full(d)) {
        assert_true(fl_boot_ms() < until);
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
    stop_serving(d, &w);
}

/* The closing record is durable, the journal has no room: to clients the job runs on until its end can be performed, and nobody is shown files that are not there. */
static void a_job_whose_end_waits_for_the_journal_is_not_ended_to_clients(void **unused)
{
    (void)unused;
    stub w, client;
    fl_err err;
    char got[65536];
    size_t n_got = 0;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    stub_open(&client, endpoint, 78);
    for (int64_t until = fl_boot_ms() + WAIT_MS; w.n_committed == 0; stub_read(&w)) {
        assert_true(fl_boot_ms() < until);
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
    stop_serving(d, &w);
}

/* The files of a running job that is fetched find no room: the writer takes them away and ends; the client waits, and goes on where it was. */
static void a_fetch_waits_for_files_that_a_full_disk_took_away(void **unused)
{
    (void)unused;
    stub w, client;
    char got[65536], temporary[400];
    size_t n_got = 0;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    stub_open(&client, endpoint, 78);
    for (int64_t until = fl_boot_ms() + WAIT_MS; n_got == 0; stub_read(&w)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        if (w.n_sent == 0) stub_work(&w);
        if (w.n_committed > 0) fetch_more(d, &client, got, &n_got);
    }
    snprintf(temporary, sizeof temporary, "%s/out.jsonl.tmp-job-0000000000000051", job->dir);
    assert_int_equal(access(temporary, F_OK), 0);
    full_for = ".tmp-job-";
    int committed = w.n_committed;
    for (int64_t until = fl_boot_ms() + WAIT_MS; w.n_committed == committed; stub_read(&w)) {
        assert_true(fl_boot_ms() < until);
        stub_work(&w);
        turn(d);
    }
    for (int64_t until = fl_boot_ms() + WAIT_MS; access(temporary, F_OK) == 0; poll(NULL, 0, 1)) assert_true(fl_boot_ms() < until);
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
    for (int64_t until = fl_boot_ms() + WAIT_MS; !is_whole(&client) || client.part_bytes > 0; stub_work(&w)) {
        assert_true(fl_boot_ms() < until);
        fetch_more(d, &client, got, &n_got);
        stub_read(&w);
    }
    char *out = output_of(d, job, false);
    assert_string_equal(got, out);
    assert_sound(d, job);
    free(out);
    stub_close(&client);
    stop_serving(d, &w);
}

static void a_daemon_that_ends_on_a_full_disk_loses_nothing_that_was_answered(void **unused)
{
    (void)unused;
    char *reference = run_once();
    fixture_remove(spool_at);
    stub w;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    int64_t until = fl_boot_ms() + WAIT_MS;
    while (w.n_committed == 0) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&w);
        stub_work(&w);
    }
    disk_is_full = true;
    while (!daemon_disk_full(d)) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&w);
        stub_work(&w);
    }
    stop_serving(d, &w);
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
    int64_t until = fl_boot_ms() + WAIT_MS;
    while (w.n_held == 0 || stranger.n_hello_wanted == 0) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&w);
        stub_read(&stranger);
    }
    stub_result(&w, &w.held[0], (const uint8_t *)"no result", 9);
    w.n_sent--;
    while (w.n_refused == 0) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&w);
    }
    serve_to_the_end(d, job, &w);
    assert_sound(d, job);
    stub_close(&stranger);
    stop_serving(d, &w);
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
    int64_t until = fl_boot_ms() + WAIT_MS;
    while (dead.n_held == 0) {
        assert_true(fl_boot_ms() < until);
        turn(d);
        stub_read(&dead);
    }
    stub_close(&dead);
    daemon_child_died(d);
    stub_open(&w, endpoint, 77);
    stub_hello(&w);
    serve_to_the_end(d, job, &w);                        /* well before the lease's term */
    assert_true(fl_boot_ms() < until);
    assert_sound(d, job);
    stop_serving(d, &w);
}

static void a_cancelled_job_is_closed_with_what_was_committed(void **unused)
{
    (void)unused;
    stub w;
    fl_err err;
    stored_job *job;
    coord_daemon *d = start_serving(&job, &w);
    int64_t until = fl_boot_ms() + WAIT_MS;
    while (w.n_committed == 0) {
        assert_true(fl_boot_ms() < until);
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
    stop_serving(d, &w);
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
