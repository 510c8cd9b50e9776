/* md5.h - MD5 (RFC 1321), because EvalPlus names a data set by it. Not for anything that must withstand an enemy.
 * Threads  plain functions. */
#ifndef COORDINATOR_MD5_H
#define COORDINATOR_MD5_H

#include <stddef.h>

void md5_hex(const void *data, size_t n_bytes, char out[33]);

#endif
