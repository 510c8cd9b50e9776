/* gunzip.h - gzip bytes in, plain bytes out, piece by piece. Several members back to back are one stream; zero padding behind the last is ignored.
 * Memory   one chunk of 256 KB and zlib's window, whatever the ratio.
 * Threads  one. */
#ifndef COORDINATOR_GUNZIP_H
#define COORDINATOR_GUNZIP_H

#include <stddef.h>
#include "proto/status.h"

typedef struct gunzip gunzip;
typedef fl_status (*gunzip_sink)(void *context, const void *data, size_t n_bytes, fl_err *err);

fl_status gunzip_open(gunzip **out, const char *name, gunzip_sink sink, void *context, fl_err *err);   /* name is borrowed, for sentences */
void      gunzip_close(gunzip *g);       /* accepts NULL */
fl_status gunzip_push(gunzip *g, const void *data, size_t n_bytes, fl_err *err);     /* FL_CORRUPT: not gzip, or damaged; what `sink` returns */
fl_status gunzip_end(gunzip *g, fl_err *err);                                        /* FL_CORRUPT: the stream is not complete */

/* The sentence about a file that zlib's own reader (gzread) gave up on with `why` (gzerror); returns FL_CORRUPT. */
fl_status gunzip_damaged(const char *name, const char *why, fl_err *err);

#endif
