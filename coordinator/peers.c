#include "coordinator/peers.h"

#include <stdlib.h>
#include <string.h>
#include "proto/bytes.h"

static size_t home(const peers *p, const transport_peer *peer)
{
    return (size_t)fl_checksum(0, &(fl_bytes){ peer->bytes, peer->n }, 1) & (p->n_slots - 1);
}

/* The slot of the connection, or the free one where it would go. */
static size_t find_slot(const peers *p, const transport_peer *peer)
{
    size_t i = home(p, peer);
    while (p->slots[i] && !transport_peer_equal(&p->slots[i]->peer, peer)) i = (i + 1) & (p->n_slots - 1);
    return i;
}

peer_entry *peers_of_worker(const peers *p, worker_id worker)
{
    return id_map_get(&p->of_worker, worker.v);
}

peer_entry *peers_of_connection(const peers *p, const transport_peer *peer)
{
    return p->n_slots ? p->slots[find_slot(p, peer)] : NULL;
}

static void take_slot(peers *p, const transport_peer *peer)
{
    size_t mask = p->n_slots - 1, i = find_slot(p, peer);
    if (!p->slots[i]) return;
    p->slots[i] = NULL;
    for (size_t k = (i + 1) & mask; p->slots[k]; k = (k + 1) & mask) {       /* close the gap for those that probed past it */
        if (((k - home(p, &p->slots[k]->peer)) & mask) < ((k - i) & mask)) continue;
        p->slots[i] = p->slots[k];
        p->slots[k] = NULL;
        i = k;
    }
}

/* Room for one more in both tables. */
static bool grow(peers *p)
{
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 16;
        peer_entry **v = realloc(p->v, capacity * sizeof(peer_entry *));
        if (!v) return false;
        p->v = v;
        p->capacity = capacity;
    }
    if ((p->n + 1) * 2 <= p->n_slots) return true;
    size_t n_slots = p->n_slots ? p->n_slots * 2 : 64;
    peer_entry **slots = calloc(n_slots, sizeof(peer_entry *));
    if (!slots) return false;
    free(p->slots);
    p->slots = slots;
    p->n_slots = n_slots;
    for (size_t i = 0; i < p->n; i++) p->slots[find_slot(p, &p->v[i]->peer)] = p->v[i];
    return true;
}

fl_status peers_bind(peers *p, worker_id worker, const transport_peer *peer, uint32_t n_vocab, fl_err *err)
{
    peer_entry *entry = peers_of_worker(p, worker), *old = peers_of_connection(p, peer);
    if (old && old != entry) peers_drop(p, old->worker);                 /* one connection, one worker */
    if (entry) {
        take_slot(p, &entry->peer);
    } else {
        if (!(entry = calloc(1, sizeof *entry)) || !grow(p)) {
            free(entry);
            return fl_fail(err, FL_FULL, "no memory for %zu workers", p->n + 1);
        }
        entry->at = p->n;
        p->v[p->n++] = entry;
        id_map_put(&p->of_worker, worker.v, entry);
    }
    entry->worker = worker;
    entry->peer = *peer;
    entry->n_vocab = n_vocab;
    p->slots[find_slot(p, peer)] = entry;
    return FL_OK;
}

void peers_drop(peers *p, worker_id worker)
{
    peer_entry *entry = peers_of_worker(p, worker);
    if (!entry) return;
    take_slot(p, &entry->peer);
    id_map_remove(&p->of_worker, worker.v);
    p->v[entry->at] = p->v[--p->n];
    p->v[entry->at]->at = entry->at;
    free(entry);
}

void peers_fini(peers *p)
{
    for (size_t i = 0; i < p->n; i++) free(p->v[i]);
    id_map_fini(&p->of_worker);
    free(p->v);
    free(p->slots);
    *p = (peers){ 0 };
}
