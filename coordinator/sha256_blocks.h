/* sha256_blocks.h - the inner loop of sha256.h in two forms with the same result: portable, and with the SHA instructions of x86 where the processor has them.
 * Threads  plain functions. */
#ifndef COORDINATOR_SHA256_BLOCKS_H
#define COORDINATOR_SHA256_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* Take n_blocks blocks of 64 bytes into the state h. */
typedef void (*sha256_blocks)(uint32_t h[8], const uint8_t *data, size_t n_blocks);

void sha256_blocks_portable(uint32_t h[8], const uint8_t *data, size_t n_blocks);
sha256_blocks sha256_blocks_here(void);                  /* the faster one that works on this processor */

#endif
