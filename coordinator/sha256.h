/* sha256.h - SHA-256 (FIPS 180-4), so that `verify` prints what sha256sum prints.
 * Threads  a state belongs to its caller. */
#ifndef COORDINATOR_SHA256_H
#define COORDINATOR_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include "coordinator/sha256_blocks.h"

#define SHA256_HEX_BYTES 65                      /* 64 digits + NUL */

typedef struct { uint32_t h[8]; uint64_t n_bytes; uint8_t block[64]; sha256_blocks blocks; } sha256;

void sha256_init(sha256 *state);
void sha256_add(sha256 *state, const void *data, size_t n_bytes);
void sha256_end(sha256 *state, char hex[SHA256_HEX_BYTES]);      /* the state is used up */

#endif
