/* token_block.h - token ids as bytes: LEB128 varints, then LZ4. Also blocks of fp32 (log-probabilities).
 * Layout   little-endian: u32 magic "TTB1" / "TFB1", u16 version (1), u16 flags (bit 0: LZ4, else stored), u32 count, u32 raw
 *          bytes, u32 packed bytes, u32 zero, u64 XXH3-64 over the bytes before it and the packed bytes, then the packed bytes.
 *          Raw bytes: `count` LEB128 varints of the id (1..5 bytes each), or count * 4 bytes of fp32 split in 4 byte planes.
 * Bounds   raw bytes are checked against the count (count <= raw <= 5 * count) and count against `count_max` before anything
 *          is allocated, so a hostile header cannot ask for more memory than the caller named.
 * Threads  plain functions on the caller's memory. Deterministic: the same entries give the same bytes, whatever the room given
 *          (LZ4 is used where it is smaller than the raw bytes). Another release of liblz4 may pack them otherwise; each reads the other's. */
#ifndef FL_TOKEN_BLOCK_H
#define FL_TOKEN_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FL_BLOCK_HEADER_BYTES 32

/* Bytes that always suffice for the block of n ids or n floats. */
size_t fl_token_block_bound(size_t n);
size_t fl_float_block_bound(size_t n);

/* Encode n ids (0 .. 2^31-1) or n floats (bits kept, NaN too) into out[capacity], capacity at least the bound. FL_OK: *out_bytes is the block's size. */
fl_status fl_token_block_encode(uint8_t *out, size_t capacity, size_t *out_bytes, const int32_t *ids, size_t n, fl_err *err);
fl_status fl_float_block_encode(uint8_t *out, size_t capacity, size_t *out_bytes, const float *values, size_t n, fl_err *err);

/* Decode the block at the start of data. FL_OK: *out (malloc, the caller frees; NULL when n is 0) holds *n entries and
 * *used bytes were read. FL_CORRUPT otherwise, with the reason. */
fl_status fl_token_block_decode(int32_t **out, size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, fl_err *err);
fl_status fl_float_block_decode(float **out, size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, fl_err *err);

/* Would fl_token_block_decode read this block, and are all its ids below n_ids? The same *n and *used, without building the array. */
fl_status fl_token_block_check(size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, uint32_t n_ids, fl_err *err);

#endif
