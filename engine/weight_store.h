/* weight_store.h - a model's weights in the memory of a device: measured in one walk over them, taken in one piece, and filled in a second walk. Values are read from the mapped
 * files and converted in two pinned buffers by turns: one is filled while the other travels.
 * Layout   weights lie in the order they are put, each at a multiple of 256 bytes, matrices in the store's type and small ones in fp32, rows without gaps. So weights of equal
 *          size that are put in the same order again and again (the experts of a layer) lie equally far apart.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_WEIGHT_STORE_H
#define ENGINE_WEIGHT_STORE_H

#include "engine/weight_source.h"
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct {
    ops *o;                              /* borrowed; NULL: nothing is stored, n_bytes alone grows */
    dtype type;                          /* of matrices: F32, BF16 or F16 */
    uint8_t *base; size_t n_bytes;       /* owned; so much of it is in use */
    size_t capacity;
    void *staging[2]; int turn;          /* owned while it is being filled */
    float *decoded;                      /* owned likewise: rows as fp32 */
} weight_store;

/* What matrices are stored in on `o`: its activations' type; 16 bits also on the host (random models). */
dtype weight_store_type(const ops *o);

/* Take memory for n_bytes, as a store without a device has measured them. FL_FULL. */
fl_status weight_store_open(weight_store *s, ops *o, size_t n_bytes, fl_err *err);
void      weight_store_close(weight_store *s);           /* accepts a zeroed one */

/* Put the next weight; it is fp32 where is_small. FL_CORRUPT for a value that is not finite, or not any more in 16 bits, naming file and tensor. */
fl_status weight_store_put(weight_store *s, weight *out, const weight_source *source, bool is_small, fl_err *err);

/* All is put: wait until it lies on the device, and give the buffers back. FL_GPU when a copy failed. */
fl_status weight_store_finish(weight_store *s, fl_err *err);

#endif
