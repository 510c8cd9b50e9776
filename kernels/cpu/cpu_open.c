/* cpu_open.c - choose the form of the CPU kernels and start their threads. */
#include "kernels/cpu/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    const char *key, *name;              /* as TOKENFLEET_KERNELS says it; as ops.name says it */
    const char *needs;
    void (*install)(ops *o);
} cpu_form;

#define FORM_INSTALL(form) \
    static void form##_install(ops *o) \
    { \
        linear_install_##form(o); \
        norm_install_##form(o); \
        rows_install_##form(o); \
        attention_install_##form(o); \
        delta_install_##form(o); \
        moe_install_##form(o); \
    }
CPU_FORMS(FORM_INSTALL)

/* Worst to best. */
static const cpu_form forms[] = {
    { "scalar", "cpu-scalar", "AVX2, FMA and F16C", scalar_install },          /* its fmaf is the FMA instruction */
    { "avx2",   "cpu-avx2",   "AVX2, FMA and F16C", avx2_install },
    { "avx512", "cpu-avx512", "AVX-512 F, BW, DQ and VL", avx512_install },
};
enum { FORM_COUNT = sizeof forms / sizeof *forms };

static bool form_runs_here(const cpu_form *f)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();                                            /* asks the system too: its context switches must keep the registers */
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    if (strcmp(f->key, "avx512") != 0) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static fl_status form_choose(const cpu_form **out, fl_err *err)
{
    if (!form_runs_here(&forms[0])) return fl_fail(err, FL_UNSUPPORTED, "kernels: this CPU lacks AVX2, FMA or F16C; use a machine with an x86-64-v3 CPU or a GPU");
    const char *wanted = getenv("TOKENFLEET_KERNELS");
    for (int32_t i = FORM_COUNT - 1; i >= 0; i--) {
        if (wanted && *wanted) {
            if (strcmp(wanted, forms[i].key) != 0) continue;
            if (!form_runs_here(&forms[i])) return fl_fail(err, FL_INVALID, "kernels: TOKENFLEET_KERNELS=%s needs %s, which this CPU lacks; unset it", wanted, forms[i].needs);
        } else if (!form_runs_here(&forms[i])) {
            continue;
        }
        *out = &forms[i];
        return FL_OK;
    }
    return fl_fail(err, FL_INVALID, "kernels: TOKENFLEET_KERNELS is '%s'; say scalar, avx2 or avx512, or unset it", wanted);
}

static int32_t cores_of_process(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;       /* more than 1,024 CPUs: the caller can say how many */
    int32_t n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

static fl_status cpu_take(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    (void)o;
    *out = NULL;
    if (n_bytes == 0) return FL_OK;
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fl_fail(err, FL_FULL, "kernels: no memory for %s (%zu bytes)", what, n_bytes);
    *out = memory;
    return FL_OK;
}

static void cpu_give(ops *o, void *memory, size_t n_bytes)
{
    (void)o;
    if (memory) munmap(memory, n_bytes);
}

static void cpu_upload(ops *o, void *to, const void *from, size_t n_bytes) { (void)o; memcpy(to, from, n_bytes); }
static void cpu_download(ops *o, void *to, const void *from, size_t n_bytes) { (void)o; memcpy(to, from, n_bytes); }
static fl_status cpu_finish(ops *o, fl_err *err) { (void)o; (void)err; return FL_OK; }
static void cpu_begin(ops *o, const ops_batch *b) { (void)o; (void)b; }

static void cpu_close(ops *o)
{
    ops_cpu *c = (ops_cpu *)o;
    cpu_pool_close(c->pool);
    free(c);
}

fl_status ops_cpu_open(ops **out, int32_t n_threads, fl_err *err)
{
    const cpu_form *form = NULL;
    fl_status st = form_choose(&form, err);
    if (st != FL_OK) return st;
    if (n_threads < 0) return fl_fail(err, FL_INVALID, "kernels: %d threads; give 1 or more, or 0 for all cores", n_threads);
    if (n_threads == 0) n_threads = cores_of_process();
    ops_cpu *c = calloc(1, sizeof *c);
    if (!c) return fl_fail(err, FL_FULL, "kernels: no memory to open");
    if (n_threads > 1 && (st = cpu_pool_open(&c->pool, n_threads, err)) != FL_OK) { free(c); return st; }
    form->install(&c->table);
    c->table.name = form->name;
    c->table.act_bytes = sizeof(act);
    c->table.take = cpu_take;
    c->table.give = cpu_give;
    c->table.upload = cpu_upload;
    c->table.download = cpu_download;
    c->table.finish = cpu_finish;
    c->table.begin = cpu_begin;
    c->table.close = cpu_close;
    *out = &c->table;
    return FL_OK;
}
