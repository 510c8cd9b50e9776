/* ingest_pool.h - the parser threads of an ingest and the blocks that go round between them and their owner: filled, parsed by whoever is free, taken back in order.
 * Queue    2 blocks a thread and 2 more, and at most POOL_BYTES_MAX of lines on the way (one block may exceed that alone). When full the owner takes blocks back first.
 * Threads  the owner calls everything here; a parser touches only blocks that were pushed and not yet parsed. */
#ifndef COORDINATOR_INGEST_POOL_H
#define COORDINATOR_INGEST_POOL_H

#include "coordinator/ingest_block.h"
#include "coordinator/queue_figures.h"

#define POOL_BYTES_MAX (16u * 1024 * 1024)
#define POOL_THREADS_MAX 16

typedef struct ingest_pool ingest_pool;

fl_status ingest_pool_open(ingest_pool **out, int n_threads, const char *defaults, fl_err *err);     /* n_threads 0: one a core. defaults is borrowed */
void      ingest_pool_close(ingest_pool *p);             /* accepts NULL; waits for the blocks in hand */

ingest_block *ingest_pool_blank(ingest_pool *p);         /* the block to fill and push next, reset; NULL: take one back first */
void          ingest_pool_push(ingest_pool *p);          /* the blank one goes to the parsers */
queue_figures ingest_pool_queue(const ingest_pool *p);   /* blocks on the way */
bool          ingest_pool_fits(const ingest_pool *p, size_t n_bytes);        /* so many bytes more may be on the way */
ingest_block *ingest_pool_take(ingest_pool *p, bool wait);                   /* the oldest block once it is parsed; NULL: none is on the way, or it takes longer and `wait` is false */
void          ingest_pool_give_back(ingest_pool *p);     /* done with the block that was taken */

#endif
