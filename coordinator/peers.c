#include "coordinator/peers.h"

#include <stdlib.h>

peer_entry *peers_of_worker(peers *p, worker_id worker)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->v[i].worker.v == worker.v) return &p->v[i];
    }
    return NULL;
}

peer_entry *peers_of_connection(peers *p, const transport_peer *peer)
{
    for (size_t i = 0; i < p->n; i++) {
        if (transport_peer_equal(&p->v[i].peer, peer)) return &p->v[i];
    }
    return NULL;
}

fl_status peers_bind(peers *p, worker_id worker, const transport_peer *peer, uint32_t n_vocab, fl_err *err)
{
    peer_entry *old = peers_of_connection(p, peer);
    if (old && old->worker.v != worker.v) peers_drop(p, old->worker);    /* one connection, one worker */
    peer_entry *entry = peers_of_worker(p, worker);
    if (!entry) {
        if (p->n == p->capacity) {
            size_t capacity = p->capacity ? p->capacity * 2 : 16;
            peer_entry *grown = realloc(p->v, capacity * sizeof *grown);
            if (!grown) return fl_fail(err, FL_FULL, "no memory for %zu workers", capacity);
            p->v = grown;
            p->capacity = capacity;
        }
        entry = &p->v[p->n++];
    }
    *entry = (peer_entry){ worker, *peer, n_vocab };
    return FL_OK;
}

void peers_drop(peers *p, worker_id worker)
{
    peer_entry *entry = peers_of_worker(p, worker);
    if (entry) *entry = p->v[--p->n];
}

void peers_fini(peers *p)
{
    free(p->v);
    *p = (peers){ 0 };
}
