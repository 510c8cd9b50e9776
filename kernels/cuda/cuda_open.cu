/* cuda_open.cu - the object behind `ops` on a GPU: memory, the step's batch, errors. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cuda_check(ops_cuda *o, const char *name)
{
    if (o->error != cudaSuccess) return false;
    cudaError_t e = cudaPeekAtLastError();
    if (e == cudaSuccess && o->is_synchronous) e = cudaStreamSynchronize(o->stream);
    if (e == cudaSuccess) return true;
    o->error = e;
    o->failed = name;
    return false;
}

bool cuda_keep(ops_cuda *o, cudaError_t e, const char *name)
{
    if (o->error == cudaSuccess && e != cudaSuccess) {
        o->error = e;
        o->failed = name;
    }
    return o->error == cudaSuccess;
}

/* ---- memory ---- */

static fl_status cuda_take(ops *table, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    *out = NULL;
    if (n_bytes == 0) return FL_OK;
    cudaError_t e = cudaMalloc(out, n_bytes);
    if (e == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        cudaGetLastError();                              /* this one is not sticky */
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return fl_fail(err, FL_FULL, "cuda: GPU %d has no memory for %s (%.2f GB of %.2f GB free, %.2f GB wanted)", o->device, what, (double)free_bytes / 1e9,
                       (double)total_bytes / 1e9, (double)n_bytes / 1e9);
    }
    if (e == cudaSuccess && (e = cudaMemsetAsync(*out, 0, n_bytes, o->stream)) == cudaSuccess) return FL_OK;
    if (*out) cudaFree(*out);
    *out = NULL;
    cuda_keep(o, e, what);
    return fl_fail(err, FL_GPU, "cuda: GPU %d failed to give memory for %s: %s", o->device, what, cudaGetErrorString(e));
}

static void cuda_give(ops *table, void *memory, size_t n_bytes)
{
    (void)n_bytes;
    if (memory) cuda_keep(cuda_of(table), cudaFree(memory), "cudaFree");
}

static void cuda_measure(ops *table, uint64_t *free_bytes, uint64_t *all_bytes)
{
    size_t n_free = 0, n_all = 0;
    cuda_keep(cuda_of(table), cudaMemGetInfo(&n_free, &n_all), "cudaMemGetInfo");
    *free_bytes = n_free;
    *all_bytes = n_all;
}

static fl_status cuda_take_host(ops *table, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    *out = NULL;
    if (n_bytes == 0) return FL_OK;
    cudaError_t e = cudaMallocHost(out, n_bytes);
    if (e == cudaSuccess) return FL_OK;
    *out = NULL;
    if (e != cudaErrorMemoryAllocation) {
        cuda_keep(o, e, what);
        return fl_fail(err, FL_GPU, "cuda: GPU %d failed to give pinned memory for %s: %s", o->device, what, cudaGetErrorString(e));
    }
    cudaGetLastError();                                  /* this one is not sticky */
    return fl_fail(err, FL_FULL, "cuda: this machine has no pinned memory for %s (%.2f GB wanted); lower --batch or --kv-tokens, or raise the limit on locked memory", what,
                   (double)n_bytes / 1e9);
}

static void cuda_give_host(ops *table, void *memory, size_t n_bytes)
{
    (void)n_bytes;
    if (memory) cuda_keep(cuda_of(table), cudaFreeHost(memory), "cudaFreeHost");
}

static void cuda_upload(ops *table, void *to, const void *from, size_t n_bytes)
{
    ops_cuda *o = cuda_of(table);
    if (n_bytes == 0 || !cuda_keep(o, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, o->stream), "a copy to the GPU")) return;
    cuda_keep(o, cudaStreamSynchronize(o->stream), "a copy to the GPU");
}

/* After an error the bytes are zeros: finish() says so before anybody uses them. */
static void cuda_download(ops *table, void *to, const void *from, size_t n_bytes)
{
    ops_cuda *o = cuda_of(table);
    if (n_bytes == 0) return;
    if (!cuda_keep(o, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToHost, o->stream), "a copy from the GPU") ||
        !cuda_keep(o, cudaStreamSynchronize(o->stream), "a kernel before a copy from the GPU")) memset(to, 0, n_bytes);
}

/* One copy a piece: a two-dimensional copy's stride is limited to 2 GB. */
static bool copy_rows(ops_cuda *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows, cudaMemcpyKind kind, const char *name)
{
    for (size_t i = 0; n_bytes > 0 && i < n_rows; i++)
        if (!cuda_keep(o, cudaMemcpyAsync((char *)to + i * to_stride, (const char *)from + i * from_stride, n_bytes, kind, o->stream), name)) return false;
    return cuda_keep(o, cudaStreamSynchronize(o->stream), name);
}

static void cuda_upload_rows(ops *table, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows)
{
    copy_rows(cuda_of(table), to, to_stride, from, from_stride, n_bytes, n_rows, cudaMemcpyHostToDevice, "a copy to the GPU");
}

static void cuda_download_rows(ops *table, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows)
{
    if (copy_rows(cuda_of(table), to, to_stride, from, from_stride, n_bytes, n_rows, cudaMemcpyDeviceToHost, "a copy from the GPU")) return;
    for (size_t i = 0; i < n_rows; i++) memset((char *)to + i * to_stride, 0, n_bytes);
}

static void cuda_begin_upload(ops *table, void *to, const void *from, size_t n_bytes, int turn)
{
    ops_cuda *o = cuda_of(table);
    if (n_bytes > 0) cuda_keep(o, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, o->stream), "a copy to the GPU");
    cuda_keep(o, cudaEventRecord(o->is_uploaded[turn], o->stream), "a copy to the GPU");
}

static void cuda_wait_upload(ops *table, int turn)
{
    ops_cuda *o = cuda_of(table);
    cuda_keep(o, cudaEventSynchronize(o->is_uploaded[turn]), "a copy to the GPU");
}

static void cuda_begin_download(ops *table, void *to, const void *from, size_t n_bytes, int turn)
{
    ops_cuda *o = cuda_of(table);
    if (n_bytes > 0) cuda_keep(o, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToHost, o->stream), "a copy from the GPU");
    cuda_keep(o, cudaEventRecord(o->is_downloaded[turn], o->stream), "a copy from the GPU");
    if (!o->is_counted) o->begun_turn[turn] = o->turn;
    o->is_counted = true;
}

static fl_status cuda_wait_download(ops *table, int turn, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    float ms = 0.0f;
    if (!cuda_keep(o, cudaEventSynchronize(o->is_downloaded[turn]), "one of the step's kernels")) return table->finish(table, err);
    if (o->begun_turn[turn] >= 0 && cuda_keep(o, cudaEventElapsedTime(&ms, o->is_begun[o->begun_turn[turn]], o->is_downloaded[turn]), "the time of a step")) o->busy_seconds += ms * 1e-3;
    o->begun_turn[turn] = -1;
    return o->error == cudaSuccess ? FL_OK : table->finish(table, err);
}

static double cuda_busy_seconds(const ops *table) { return ((const ops_cuda *)table)->busy_seconds; }

static void cuda_copy(ops *table, void *to, const void *from, size_t n_bytes)
{
    ops_cuda *o = cuda_of(table);
    if (n_bytes > 0) cuda_keep(o, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, o->stream), "a copy on the GPU");
}

template <typename T> static __global__ void random_kernel(T *to, size_t n, uint64_t seed, float middle, float reach)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) to[i] = from_float<T>(__fadd_rn(middle, __fmul_rn(reach, random_value(seed, i))));
}

static void cuda_fill_random(ops *table, void *to, dtype type, size_t n, uint64_t seed, float middle, float reach)
{
    ops_cuda *o = cuda_of(table);
    const size_t most = (size_t)o->n_multiprocessors * 16, want = (n + 255) / 256;
    const dim3 grid((unsigned)(want < most ? want : most)), block(256);
    if (type == DTYPE_F32) launch(o, "fill_random", random_kernel<float>, grid, block, 0, (float *)to, n, seed, middle, reach);
    else if (type == DTYPE_BF16) launch(o, "fill_random", random_kernel<__nv_bfloat16>, grid, block, 0, (__nv_bfloat16 *)to, n, seed, middle, reach);
    else launch(o, "fill_random", random_kernel<__half>, grid, block, 0, (__half *)to, n, seed, middle, reach);
}

static fl_status cuda_finish(ops *table, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    if (cuda_keep(o, cudaStreamSynchronize(o->stream), "one of the step's kernels")) return FL_OK;
    return fl_fail(err, FL_GPU, "cuda: GPU %d failed at %s: %s%s", o->device, o->failed, cudaGetErrorString(o->error),
                   o->is_synchronous ? "" : "; with TOKENFLEET_CUDA_SYNC=1 the kernel is named");
}

/* ---- the batch ---- */

/* Room in one staging buffer: with a base it is taken, without one only measured. */
typedef struct { char *base; size_t n_bytes; } packer;

static size_t pack(packer *p, const void *from, size_t n_bytes)
{
    const size_t at = p->n_bytes;
    if (p->base && from) memcpy(p->base + at, from, n_bytes);
    p->n_bytes += (n_bytes + 15) / 16 * 16;
    return at;
}

/* The lists made from the arrays; counted only while `tiles` is NULL. */
static void list_work(cuda_batch *d, const ops_batch *b, cuda_tile *tiles, cuda_run *prefills, cuda_run *decodes)
{
    d->n_tiles = d->n_prefills = d->n_decodes = d->most_context = 0;
    if (!b->row_begin) return;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const int32_t begin = b->row_begin[s], n = b->row_begin[s + 1] - begin, position = b->positions[begin];
        const cuda_run run = { begin, n, s, b->state_slots ? b->state_slots[s] : -1, position, d->n_tiles };
        if (!b->is_prefill[s]) {
            FL_ASSERT(n == 1 && (b->reach == 0 || position < b->reach));
            if (tiles) decodes[d->n_decodes] = run;
            d->n_decodes++;
            if (position + 1 > d->most_context) d->most_context = position + 1;
            continue;
        }
        FL_ASSERT(position % OPS_BLOCK_TOKENS == 0);
        if (tiles) prefills[d->n_prefills] = run;
        d->n_prefills++;
        for (int32_t i = 0; i < n; i += OPS_BLOCK_TOKENS) {
            const cuda_tile tile = { begin + i, n - i < OPS_BLOCK_TOKENS ? n - i : OPS_BLOCK_TOKENS, s, position + i };
            if (tiles) tiles[d->n_tiles] = tile;
            d->n_tiles++;
        }
    }
    if (b->reach > 0) d->most_context = b->reach;
}

static bool reserve_lists(ops_cuda *o, size_t n_bytes)
{
    if (n_bytes <= o->list_bytes) return true;
    const size_t grown = n_bytes;
    graphs_forget(o);
    if (!cuda_keep(o, cudaStreamSynchronize(o->stream), "one of the step's kernels")) return false;
    for (int i = 0; i < 2; i++) {
        if (o->staging[i]) cudaFreeHost(o->staging[i]);
        o->staging[i] = NULL;
    }
    if (o->lists) cudaFree(o->lists);
    o->lists = NULL;
    o->list_bytes = 0;
    for (int i = 0; i < 2; i++)
        if (!cuda_keep(o, cudaMallocHost(&o->staging[i], grown), "memory for the batch")) return false;
    if (!cuda_keep(o, cudaMalloc(&o->lists, grown), "memory for the batch")) return false;
    o->list_bytes = grown;
    return true;
}

/* The lists of the largest batch: its chunks and runs are no more than its rows. */
static fl_status cuda_reserve(ops *table, const ops_limits *limits, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    const size_t rows = (size_t)limits->n_rows, seqs = (size_t)limits->n_seqs, word = sizeof(int32_t), chunks = seqs + rows / OPS_BLOCK_TOKENS + 1;
    const size_t n_bytes = 4 * rows * word + (size_t)limits->n_logits * word + seqs * (size_t)limits->seq_blocks * word + chunks * sizeof(cuda_tile) + 2 * seqs * sizeof(cuda_run) + 9 * 16;
    fl_status st = attention_reserve(o, limits, err);
    if (st != FL_OK) return st;
    if (reserve_lists(o, n_bytes)) return FL_OK;
    if (o->error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        o->error = cudaSuccess;
        return fl_fail(err, FL_FULL, "cuda: GPU %d has no memory for the lists of a step (%.2f GB); lower --batch, --prefill-budget or --max-context", o->device, (double)n_bytes / 1e9);
    }
    return table->finish(table, err);
}

static void cuda_begin(ops *table, const ops_batch *b)
{
    ops_cuda *o = cuda_of(table);
    const size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs, word = sizeof(int32_t);
    cuda_batch d = {};
    d.n_rows = b->n_rows;
    d.n_seqs = b->n_seqs;
    d.n_logits = b->n_logits;
    d.table_stride = b->table_stride;
    d.chosen = b->chosen;
    size_t at[9] = { 0 };
    packer p = { NULL, 0 };
    list_work(&d, b, NULL, NULL, NULL);
    o->batch = d;                                        /* also after an error, when nothing is launched: ops hold their arguments against it */
    if (o->error != cudaSuccess) return;
    for (int pass = 0; pass < 2; pass++) {
        at[0] = pack(&p, b->ids, b->ids ? rows * word : 0);
        at[1] = pack(&p, b->positions, b->positions ? rows * word : 0);
        at[2] = pack(&p, b->seq_of_row, b->seq_of_row ? rows * word : 0);
        at[3] = pack(&p, b->logit_rows, (size_t)b->n_logits * word);
        at[4] = pack(&p, b->block_tables, b->block_tables ? seqs * (size_t)b->table_stride * word : 0);
        at[5] = pack(&p, NULL, (size_t)d.n_tiles * sizeof(cuda_tile));
        at[6] = pack(&p, NULL, (size_t)d.n_prefills * sizeof(cuda_run));
        at[7] = pack(&p, NULL, (size_t)d.n_decodes * sizeof(cuda_run));
        at[8] = pack(&p, b->ids_from, b->ids_from ? rows * word : 0);
        if (pass == 1) break;
        if (!reserve_lists(o, p.n_bytes)) return;
        o->turn ^= 1;
        if (!cuda_keep(o, cudaEventSynchronize(o->is_copied[o->turn]), "one of the step's kernels")) return;
        p.base = (char *)o->staging[o->turn];
        p.n_bytes = 0;
    }
    list_work(&d, b, (cuda_tile *)(p.base + at[5]), (cuda_run *)(p.base + at[6]), (cuda_run *)(p.base + at[7]));
    for (int i = 0; i < 2; i++) if (o->begun_turn[i] == o->turn) o->begun_turn[i] = -1;
    cuda_keep(o, cudaEventRecord(o->is_begun[o->turn], o->stream), "the time of a step");
    o->is_counted = false;
    if (p.n_bytes > 0) cuda_keep(o, cudaMemcpyAsync(o->lists, p.base, p.n_bytes, cudaMemcpyHostToDevice, o->stream), "a copy of the batch to the GPU");
    cuda_keep(o, cudaEventRecord(o->is_copied[o->turn], o->stream), "a copy of the batch to the GPU");
    char *lists = (char *)o->lists;
    d.ids = (const int32_t *)(lists + at[0]);
    d.positions = (const int32_t *)(lists + at[1]);
    d.seq_of_row = (const int32_t *)(lists + at[2]);
    d.logit_rows = (const int32_t *)(lists + at[3]);
    d.block_tables = (const int32_t *)(lists + at[4]);
    d.tiles = (const cuda_tile *)(lists + at[5]);
    d.prefills = (const cuda_run *)(lists + at[6]);
    d.decodes = (const cuda_run *)(lists + at[7]);
    d.ids_from = b->ids_from ? (const int32_t *)(lists + at[8]) : NULL;
    o->batch = d;
}

/* ---- open ---- */

static void cuda_close(ops *table)
{
    ops_cuda *o = cuda_of(table);
    if (o->stream) cudaStreamSynchronize(o->stream);
    for (int i = 0; i < 2; i++) {
        if (o->staging[i]) cudaFreeHost(o->staging[i]);
        if (o->is_copied[i]) cudaEventDestroy(o->is_copied[i]);
        if (o->is_uploaded[i]) cudaEventDestroy(o->is_uploaded[i]);
        if (o->is_downloaded[i]) cudaEventDestroy(o->is_downloaded[i]);
        if (o->is_begun[i]) cudaEventDestroy(o->is_begun[i]);
    }
    graphs_close(o);
    if (o->lists) cudaFree(o->lists);
    attention_close(o);
    sampler_close(o);
    delta_close(o);
    linear_close(o);
    moe_close(o);
    if (o->stream) cudaStreamDestroy(o->stream);
    free(o);
}

template <typename T> static fl_status install_all(ops_cuda *o, fl_err *err)
{
    o->table.act_bytes = sizeof(T);
    o->table.act_type = sizeof(T) == 4 ? DTYPE_F32 : o->sm >= 80 ? DTYPE_BF16 : DTYPE_F16;
    fl_status st = rows_install<T>(o, err);
    if (st == FL_OK) st = norm_install<T>(o, err);
    if (st == FL_OK) st = attention_install<T>(o, err);
    if (st == FL_OK) st = delta_install<T>(o, err);
    if (st == FL_OK) st = linear_install<T>(o, err);
    if (st == FL_OK) st = moe_install<T>(o, err);
    sampler_install(o);
    return st == FL_OK ? graphs_install(o, err) : st;
}

extern "C" fl_status cuda_ops_open(ops **out, int32_t index, cuda_precision precision, fl_err *err)
{
    cuda_device device;
    fl_status st = cuda_device_probe(index, &device, err);
    if (st != FL_OK) return st;
    ops_cuda *o = (ops_cuda *)calloc(1, sizeof *o);
    if (!o) return fl_fail(err, FL_FULL, "cuda: no memory to open GPU %d", index);
    const char *sync = getenv("TOKENFLEET_CUDA_SYNC");
    o->device = index;
    o->sm = device.sm;
    o->n_multiprocessors = device.n_multiprocessors;
    o->is_synchronous = sync && strcmp(sync, "1") == 0;
    o->table.name = precision == CUDA_F32 ? "cuda-f32" : device.sm >= 80 ? "cuda-bf16" : "cuda-f16";
    snprintf(o->numerics, sizeof o->numerics, "sm%d", device.sm);
    o->table.numerics = o->numerics;
    o->table.take = cuda_take;
    o->table.give = cuda_give;
    o->table.measure = cuda_measure;
    o->table.take_host = cuda_take_host;
    o->table.give_host = cuda_give_host;
    o->table.upload = cuda_upload;
    o->table.download = cuda_download;
    o->table.upload_rows = cuda_upload_rows;
    o->table.download_rows = cuda_download_rows;
    o->table.begin_upload = cuda_begin_upload;
    o->table.wait_upload = cuda_wait_upload;
    o->table.begin_download = cuda_begin_download;
    o->table.wait_download = cuda_wait_download;
    o->table.busy_seconds = cuda_busy_seconds;
    o->table.copy = cuda_copy;
    o->table.fill_random = cuda_fill_random;
    o->table.reserve = cuda_reserve;
    o->table.finish = cuda_finish;
    o->table.begin = cuda_begin;
    o->table.close = cuda_close;
    int shared_most = 0;
    cudaError_t e = cudaDeviceGetAttribute(&shared_most, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    o->shared_most = (size_t)shared_most;
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&o->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&o->is_copied[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&o->is_uploaded[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreate(&o->is_downloaded[i]);
        if (e == cudaSuccess) e = cudaEventCreate(&o->is_begun[i]);
        o->begun_turn[i] = -1;
    }
    if (e != cudaSuccess) st = fl_fail(err, FL_GPU, "cuda: GPU %d cannot be opened: %s", index, cudaGetErrorString(e));
    else if (precision == CUDA_F32) st = install_all<float>(o, err);
    else if (device.sm >= 80) st = install_all<__nv_bfloat16>(o, err);
    else st = install_all<__half>(o, err);
    if (st == FL_OK) *out = &o->table;
    else cuda_close(&o->table);
    return st;
}
