/* cuda_code.h - whether the code that a GPU picks from the module is what our kernels are written for. The driver takes code of an older architecture as well (compiled anew from its PTX),
 * and kernels that choose an instruction by the GPU they run on would then find its place empty: wrong results without an error.
 * Threads  a plain function. */
#ifndef KERNELS_CUDA_CUDA_CODE_H
#define KERNELS_CUDA_CUDA_CODE_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_CODE_90A 901                /* sm_90 with the instructions of sm_90a */

/* sm: the GPU's, 90. code: what the code was compiled for: 10 * its sm, or CUDA_CODE_90A. NULL when it serves, else the architecture to build for. */
static inline const char *cuda_code_missing(int32_t sm, int32_t code)
{
    if (sm == 90 && code != CUDA_CODE_90A) return "90a";             /* attention of prompts, products of many rows */
    return sm >= 80 && code < 800 ? "80" : NULL;         /* bf16, matrix instructions of 16 columns, asynchronous copies */
}

#endif
