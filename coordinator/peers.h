/* peers.h - which connection each worker speaks through. A worker is known from its HELLO on; a connection that never said HELLO is nobody's.
 * Cost     every message and every send looks here, so both ways are hash tables.
 * Threads  belongs to the daemon's thread. */
#ifndef COORDINATOR_PEERS_H
#define COORDINATOR_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include "coordinator/id_map.h"
#include "coordinator/transport.h"
#include "proto/ids.h"

typedef struct {
    worker_id worker;
    transport_peer peer;
    uint32_t n_vocab;                    /* of its model */
    uint64_t credit_bytes;               /* results it may leave unanswered; the daemon's */
    uint64_t kept_bytes, kept_since;     /* of its results that wait for the disk: since which time it was full (daemon_state.h); the daemon's */
    size_t at;                           /* in peers.v */
} peer_entry;
typedef struct {
    peer_entry **v; size_t n, capacity;                  /* owned, in no order; entries stay where they are until they are dropped */
    id_map of_worker;
    peer_entry **slots; size_t n_slots;                  /* owned; of connections, by their bytes; a power of two, at most half full */
} peers;                                                 /* all zero is an empty table */

fl_status peers_bind(peers *p, worker_id worker, const transport_peer *peer, uint32_t n_vocab, fl_err *err);      /* a HELLO; replaces the worker's old connection */
peer_entry *peers_of_worker(const peers *p, worker_id worker);                 /* NULL: unknown; borrowed until it is dropped */
peer_entry *peers_of_connection(const peers *p, const transport_peer *peer);   /* NULL: never said HELLO */
void peers_drop(peers *p, worker_id worker);
void peers_fini(peers *p);

#endif
