/* cuda_cublas.h - cuBLASLt for products, where it gives our own kernel's bits. For cuda_linear.cu.
 * Threads  as ops.h: one engine thread. */
#ifndef KERNELS_CUDA_CUDA_CUBLAS_H
#define KERNELS_CUDA_CUDA_CUBLAS_H

#include "kernels/cuda/cuda_ops.h"

typedef struct cublas cublas;

/* NULL, with a note where it is worth one (OPS_NOTE_BYTES), where the library is missing or the GPU is not one whose algorithms were measured: then our own kernels serve everything. */
cublas *cublas_open(const ops_cuda *o, dtype type, char *note);
void cublas_close(cublas *c);            /* accepts NULL */

/* Compare algorithms with our own kernel, which o->table.linear must be until now, on each product; keep those that agree in every bit; the note says how many. */
void cublas_prepare(ops_cuda *o, cublas *c, const ops_product *products, int32_t n, char *note);

/* True: y = x w^T was launched. False: the caller's kernel has to. */
bool cublas_linear(ops_cuda *o, const cublas *c, void *y, const void *x, const weight *w, int32_t n_rows, bool is_f32);

#endif
