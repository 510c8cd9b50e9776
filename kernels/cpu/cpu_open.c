/* cpu_open.c - choose the form of the CPU kernels and start their threads. */
#include "kernels/cpu/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "kernels/encode.h"

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
        quant_install_##form((ops_cpu *)o); \
    }
CPU_FORMS(FORM_INSTALL)

/* The same with the integer dot instructions. */
static void avxvnni_install(ops *o) { avx2_install(o); quant_install_avxvnni((ops_cpu *)o); }
static void avx512vnni_install(ops *o) { avx512_install(o); quant_install_avx512vnni((ops_cpu *)o); }

/* Worst to best. */
static const cpu_form forms[] = {
    { "scalar", "cpu-scalar", "AVX2, FMA and F16C", scalar_install },          /* its fmaf is the FMA instruction */
    { "avx2",   "cpu-avx2",   "AVX2, FMA and F16C", avx2_install },
    { "avxvnni", "cpu-avxvnni", "AVX2, FMA, F16C and AVX-VNNI", avxvnni_install },
    { "avx512", "cpu-avx512", "AVX-512 F, BW, DQ and VL", avx512_install },
    { "avx512vnni", "cpu-avx512vnni", "AVX-512 F, BW, DQ, VL and VNNI", avx512vnni_install },
};
enum { FORM_COUNT = sizeof forms / sizeof *forms };

#define AVX_VNNI_BIT (1u << 4)           /* of CPUID 7.1 EAX */

static bool form_runs_here(const cpu_form *f)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();                                            /* asks the system too: its context switches must keep the registers */
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    if (strcmp(f->key, "avxvnni") == 0) return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI_BIT);
    if (strcmp(f->key, "avx512vnni") == 0 && !__builtin_cpu_supports("avx512vnni")) return false;
    if (strncmp(f->key, "avx512", 6) != 0) return avx2;
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
    return fl_fail(err, FL_INVALID, "kernels: TOKENFLEET_KERNELS is '%s'; say scalar, avx2, avxvnni, avx512 or avx512vnni, or unset it", wanted);
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

static void cpu_measure(ops *o, uint64_t *free_bytes, uint64_t *all_bytes)
{
    (void)o;
    *free_bytes = *all_bytes = 0;
}

static fl_status cpu_take_host(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    (void)o;
    *out = NULL;
    if (n_bytes == 0) return FL_OK;
    *out = malloc(n_bytes);
    return *out ? FL_OK : fl_fail(err, FL_FULL, "kernels: no memory for %s (%zu bytes)", what, n_bytes);
}

static void cpu_give_host(ops *o, void *memory, size_t n_bytes)
{
    (void)o;
    (void)n_bytes;
    free(memory);
}

static void cpu_upload(ops *o, void *to, const void *from, size_t n_bytes) { (void)o; memcpy(to, from, n_bytes); }
static void cpu_download(ops *o, void *to, const void *from, size_t n_bytes) { (void)o; memcpy(to, from, n_bytes); }

static void cpu_copy_rows(ops *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows)
{
    (void)o;
    for (size_t i = 0; i < n_rows; i++) memcpy((char *)to + i * to_stride, (const char *)from + i * from_stride, n_bytes);
}

static void cpu_begin_upload(ops *o, void *to, const void *from, size_t n_bytes, int turn) { (void)o; (void)turn; memcpy(to, from, n_bytes); }
static void cpu_wait_upload(ops *o, int turn) { (void)o; (void)turn; }
static void cpu_copy(ops *o, void *to, const void *from, size_t n_bytes) { (void)o; memcpy(to, from, n_bytes); }

static void cpu_fill_random(ops *o, void *to, dtype type, size_t n, uint64_t seed, float middle, float reach)
{
    float some[256];
    const size_t value_bytes = type == DTYPE_F32 ? 4 : 2;
    (void)o;
    for (size_t at = 0; at < n; at += 256) {
        const size_t n_some = n - at < 256 ? n - at : 256;
        for (size_t i = 0; i < n_some; i++) some[i] = middle + reach * random_value(seed, at + i);
        dtype_encode((char *)to + at * value_bytes, type, some, n_some);
    }
}

static fl_status cpu_prepare(ops *o, const ops_product *products, int32_t n, char *note, fl_err *err)
{
    (void)o; (void)products; (void)n; (void)err;
    note[0] = '\0';
    return FL_OK;
}
static fl_status cpu_reserve(ops *o, const ops_limits *limits, fl_err *err) { (void)o; (void)limits; (void)err; return FL_OK; }
static fl_status cpu_finish(ops *o, fl_err *err) { (void)o; (void)err; return FL_OK; }
static void cpu_begin(ops *o, const ops_batch *b) { (void)o; (void)b; }

static size_t cpu_quant_room_bytes(const ops *o, int32_t n_cols) { (void)o; return (ROOM_ROWS + OWN_THREADS * OWN_ROWS) * (size_t)((n_cols + 31) / 32) * sizeof(act_block); }
static fl_status cpu_quant_room(ops *o, int32_t n_cols, fl_err *err)
{
    ops_cpu *c = (ops_cpu *)o;
    void *room = NULL;
    fl_status st = cpu_take(o, &room, cpu_quant_room_bytes(o, n_cols), "the activations of products with quantized weights", err);
    if (st != FL_OK) return st;
    cpu_give(o, c->room, cpu_quant_room_bytes(o, c->room_cols));
    c->room = room;
    c->room_cols = n_cols;
    return FL_OK;
}

static void cpu_close(ops *o)
{
    ops_cpu *c = (ops_cpu *)o;
    cpu_give(o, c->room, cpu_quant_room_bytes(o, c->room_cols));
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
    ops_cpu *c = aligned_alloc(64, sizeof *c);
    if (!c) return fl_fail(err, FL_FULL, "kernels: no memory to open");
    memset(c, 0, sizeof *c);
    c->n_threads = n_threads;
    if (n_threads > 1 && (st = cpu_pool_open(&c->pool, n_threads, err)) != FL_OK) { free(c); return st; }
    form->install(&c->table);
    c->table.name = form->name;
    c->table.numerics = "cpu";
    c->table.act_type = DTYPE_F32;
    c->table.act_bytes = sizeof(act);
    c->table.is_host = true;
    c->table.take = cpu_take;
    c->table.give = cpu_give;
    c->table.measure = cpu_measure;
    c->table.take_host = cpu_take_host;
    c->table.give_host = cpu_give_host;
    c->table.upload = cpu_upload;
    c->table.download = cpu_download;
    c->table.upload_rows = cpu_copy_rows;
    c->table.download_rows = cpu_copy_rows;
    c->table.begin_upload = cpu_begin_upload;
    c->table.wait_upload = cpu_wait_upload;
    c->table.copy = cpu_copy;
    c->table.fill_random = cpu_fill_random;
    c->table.prepare = cpu_prepare;
    c->table.reserve = cpu_reserve;
    c->table.finish = cpu_finish;
    c->table.begin = cpu_begin;
    c->table.quant_room = cpu_quant_room;
    c->table.quant_room_bytes = cpu_quant_room_bytes;
    c->table.close = cpu_close;
    *out = &c->table;
    return FL_OK;
}
