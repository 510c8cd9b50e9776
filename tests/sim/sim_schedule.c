#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define FORCED_FAULTS 6                  /* in the first seconds of each schedule, beside those that chance brings */

static void make_rows(sim *s, sim_job *j)
{
    uint32_t n_poison = sim_below(s, 3), n_bad = 0;
    j->n_rows = j->n_base = 40 + sim_below(s, SIM_BASE_ROWS_MAX - 39);
    for (uint32_t r = 0; r < j->n_base; r++) {
        uint32_t dice = sim_below(s, 100);
        j->rows[r].n = (uint8_t)(1 + sim_below(s, SIM_N_MAX));
        if (dice < 3) j->rows[r].kind = SIM_ROW_BAD_LINE;
        else if (dice < 8) j->rows[r].kind = SIM_ROW_ERROR_ROW;
        else if (dice < 12) j->rows[r].kind = SIM_ROW_LARGE;
        else if (dice < 16 && n_bad < n_poison) { j->rows[r].kind = SIM_ROW_POISON; n_bad++; }
        if (j->rows[r].kind == SIM_ROW_BAD_LINE) j->rows[r].n = 1;
    }
    if (!sim_chance(s, 400)) return;
    j->n_rows = 2 * j->n_base;
    for (uint32_t r = 0; r < j->n_base; r++) {
        sim_row *grade = &j->rows[j->n_base + r];
        grade->n = j->rows[r].n;
        grade->kind = j->rows[r].kind != SIM_ROW_ERROR_ROW && sim_below(s, 40) == 0 ? SIM_ROW_GRADE_ERROR : SIM_ROW_GRADE;
    }
}

static void make_job(sim *s, int i)
{
    sim_job *j = &s->jobs[i];
    j->id.v = (uint64_t)i + 1;
    make_rows(s, j);
    j->submit_ms = i == 0 ? 0 : sim_below(s, 30000);
    if (sim_chance(s, 150)) j->cancel_ms = j->submit_ms + 1000 + sim_below(s, 40000);
    if (sim_chance(s, 150)) j->expire_ms = j->submit_ms + 1000 + sim_below(s, 60000);
    if (j->expire_ms && sim_chance(s, 300)) j->cancel_ms = j->expire_ms;
    if (sim_chance(s, 100)) j->limits.queue_ms = 3000 + sim_below(s, 20000);
    if (sim_chance(s, 100)) j->limits.run_ms = 4000 + sim_below(s, 20000);
    if (sim_chance(s, 100)) j->limits.total_ms = 10000 + sim_below(s, 40000);
}

static void make_schedule(sim *s)
{
    s->calm_ms = 20000 + sim_below(s, 100000);
    s->next_lease = 1;
    s->n_jobs = 2 + (int)sim_below(s, SIM_JOBS_MAX - 1);
    for (int i = 0; i < s->n_jobs; i++) {
        make_job(s, i);
        sim_at(s, s->jobs[i].submit_ms, SIM_CLIENT, i, CLIENT_SUBMIT, NULL);
        if (s->jobs[i].cancel_ms) sim_at(s, s->jobs[i].cancel_ms, SIM_CLIENT, i, CLIENT_CANCEL, NULL);
    }
    bool is_graded = false;
    for (int i = 0; i < s->n_jobs; i++) is_graded |= s->jobs[i].n_rows > s->jobs[i].n_base;
    int n_models = 3 + (int)sim_below(s, SIM_WORKERS_MAX - SIM_GRADERS - 2);
    s->n_workers = n_models + (is_graded ? SIM_GRADERS : 0);
    for (int i = 0; i < s->n_workers; i++) {
        sim_worker *w = &s->workers[i];
        w->slot = i;
        w->grades = i >= n_models;
        w->has_other_numerics = i >= 2 && sim_chance(s, 150);
        w->context = i == 0 || w->has_other_numerics || sim_chance(s, 300) ? 4000 : 1000;      /* whoever pins a job, one of its kind can hold every row */
        sim_at(s, sim_below(s, 4000), SIM_START_WORKER, i, 0, NULL);
    }
    sim_at(s, 0, SIM_RESTART, 0, 0, NULL);
    sim_at(s, 500, SIM_TICK, 0, 0, NULL);
    sim_at(s, 1000, SIM_MISCHIEF, 0, 0, NULL);
    for (int i = 0; i < FORCED_FAULTS; i++) sim_at(s, 500 + sim_below(s, 5000), SIM_MISCHIEF, 0, 1 + sim_below(s, 8), NULL);
}

static void drain_coordinator(sim *s)
{
    if (!s->is_up || s->is_draining) return;
    sim_hit(s, SIM_COORDINATOR_DRAINED);
    s->is_draining = true;
    sim_shell_take(s, &(event){ .type = EVENT_DRAIN, .drain = sim_chance(s, 700) }, NULL);
    if (sim_chance(s, 100)) sim_at(s, s->now_ms + 200, SIM_CLIENT, (int)sim_below(s, (uint32_t)s->n_jobs), CLIENT_CANCEL, NULL);
    sim_at(s, s->now_ms + 500 + sim_below(s, 8000), SIM_STOPPED, 0, 0, NULL);
}

static void do_fault(sim *s, uint64_t which)
{
    sim_worker *w = &s->workers[sim_below(s, (uint32_t)s->n_workers)];
    switch (which) {
    case 1:
        if (!w->is_alive) break;
        sim_hit(s, SIM_WORKER_KILLED);
        if (sim_chance(s, 500)) sim_at(s, s->now_ms + 100 + sim_below(s, 500), SIM_WORKER_DEATH_SEEN, w->slot, w->id, NULL);
        sim_worker_kill(s, w);
        break;
    case 2:
        sim_hit(s, SIM_LINK_CUT);
        sim_worker_cut(s, w, 0, true);
        break;
    case 3:
        sim_hit(s, SIM_PARTITION);
        sim_worker_cut(s, w, sim_below(s, 4 * SIM_TERM_MS), true);
        break;
    case 4:
        s->disk_full_until_ms = s->now_ms + 500 + sim_below(s, 8000);
        break;
    case 5:
        sim_hit(s, SIM_SLOW_DISK);
        s->slow_disk_until_ms = s->now_ms + sim_below(s, 8000);
        break;
    case 6:
        sim_hit(s, SIM_CLOCK_JUMP);
        s->jump_ms += sim_below(s, 2 * SIM_TERM_MS);
        break;
    case 7:
        sim_worker_preempt(s, w);
        break;
    default:
        drain_coordinator(s);
    }
}

static void do_mischief(sim *s, uint64_t forced)
{
    static const struct { uint64_t which; uint32_t in_1000; } chances[] = { { 1, 50 }, { 2, 40 }, { 3, 20 }, { 4, 15 }, { 5, 15 }, { 6, 6 }, { 7, 5 }, { 8, 6 } };
    if (forced) {
        const uint64_t before = sim_faults(s);
        do_fault(s, forced);
        if (sim_faults(s) == before) sim_at(s, s->now_ms + 300, SIM_MISCHIEF, 0, 1 + forced % 8, NULL);      /* nobody was there to suffer it: another one, a little later */
        return;
    }
    if (s->now_ms < s->calm_ms) sim_at(s, s->now_ms + 300 + sim_below(s, 700), SIM_MISCHIEF, 0, 0, NULL);
    for (size_t i = 0; i < sizeof chances / sizeof *chances; i++) {
        if (!sim_trouble(s, chances[i].in_1000)) continue;
        do_fault(s, chances[i].which);
        return;
    }
}

static void deliver(sim *s, sim_item *item)
{
    sim_worker *w = &s->workers[item->slot];
    sim_packet *p = item->packet;
    bool is_there = item->kind == SIM_TO_WORKER ? w->is_alive : w->id == p->worker;      /* what a worker said before it left still arrives */
    if (!is_there || w->connection != p->connection) {           /* lost with its connection */
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
    if (!s->is_up || s->is_kept || s->is_draining || s->leases.n > 0 || s->actions.appends.n > 0 || s->n_inbox > 0) return false;
    for (int i = 0; i < s->n_jobs; i++)
        if (!s->jobs[i].is_deleted && (!s->jobs[i].is_closed || s->jobs[i].journal_state == JOB_OPEN || !s->jobs[i].has_outputs)) return false;
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].is_alive && s->workers[i].n_tasks > 0) return false;
    return true;
}

static void tick(sim *s)
{
    sim_at(s, s->now_ms + 500, SIM_TICK, 0, 0, NULL);
    if (!s->is_up) return;
    sim_client_expire(s, false);
    if (sim_chance(s, 200)) sim_audit_counts(s);
    sim_shell_take(s, &(event){ .type = EVENT_TICK }, NULL);
}

static void play(sim *s)
{
    sim_item item;
    int64_t end_ms = s->calm_ms + 60 * 60 * 1000;        /* what is not done by then hangs */
    while (!s->violation[0] && sim_next(s, &item)) {
        s->now_ms = item.at;
        sim_worker *w = &s->workers[item.slot];
        switch (item.kind) {
        case SIM_TO_COORDINATOR: case SIM_TO_WORKER: deliver(s, &item); break;
        case SIM_POLL_WORKER: if (w->id == item.number) sim_worker_poll(s, w); break;
        case SIM_TURN: sim_shell_turn(s); break;
        case SIM_RESTART: sim_shell_start(s); break;
        case SIM_STOPPED: if (s->is_up && s->is_draining) sim_shell_die(s); break;
        case SIM_START_WORKER: sim_worker_start(s, w); break;
        case SIM_WORKER_DEATH_SEEN:
            sim_hit(s, SIM_WORKER_KILL_SEEN);
            sim_shell_take(s, &(event){ .type = EVENT_WORKER_GONE, .worker = { item.number } }, NULL);
            break;
        case SIM_MISCHIEF: do_mischief(s, item.number); break;
        case SIM_CLIENT: sim_client(s, &s->jobs[item.slot], (sim_wish)item.number); break;
        case SIM_OUTPUTS: if (s->jobs[item.slot].n_retries == (int)item.number) sim_client_outputs(s, &s->jobs[item.slot]); break;
        case SIM_TICK:
            if ((is_over(s) && sim_faults(s) >= SIM_FAULTS_MIN) || s->now_ms > end_ms) {
                sim_audit_end(s);
                return;
            }
            tick(s);
            break;
        }
    }
}

bool sim_play(uint64_t seed, bool is_verbose, uint64_t hits[SIM_HIT_COUNT], char violation[512])
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
    for (int i = 0; i < SIM_HIT_COUNT; i++) hits[i] += s->hits[i];
    for (size_t i = 0; i < s->n_heap; i++) sim_packet_free(s->heap[i].packet);
    for (int i = 0; i < s->n_jobs; i++) sim_ledger_free(&s->jobs[i].ledger);
    for (int i = 0; i < s->n_workers; i++) free(s->workers[i].tasks);
    free(s->leases.v);
    free(s->live.v);
    action_list_fini(&s->actions);
    free(s->inbox);
    free(s->inbox_packets);
    free(s->heap);
    free(s);
    return ok;
}
