/* The simulator: sim_test [--schedules N] [--from SEED] [--seed SEED]. Without arguments 2,000 schedules from seed 1. A schedule that breaks a rule
 * prints its seed; --seed SEED plays it again and shows every step. sim.h says how it works. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void make_job(sim *s, int i)
{
    sim_job *j = &s->jobs[i];
    j->id.v = (uint64_t)i + 1;
    j->n_rows = 40 + sim_below(s, 21);
    j->rows = calloc(j->n_rows, sizeof *j->rows);
    FL_ASSERT(j->rows);
    uint32_t n_poison = sim_below(s, 3), n_bad = 0;
    for (uint32_t r = 0; r < j->n_rows; r++) {
        uint32_t dice = sim_below(s, 100);
        j->rows[r].n = (uint8_t)(1 + sim_below(s, 4));
        if (dice < 3) j->rows[r].kind = SIM_ROW_BAD_LINE;
        else if (dice < 8) j->rows[r].kind = SIM_ROW_ERROR_ROW;
        else if (dice < 12) j->rows[r].kind = SIM_ROW_LARGE;
        else if (dice < 16 && n_bad < n_poison) { j->rows[r].kind = SIM_ROW_POISON; n_bad++; }
        if (j->rows[r].kind == SIM_ROW_BAD_LINE) j->rows[r].n = 1;
    }
    j->submit_ms = i == 0 ? 0 : sim_below(s, 30000);
    if (sim_chance(s, 150)) j->cancel_ms = j->submit_ms + 1000 + sim_below(s, 40000);
}

static void make_schedule(sim *s)
{
    s->calm_ms = 20000 + sim_below(s, 100000);
    s->next_lease = 1;
    s->n_jobs = 2 + (int)sim_below(s, SIM_JOBS_MAX - 1);
    for (int i = 0; i < s->n_jobs; i++) {
        make_job(s, i);
        sim_at(s, s->jobs[i].submit_ms, SIM_CLIENT, i, 0, NULL);
        if (s->jobs[i].cancel_ms) sim_at(s, s->jobs[i].cancel_ms, SIM_CLIENT, i, 1, NULL);
    }
    s->n_workers = 3 + (int)sim_below(s, SIM_WORKERS_MAX - 2);
    for (int i = 0; i < s->n_workers; i++) {
        sim_worker *w = &s->workers[i];
        w->slot = i;
        w->has_other_numerics = i >= 2 && sim_chance(s, 150);
        w->context = i == 0 || w->has_other_numerics || sim_chance(s, 300) ? 4000 : 1000;      /* whoever pins a job, one of its kind can hold every row */
        sim_at(s, sim_below(s, 4000), SIM_START_WORKER, i, 0, NULL);
    }
    sim_at(s, 0, SIM_RESTART, 0, 0, NULL);
    sim_at(s, 500, SIM_TICK, 0, 0, NULL);
    sim_at(s, 1000, SIM_MISCHIEF, 0, 0, NULL);
}

static void do_mischief(sim *s)
{
    sim_worker *w = &s->workers[sim_below(s, (uint32_t)s->n_workers)];
    if (s->now_ms < s->calm_ms) sim_at(s, s->now_ms + 300 + sim_below(s, 700), SIM_MISCHIEF, 0, 0, NULL);
    if (sim_trouble(s, 50) && w->is_alive) {
        sim_hit(s, SIM_WORKER_KILLED);
        if (sim_chance(s, 500)) sim_at(s, s->now_ms + 100 + sim_below(s, 500), SIM_WORKER_DEATH_SEEN, w->slot, w->id, NULL);
        sim_worker_kill(s, w);
    } else if (sim_trouble(s, 40)) {
        sim_hit(s, SIM_LINK_CUT);
        sim_worker_cut(s, w, 0, true);
    } else if (sim_trouble(s, 20)) {
        sim_hit(s, SIM_PARTITION);
        sim_worker_cut(s, w, sim_below(s, 4 * SIM_TERM_MS), true);
    } else if (sim_trouble(s, 15)) {
        s->disk_full_until_ms = s->now_ms + 500 + sim_below(s, 8000);
    } else if (sim_trouble(s, 15)) {
        sim_hit(s, SIM_SLOW_DISK);
        s->slow_disk_until_ms = s->now_ms + sim_below(s, 8000);
    } else if (sim_trouble(s, 6)) {
        sim_hit(s, SIM_CLOCK_JUMP);
        s->jump_ms += sim_below(s, 2 * SIM_TERM_MS);
    }
}

/* A client's submit or cancel; it tries again while the coordinator is away. */
static void do_client(sim *s, const sim_item *item)
{
    sim_job *j = &s->jobs[item->slot];
    if (!s->is_up || s->is_kept || s->n_inbox > 0 || s->now_ms < s->disk_full_until_ms) {
        sim_at(s, s->now_ms + 700, SIM_CLIENT, item->slot, item->number, NULL);
    } else if (item->number == 0) {
        sim_submit(s, j);
    } else if (!j->is_closed) {
        sim_hit(s, SIM_CANCELLED);
        sim_shell_take(s, &(event){ .type = EVENT_JOB_CLOSE, .job_id = j->id, .cause = LEDGER_CANCELLED }, NULL);
    }
}

static void deliver(sim *s, sim_item *item)
{
    sim_worker *w = &s->workers[item->slot];
    sim_packet *p = item->packet;
    if (!w->is_alive || w->connection != p->connection) {        /* lost with its connection */
        sim_packet_free(p);
    } else if (item->kind == SIM_TO_WORKER) {
        sim_worker_receive(s, w, &p->msg);
        sim_packet_free(p);
    } else {
        sim_shell_take(s, &(event){ .type = EVENT_MESSAGE, .worker = { p->worker } }, p);
    }
}

static bool is_over(const sim *s)
{
    if (!s->is_up || s->is_kept || s->leases.n > 0 || s->actions.appends.n > 0 || s->n_inbox > 0) return false;
    for (int i = 0; i < s->n_jobs; i++)
        if (!s->jobs[i].is_closed || s->jobs[i].journal_state == JOB_OPEN) return false;
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].is_alive && s->workers[i].n_tasks > 0) return false;
    return true;
}

static void play(sim *s)
{
    sim_item item;
    int64_t end_ms = s->calm_ms + 30 * 60 * 1000;
    while (!s->violation[0] && sim_next(s, &item)) {
        s->now_ms = item.at;
        sim_worker *w = &s->workers[item.slot];
        switch (item.kind) {
        case SIM_TO_COORDINATOR: case SIM_TO_WORKER: deliver(s, &item); break;
        case SIM_POLL_WORKER: if (w->id == item.number) sim_worker_poll(s, w); break;
        case SIM_TURN: sim_shell_turn(s); break;
        case SIM_RESTART: sim_shell_start(s); break;
        case SIM_START_WORKER: sim_worker_start(s, w); break;
        case SIM_WORKER_DEATH_SEEN:
            sim_hit(s, SIM_WORKER_KILL_SEEN);
            sim_shell_take(s, &(event){ .type = EVENT_WORKER_GONE, .worker = { item.number } }, NULL);
            break;
        case SIM_MISCHIEF: do_mischief(s); break;
        case SIM_CLIENT: do_client(s, &item); break;
        case SIM_TICK:
            sim_shell_take(s, &(event){ .type = EVENT_TICK }, NULL);
            sim_at(s, s->now_ms + 500, SIM_TICK, 0, 0, NULL);
            if (is_over(s) || s->now_ms > end_ms) {
                sim_see_end(s);
                return;
            }
            break;
        }
    }
}

/* One schedule. False: it broke a rule, which is in `violation`. */
static bool run_schedule(uint64_t seed, bool is_verbose, uint64_t hits[SIM_FAULT_COUNT], char violation[512])
{
    sim *s = calloc(1, sizeof *s);
    FL_ASSERT(s);
    s->seed = s->random = seed;
    s->is_verbose = is_verbose;
    action_list_init(&s->actions);
    make_schedule(s);
    play(s);
    sim_shell_stop(s);
    bool ok = s->violation[0] == 0;
    memcpy(violation, s->violation, sizeof s->violation);
    for (int i = 0; i < SIM_FAULT_COUNT; i++) hits[i] += s->hits[i];
    for (size_t i = 0; i < s->n_heap; i++) sim_packet_free(s->heap[i].packet);
    for (int i = 0; i < s->n_jobs; i++) {
        free(s->jobs[i].rows);
        sim_ledger_free(&s->jobs[i].ledger);
    }
    for (int i = 0; i < s->n_workers; i++) free(s->workers[i].tasks);
    sim_leases_free(&s->leases);
    sim_leases_free(&s->live);
    action_list_fini(&s->actions);
    free(s->inbox);
    free(s->inbox_packets);
    free(s->heap);
    free(s);
    return ok;
}

/* Every fault must have happened, or the schedules prove less than they say. */
static int report_hits(const uint64_t hits[SIM_FAULT_COUNT])
{
    static const char *const names[] = {
#define NAME(name) #name,
        SIM_FAULTS(NAME)
    };
    int n_missed = 0;
    for (int i = 0; i < SIM_FAULT_COUNT; i++) {
        printf("%-22s %10" PRIu64 "%s", names[i], hits[i], i % 3 == 2 ? "\n" : "  ");
        if (hits[i] == 0) n_missed++;
    }
    putchar('\n');
    for (int i = 0; i < SIM_FAULT_COUNT; i++)
        if (hits[i] == 0) printf("never happened: %s\n", names[i]);
    return n_missed;
}

int main(int argc, char **argv)
{
    uint64_t n = 2000, from = 1, hits[SIM_FAULT_COUNT] = { 0 };
    bool is_one = false;
    char violation[512];
    for (int i = 1; i < argc; i += 2) {                  /* name, number */
        char *end = NULL;
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], &end, 10) : 0;
        bool is_number = end && end != argv[i + 1] && *end == 0;
        if (is_number && strcmp(argv[i], "--schedules") == 0) n = value;
        else if (is_number && strcmp(argv[i], "--from") == 0) from = value;
        else if (is_number && strcmp(argv[i], "--seed") == 0) { from = value; n = 1; is_one = true; }
        else { fprintf(stderr, "usage: sim_test [--schedules N] [--from SEED] [--seed SEED]\n"); return 2; }
    }
    clock_t begin = clock();
    for (uint64_t k = 0; k < n; k++) {
        if (run_schedule(from + k, is_one, hits, violation)) continue;
        printf("FAILED after %" PRIu64 " schedules: seed %" PRIu64 ": %s\nplay it again: sim_test --seed %" PRIu64 "\n", k + 1, from + k, violation, from + k);
        return 1;
    }
    int n_missed = report_hits(hits);
    printf("%" PRIu64 " schedules without a violation in %.1f s of CPU\n", n, (double)(clock() - begin) / CLOCKS_PER_SEC);
    return n >= 500 && n_missed > 0;
}
