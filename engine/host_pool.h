/* host_pool.h - pieces of equal size of host memory that copies to and from a device are fast with: where preempted and waiting sequences lie. On a device a piece that is given back is
 * kept for the next (pinning memory takes milliseconds); on the host it is freed.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_HOST_POOL_H
#define ENGINE_HOST_POOL_H

#include <stddef.h>
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct {
    ops *o;                              /* borrowed */
    size_t piece_bytes;
    void *kept;                          /* owned: free pieces, each beginning with the next one's address */
    int32_t n_taken;
} host_pool;

void host_pool_init(host_pool *pool, ops *o, size_t piece_bytes);
void host_pool_fini(host_pool *pool);                    /* every piece was given back; accepts a zeroed one */

/* FL_FULL without memory. */
fl_status host_pool_take(host_pool *pool, void **out, fl_err *err);
void      host_pool_give(host_pool *pool, void *piece);  /* accepts NULL */

#endif
