/* peers.h - which connection each worker speaks through. A worker is known from its HELLO on; a connection that never said HELLO is nobody's.
 * Threads  belongs to the daemon's thread. */
#ifndef COORDINATOR_PEERS_H
#define COORDINATOR_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include "coordinator/transport.h"
#include "proto/ids.h"

typedef struct { worker_id worker; transport_peer peer; uint32_t n_vocab; } peer_entry;         /* n_vocab: of its model */
typedef struct { peer_entry *v; size_t n, capacity; } peers;             /* v: owned; all zero is an empty table */

fl_status peers_bind(peers *p, worker_id worker, const transport_peer *peer, uint32_t n_vocab, fl_err *err);      /* a HELLO; replaces the worker's old connection */
peer_entry *peers_of_worker(peers *p, worker_id worker);                 /* NULL: unknown; borrowed until the next bind or drop */
peer_entry *peers_of_connection(peers *p, const transport_peer *peer);   /* NULL: never said HELLO */
void peers_drop(peers *p, worker_id worker);
void peers_fini(peers *p);

#endif
