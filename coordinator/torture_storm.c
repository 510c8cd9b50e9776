#include "coordinator/torture_storm.h"

#define WORKERS_A_KILL 2
#define FULL_MS 4000                     /* longer than the coordinator's pause between tries */
#define SPACE_GRACE_MS 5000              /* after that, for a coordinator that met the full disk to have ended */

static const struct { const char *name; int64_t every_ms, first_ms; } kinds[] = {
#define TORTURE_STORM_ROW(kind, name, every, first) { name, every, first },
    TORTURE_STORM_TABLE(TORTURE_STORM_ROW)
#undef TORTURE_STORM_ROW
};

const char *storm_kind_name(storm_kind kind)
{
    return kinds[kind].name;
}

uint64_t torture_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static int64_t between(torture_storm *s, int64_t least, int64_t most)
{
    return least + (int64_t)(torture_random(&s->random) % (uint64_t)(most - least + 1));
}

void torture_storm_begin(torture_storm *s, torture_fleet *fleet, uint64_t seed, int64_t now_ms)
{
    *s = (torture_storm){ .fleet = fleet, .random = seed };
    for (int i = 0; i < STORM_KINDS; i++) s->due_ms[i] = now_ms + kinds[i].first_ms + between(s, 0, 500);
    if (!fleet->lab->disk[0]) s->due_ms[STORM_FILL_DISK] = 0;
}

static fl_status cut_link(torture_storm *s, int64_t now_ms, bool *happened, fl_err *err)
{
    int host = (int)between(s, 0, s->fleet->lab->n_hosts - 1);
    int64_t until = now_ms + between(s, 0, 3) * 3000 + between(s, 300, 2000);    /* some beyond the lease term */
    *happened = s->mend_ms[host] == 0;
    if (!*happened) return FL_OK;
    s->mend_ms[host] = until;
    return torture_lab_cut(s->fleet->lab, host, true, err);
}

static fl_status fill_disk(torture_storm *s, int64_t now_ms, fl_err *err)
{
    s->space_ms = now_ms + FULL_MS;
    s->fleet->may_lack_space = true;
    return torture_lab_fill(s->fleet->lab, true, err);
}

static fl_status disturb(torture_storm *s, storm_kind kind, int64_t now_ms, fl_err *err)
{
    torture_fleet *f = s->fleet;
    fl_status st = FL_OK;
    bool happened = true;
    uint64_t choice = torture_random(&s->random);
    switch (kind) {
    case STORM_KILL_WORKERS:
        for (int i = 0; i < WORKERS_A_KILL; i++) s->n[kind] += torture_kill_worker(f, torture_random(&s->random), now_ms + between(s, 0, 500));
        happened = false;                                /* counted */
        break;
    case STORM_KILL_ENGINE: happened = torture_kill_engine(f, choice); break;
    case STORM_STOP_WORKER: happened = torture_stop_worker(f, choice, now_ms + between(s, 300, 9000)); break;
    case STORM_DRAIN_WORKER: happened = torture_drain_worker(f, choice, now_ms); break;
    case STORM_KILL_COORD: happened = torture_kill_coordinator(f, now_ms + between(s, 0, 1500)); break;
    case STORM_STOP_COORD: happened = torture_stop_coordinator(f, now_ms + between(s, 300, 3000)); break;
    case STORM_DRAIN_COORD: happened = torture_drain_coordinator(f, now_ms); break;
    case STORM_CUT_LINK: st = cut_link(s, now_ms, &happened, err); break;
    case STORM_RESET_LINK: torture_lab_reset(f->lab, (int)between(s, 0, f->lab->n_hosts - 1)); break;
    case STORM_FILL_DISK: st = fill_disk(s, now_ms, err); break;
    case STORM_KINDS: break;
    }
    s->n[kind] += happened;
    return st;
}

/* What was begun and is over. */
static fl_status mend(torture_storm *s, int64_t now_ms, fl_err *err)
{
    fl_status st = FL_OK;
    for (int h = 0; st == FL_OK && h < s->fleet->lab->n_hosts; h++) {
        if (!s->mend_ms[h] || now_ms < s->mend_ms[h]) continue;
        s->mend_ms[h] = 0;
        st = torture_lab_cut(s->fleet->lab, h, false, err);
    }
    if (st == FL_OK && s->space_ms && now_ms >= s->space_ms) {
        bool is_first = s->fleet->may_lack_space && now_ms < s->space_ms + SPACE_GRACE_MS;
        if (is_first) st = torture_lab_fill(s->fleet->lab, false, err);
        else {
            s->space_ms = 0;
            s->fleet->may_lack_space = false;
        }
    }
    return st;
}

fl_status torture_storm_blow(torture_storm *s, int64_t now_ms, fl_err *err)
{
    fl_status st = mend(s, now_ms, err);
    for (int i = 0; st == FL_OK && i < STORM_KINDS; i++) {
        if (!s->due_ms[i] || now_ms < s->due_ms[i]) continue;
        st = disturb(s, (storm_kind)i, now_ms, err);
        s->due_ms[i] = kinds[i].every_ms ? now_ms + kinds[i].every_ms : 0;
    }
    return st;
}

fl_status torture_storm_calm(torture_storm *s, int64_t now_ms, fl_err *err)
{
    torture_fleet *f = s->fleet;
    for (int i = 0; i < STORM_KINDS; i++) s->due_ms[i] = 0;
    for (int h = 0; h < TORTURE_HOSTS_MAX; h++) s->mend_ms[h] = s->mend_ms[h] ? now_ms : 0;
    if (s->space_ms > now_ms) s->space_ms = now_ms;
    for (int i = 0; i < f->n_workers; i++) f->workers[i].continue_ms = f->workers[i].continue_ms ? now_ms : 0;
    f->coordinator.continue_ms = f->coordinator.continue_ms ? now_ms : 0;
    return mend(s, now_ms, err);
}
