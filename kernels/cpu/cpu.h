/* cpu.h - what the CPU kernels share: the object behind `ops`, its thread pool, and the form each kernel file is compiled in.
 * Forms    cpu_linear.c, cpu_norm.c, cpu_rows.c, cpu_attention.c, cpu_delta.c, cpu_moe.c and cpu_quant.c are compiled three times, with LANES_SCALAR,
 *          LANES_AVX2 or LANES_AVX512; each then defines its install function under that form's name. cpu_open.c picks one.
 * Threads  kernels run on the calling thread and on the pool's; a kernel splits output elements over them, never a sum. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stdint.h>
#include "kernels/ops.h"

typedef struct cpu_pool cpu_pool;

/* 32 activations of a row as whole numbers of two bytes: x[i] is about scale * (128 * q[0][i] + q[1][i]), scale = max |x| / ACT_STEPS. Where a value is not finite scale and
 * sums are NaN; a block whose greatest magnitude is below ACT_LEAST is zero. */
typedef struct {
    _Alignas(32) int8_t q[2][32];        /* high -127 .. 127, low -64 .. 63 */
    float scale;
    float sums[3];                       /* scale * the sum of the whole numbers: of the first 16, of the last 16, of all */
    int32_t minus[3];                    /* minus that sum, of the same */
} act_block;
#define ACT_LOW_BITS 7
#define ACT_STEPS (127 << ACT_LOW_BITS)
#define ACT_LEAST 0x1p-100f

/* y[i * y_stride + j] = dot(w row j, x[i]) for j < n_w, i < n_x: quantized rows of n_k values, n_k / 32 blocks of activations. Every product with quantized
 * weights comes from here. */
typedef void dot_rows_quant_fn(float *y, size_t y_stride, const void *w, dtype type, int32_t n_w, int32_t n_k, const act_block *const *x, int32_t n_x);


#define OWN_THREADS 8                    /* with so many threads at most ... */
#define OWN_ROWS 16                      /* ... and few rows, each thread quantizes for itself: waiting for one that does it, and for its cache lines, takes longer */

typedef struct {
    ops table;                           /* first: an ops * is an ops_cpu * */
    cpu_pool *pool;                      /* owned; NULL with one thread */
    dot_rows_quant_fn *dot_rows_quant;   /* the form of the integer dots: it may have instructions that the form of the rest has not */
    void (*quantize_row)(act_block *out, const float *x, int32_t n);         /* n a multiple of 32 */
    int32_t n_threads;
    act_block *room;                     /* owned [(ROOM_ROWS + OWN_THREADS * OWN_ROWS) * room_cols / 32]: a linear's activations; then each thread's own */
    int32_t room_cols;
    uint64_t n_linears;                  /* with quantized weights, so far */
    struct { _Alignas(64) uint64_t of_linear; } own[OWN_THREADS];      /* whose activations a thread's own ones are */
} ops_cpu;
#define QUANTIZE_WORK 1.0                /* of an activation, and of a weight taken apart or of its product: in fp32 multiply-adds */
#define TAKE_WORK 8.0
#define QUANT_WORK 0.4
#define ROOM_ROWS 128                    /* token rows quantized at a time: weights are taken apart once for them, and they lie in the second-level cache */

/* Work on items [begin, end). */
typedef void (*cpu_job)(const void *arg, int32_t begin, int32_t end);

/* A pool of n_threads - 1 helpers (n_threads >= 2). One thread at a time may call cpu_pool_run. */
fl_status cpu_pool_open(cpu_pool **out, int32_t n_threads, fl_err *err);
void      cpu_pool_close(cpu_pool *pool);                /* accepts NULL */

/* Do items [0, n_items) and return when all are done. `item_work` is about the multiply-adds of one item: small totals stay on the caller. */
void cpu_pool_run(cpu_pool *pool, int32_t n_items, double item_work, cpu_job job, const void *arg);
int32_t cpu_pool_index(void);                            /* of the thread that runs a job: 0 the caller, 1 .. n_threads - 1 */

#define CPU_FORMS(X) X(scalar) X(avx2) X(avx512)
#define CPU_DECLARE(form) \
    void linear_install_##form(ops *o); void norm_install_##form(ops *o); void rows_install_##form(ops *o); \
    void attention_install_##form(ops *o); void delta_install_##form(ops *o); void moe_install_##form(ops *o); \
    void quant_install_##form(ops_cpu *c); \
    void dot_rows_##form(float *y, size_t y_stride, const void *w, dtype type, int32_t n_w, int32_t n_k, const float *const *x, int32_t n_x);
CPU_FORMS(CPU_DECLARE)
#undef CPU_DECLARE
void quant_install_avx512vnni(ops_cpu *c);
void quant_install_avxvnni(ops_cpu *c);

/* dot_rows: y[i * y_stride + j] = dot(w row j, x[i]) for j < n_w, i < n_x: rows of w lie n_k elements apart. Every product of the CPU kernels
 * comes from here, so a product has the same bits wherever it is asked for. */

#endif
