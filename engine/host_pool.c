#include "engine/host_pool.h"

#include <string.h>

void host_pool_init(host_pool *pool, ops *o, size_t piece_bytes)
{
    *pool = (host_pool){ .o = o, .piece_bytes = piece_bytes < sizeof(void *) ? sizeof(void *) : piece_bytes };
}

void host_pool_fini(host_pool *pool)
{
    FL_ASSERT(pool->n_taken == 0);
    while (pool->kept) {
        void *piece = pool->kept;
        memcpy(&pool->kept, piece, sizeof pool->kept);
        pool->o->give_host(pool->o, piece, pool->piece_bytes);
    }
}

fl_status host_pool_take(host_pool *pool, void **out, fl_err *err)
{
    if (pool->kept) {
        *out = pool->kept;
        memcpy(&pool->kept, *out, sizeof pool->kept);
    } else {
        fl_status st = pool->o->take_host(pool->o, out, pool->piece_bytes, "a preempted sequence", err);
        if (st != FL_OK) return st;
    }
    pool->n_taken++;
    return FL_OK;
}

void host_pool_give(host_pool *pool, void *piece)
{
    if (!piece) return;
    pool->n_taken--;
    if (pool->o->is_host) {
        pool->o->give_host(pool->o, piece, pool->piece_bytes);
        return;
    }
    memcpy(piece, &pool->kept, sizeof pool->kept);
    pool->kept = piece;
}
