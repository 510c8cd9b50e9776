/* Aho and Corasick 1975 over bytes. A node is a prefix of some stop; its children hang in a list (a row has at most a few stops, so lists are short), the root's in
 * a table of 256. `fail` is the longest proper suffix that is also a prefix of a stop; `hit` the longest stop that ends at this node. */
#include "engine/stop_match.h"

#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t fail, child, sibling; int32_t hit; uint8_t byte; } node;

struct stop_match {
    node *nodes;                         /* owned; 0 is the root, and 0 as a link means none */
    uint32_t n_nodes;
    size_t *stop_bytes;                  /* owned */
    uint32_t first[256];                 /* the root's children */
};

static uint32_t child_of(const stop_match *m, uint32_t at, uint8_t byte)
{
    if (at == 0) return m->first[byte];
    uint32_t c = m->nodes[at].child;
    while (c != 0 && m->nodes[c].byte != byte) c = m->nodes[c].sibling;
    return c;
}

static uint32_t step(const stop_match *m, uint32_t at, uint8_t byte)
{
    uint32_t next;
    while ((next = child_of(m, at, byte)) == 0 && at != 0) at = m->nodes[at].fail;
    return next;
}

static void insert(stop_match *m, const uint8_t *bytes, size_t n_bytes, int32_t index)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t next = child_of(m, at, bytes[i]);
        if (next == 0) {
            next = m->n_nodes++;
            m->nodes[next] = (node){ .byte = bytes[i], .hit = -1 };
            if (at == 0) {
                m->first[bytes[i]] = next;
            } else {
                m->nodes[next].sibling = m->nodes[at].child;
                m->nodes[at].child = next;
            }
        }
        at = next;
    }
    if (m->nodes[at].hit < 0) m->nodes[at].hit = index;  /* of equal stops the first */
}

/* Breadth first, so a node's suffixes are complete before it. */
static void link_suffixes(stop_match *m, uint32_t *queue)
{
    uint32_t head = 0, tail = 0;
    for (int b = 0; b < 256; b++) {
        if (m->first[b] != 0) queue[tail++] = m->first[b];
    }
    while (head < tail) {
        uint32_t at = queue[head++];
        for (uint32_t c = m->nodes[at].child; c != 0; c = m->nodes[c].sibling) {
            m->nodes[c].fail = step(m, m->nodes[at].fail, m->nodes[c].byte);
            if (m->nodes[c].hit < 0) m->nodes[c].hit = m->nodes[m->nodes[c].fail].hit;
            queue[tail++] = c;
        }
    }
}

fl_status stop_match_make(stop_match **out, const char *const *stops, const size_t *stop_bytes, size_t n_stops, fl_err *err)
{
    size_t n_nodes = 1;
    for (size_t i = 0; i < n_stops; i++) {
        if (stop_bytes[i] == 0) return fl_fail(err, FL_INVALID, "stop string %zu is empty: leave it out", i);
        if (stop_bytes[i] > INT32_MAX - n_nodes) return fl_fail(err, FL_INVALID, "the stop strings are longer than 2 GB together: shorten them");
        n_nodes += stop_bytes[i];
    }
    stop_match *m = calloc(1, sizeof *m);
    uint32_t *queue = malloc(n_nodes * sizeof *queue);
    if (m) {
        m->nodes = malloc(n_nodes * sizeof *m->nodes);
        m->stop_bytes = malloc((n_stops + 1) * sizeof *m->stop_bytes);
    }
    if (!m || !queue || !m->nodes || !m->stop_bytes) {
        free(queue);
        stop_match_free(m);
        return fl_fail(err, FL_FULL, "stop strings: no memory for %zu bytes", n_nodes);
    }
    m->nodes[0] = (node){ .hit = -1 };
    m->n_nodes = 1;
    for (size_t i = 0; i < n_stops; i++) {
        m->stop_bytes[i] = stop_bytes[i];
        insert(m, (const uint8_t *)stops[i], stop_bytes[i], (int32_t)i);
    }
    link_suffixes(m, queue);
    free(queue);
    *out = m;
    return FL_OK;
}

void stop_match_free(stop_match *m)
{
    if (!m) return;
    free(m->nodes);
    free(m->stop_bytes);
    free(m);
}

int32_t stop_match_feed(const stop_match *m, stop_cursor *cursor, const uint8_t *bytes, size_t n_bytes, int64_t *text_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        cursor->node = step(m, cursor->node, bytes[i]);
        cursor->n_bytes++;
        int32_t hit = m->nodes[cursor->node].hit;
        if (hit >= 0) {
            *text_bytes = cursor->n_bytes - (int64_t)m->stop_bytes[hit];
            return hit;
        }
    }
    return -1;
}

void stop_match_skip(const stop_match *m, stop_cursor *cursor, const uint8_t *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) cursor->node = step(m, cursor->node, bytes[i]);
    cursor->n_bytes += (int64_t)n_bytes;
}
