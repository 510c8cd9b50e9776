#include "coordinator/run_workers.h"

#include <inttypes.h>
#include <stdlib.h>

fl_status run_workers_note(run_workers *w, const coord_worker_status *now, fl_err *err)
{
    size_t at = 0;
    while (at < w->n && w->v[at].id.v != now->id.v) at++;
    if (at == w->n) {
        run_worker *grown = realloc(w->v, (w->n + 1) * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for a worker's numbers");
        w->v = grown;
        w->n++;
    }
    w->v[at] = (run_worker){ now->id, now->gpu, now->samples_committed, now->prefill_tokens, now->decode_tokens, now->preemptions, now->busy_us };
    return FL_OK;
}

void run_workers_free(run_workers *w)
{
    free(w->v);
    *w = (run_workers){ 0 };
}

static void add(run_worker *sum, const run_worker *one)
{
    sum->samples += one->samples;
    sum->prefill += one->prefill;
    sum->decode += one->decode;
    sum->preemptions += one->preemptions;
    sum->busy_us += one->busy_us;
}

run_worker run_workers_sum(const run_workers *w)
{
    run_worker sum = { 0 };
    for (size_t i = 0; i < w->n; i++) add(&sum, &w->v[i]);
    return sum;
}

json_t *run_workers_json(const run_workers *w)
{
    json_t *list = json_array();
    for (size_t i = 0; i < w->n; i++) json_array_append_new(list, json_pack("{s:I}", "rows", (json_int_t)w->v[i].samples));
    return list;
}

/* The next GPU's number above `after`; -1: there is none. *sum and *n_workers are of its workers. */
static int32_t next_gpu(run_worker *sum, uint64_t *n_workers, const run_workers *w, int32_t after)
{
    int32_t gpu = -1;
    *sum = (run_worker){ 0 };
    *n_workers = 0;
    for (size_t i = 0; i < w->n; i++) if (w->v[i].gpu > after && (gpu < 0 || w->v[i].gpu < gpu)) gpu = w->v[i].gpu;
    for (size_t i = 0; gpu >= 0 && i < w->n; i++) {
        if (w->v[i].gpu != gpu) continue;
        add(sum, &w->v[i]);
        ++*n_workers;
    }
    return gpu;
}

/* Workers that share a GPU wait for each other on it, and each counts that as its own work. */
static double busy_share(const run_worker *sum, double seconds)
{
    const double share = seconds > 0 ? (double)sum->busy_us * 1e-6 / seconds : 0;
    return share < 1 ? share : 1;
}

json_t *run_workers_gpus_json(const run_workers *w, double seconds)
{
    json_t *list = json_array();
    run_worker sum;
    uint64_t n;
    for (int32_t gpu = -1; (gpu = next_gpu(&sum, &n, w, gpu)) >= 0;) {
        json_t *one = json_pack("{s:i, s:I, s:I, s:I, s:I, s:f}", "gpu", (int)gpu, "workers", (json_int_t)n, "rows", (json_int_t)sum.samples, "prefill_tokens", (json_int_t)sum.prefill,
                                "decode_tokens", (json_int_t)sum.decode, "decode_tokens_per_s", seconds > 0 ? (double)sum.decode / seconds : 0.0);
        if (sum.busy_us) json_object_set_new(one, "busy_share", json_real(busy_share(&sum, seconds)));
        json_array_append_new(list, one);
    }
    return list;
}

void run_workers_gpus_print(FILE *f, const run_workers *w, double seconds)
{
    run_worker sum;
    uint64_t n;
    for (int32_t gpu = -1; (gpu = next_gpu(&sum, &n, w, gpu)) >= 0;) {
        fprintf(f, "GPU %d: %" PRIu64 " samples, %" PRIu64 " prompt tokens and %" PRIu64 " others (%.0f tokens/s)", gpu, sum.samples, sum.prefill, sum.decode, seconds > 0 ? (double)sum.decode / seconds : 0.0);
        if (sum.busy_us) fprintf(f, ", busy %.1f %% of the time", busy_share(&sum, seconds) * 100);
        fputc('\n', f);
    }
}
