#include "coordinator/gunzip.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { GUNZIP_CHUNK = 256 * 1024 };

typedef enum { BEFORE_MEMBER, IN_MEMBER, IN_PADDING } gunzip_place;

struct gunzip {
    z_stream z;
    const char *name;                    /* borrowed */
    gunzip_sink sink; void *context;
    gunzip_place place;
    uint64_t n_members;
    uint8_t *chunk;                      /* owned */
};

fl_status gunzip_damaged(const char *name, const char *why, fl_err *err)
{
    const char *words = strstr(why, ">: ");              /* gzread's "<fd:3>: " says nothing to a reader */
    return fl_fail(err, FL_CORRUPT, "%s is damaged gzip data (%s): copy or pack it again", name, words ? words + 3 : why);
}

fl_status gunzip_open(gunzip **out, const char *name, gunzip_sink sink, void *context, fl_err *err)
{
    gunzip *g = calloc(1, sizeof *g);
    uint8_t *chunk = malloc(GUNZIP_CHUNK);
    if (!g || !chunk || inflateInit2(&g->z, 15 + 16) != Z_OK) {      /* 15: the largest window; 16: gzip framing */
        free(g);
        free(chunk);
        return fl_fail(err, FL_FULL, "no memory to unpack %s", name);
    }
    g->name = name;
    g->sink = sink;
    g->context = context;
    g->chunk = chunk;
    *out = g;
    return FL_OK;
}

void gunzip_close(gunzip *g)
{
    if (!g) return;
    inflateEnd(&g->z);
    free(g->chunk);
    free(g);
}

/* Unpack what zlib has of one member until it ends or wants more. */
static fl_status inflate_some(gunzip *g, fl_err *err)
{
    g->z.next_out = g->chunk;
    g->z.avail_out = GUNZIP_CHUNK;
    int code = inflate(&g->z, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        return code == Z_MEM_ERROR ? fl_fail(err, FL_FULL, "no memory to unpack %s", g->name)
             : gunzip_damaged(g->name, g->z.msg ? g->z.msg : "unexpected bytes", err);
    if (code == Z_STREAM_END) { g->place = BEFORE_MEMBER; g->n_members++; }
    size_t n = GUNZIP_CHUNK - g->z.avail_out;
    return n ? g->sink(g->context, g->chunk, n, err) : FL_OK;
}

static fl_status push_some(gunzip *g, const uint8_t *data, uInt n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    g->z.next_in = (uint8_t *)data;      /* zlib only reads it */
    g->z.avail_in = n_bytes;
    while (st == FL_OK && g->z.avail_in > 0) {
        if (g->place == BEFORE_MEMBER && g->n_members > 0 && *g->z.next_in == 0) g->place = IN_PADDING;
        if (g->place == IN_PADDING) {
            if (*g->z.next_in != 0) return fl_fail(err, FL_CORRUPT, "%s has foreign bytes behind its gzip data: copy or pack it again", g->name);
            g->z.next_in++;
            g->z.avail_in--;
            continue;
        }
        if (g->place == BEFORE_MEMBER) {
            if (inflateReset(&g->z) != Z_OK) return fl_fail(err, FL_FULL, "no memory to unpack %s", g->name);
            g->place = IN_MEMBER;
        }
        do st = inflate_some(g, err); while (st == FL_OK && g->place == IN_MEMBER && g->z.avail_out == 0);
    }
    return st;
}

fl_status gunzip_push(gunzip *g, const void *data, size_t n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    for (size_t done = 0; st == FL_OK && done < n_bytes;) {
        uInt n = n_bytes - done > INT_MAX ? INT_MAX : (uInt)(n_bytes - done);
        st = push_some(g, (const uint8_t *)data + done, n, err);
        done += n;
    }
    return st;
}

fl_status gunzip_end(gunzip *g, fl_err *err)
{
    if (g->n_members == 0 || g->place == IN_MEMBER) return fl_fail(err, FL_CORRUPT, "%s ends in the middle of its gzip data: copy or pack it again", g->name);
    return FL_OK;
}
