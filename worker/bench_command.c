#include "worker/bench_command.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "proto/demo_path.h"
#include "worker/bench_device.h"
#include "worker/bench_job.h"
#include "worker/bench_options.h"
#include "worker/bench_report.h"
#include "worker/bench_sampler.h"
#include "worker/bench_steps.h"
#include "worker/worker_options.h"

static const struct {
    fl_status (*run)(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err);
    void (*print)(const json_t *report);
} kinds[BENCH_KINDS] = {
    [BENCH_PREFILL] = { bench_prefill_run, bench_prefill_print },
    [BENCH_DECODE] = { bench_decode_run, bench_decode_print },
    [BENCH_JOB] = { bench_job_run, bench_job_print },
    [BENCH_SAMPLER] = { bench_sampler_run, bench_sampler_print },
};

static fl_status run_bench(json_t *report, const bench_options *o, fl_err *err)
{
    bench_rates rates;
    char path[PATH_MAX];
    fl_status st = fl_model_path(o->model, path, sizeof path, err);
    if (st == FL_OK) st = bench_device_measure(&rates, o, err);
    if (st != FL_OK) return st;
    json_object_update_new(report, json_pack("{s:s, s:s, s:s, s:f, s:f}", "bench", o->kind_name, "device", o->device, "kernels", rates.kernels, "copy_bytes_per_s", rates.copy_bytes_per_s,
                                             "product_flop_per_s", rates.product_flop_per_s));
    if (o->kind != BENCH_SAMPLER) json_object_set_new(report, "model", json_string(o->model));
    return kinds[o->kind].run(report, o, path, &rates, err);
}

static bool print_report(const json_t *report, const bench_options *o)
{
    if (o->as_json) {
        if (json_dumpf(report, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6)) == 0) putchar('\n');
    } else {
        printf("%s%s%s on %s: a copy moves %.1f GB/s, a product does %.1f TFLOP/s\n", o->kind_name, o->kind == BENCH_SAMPLER ? "" : " of ", report_text(report, "model"), report_text(report, "kernels"),
               report_real(report, "copy_bytes_per_s") / 1e9, report_real(report, "product_flop_per_s") / 1e12);
        kinds[o->kind].print(report);
    }
    return fflush(stdout) == 0 && !ferror(stdout);
}

int bench_command(int argc, char **argv)
{
    bench_options o;
    fl_err err = { 0 };
    const int status = bench_options_parse(&o, argc, argv);
    if (status >= 0) return status;
    json_t *report = json_object();
    fl_status st = run_bench(report, &o, &err);
    if (st == FL_OK && !print_report(report, &o)) st = fl_fail(&err, FL_IO, "the report cannot be written to standard output");
    const bool differs = json_is_false(json_object_get(report, "same_bits"));
    json_decref(report);
    if (st == FL_OK) return differs ? WORKER_ENDED_FAILED : WORKER_ENDED_WELL;
    fprintf(stderr, "tokenfleet-worker bench: %s\n", err.text);
    return st == FL_INVALID || st == FL_NOT_FOUND ? WORKER_ENDED_USAGE : st == FL_GPU || st == FL_CORRUPT ? WORKER_ENDED_FAILED : WORKER_ENDED_ENVIRONMENT;
}
