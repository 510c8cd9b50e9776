/* frame.h - the framing of every byte stream of ours: ledger segments and the socket pair between worker and engine.
 * Layout   little-endian, 24 bytes of header, then the payload:
 *            0  u32 magic "TFF1" (0x31464654)     4  u16 version (1)     6  u16 kind (the stream's own enum)
 *            8  u32 payload bytes (0 .. FL_FRAME_PAYLOAD_MAX)           12  u32 zero
 *           16  u64 XXH3-64 over header bytes 0..15 and the payload, seeded with `chain`
 *          `chain` is what binds a frame to its place: a ledger passes the checksum of the frame before it, so a frame
 *          that was removed, doubled or moved breaks the next one; a socket passes 0.
 * Threads  plain functions on the caller's memory. */
#ifndef FL_FRAME_H
#define FL_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include "proto/bytes.h"
#include "proto/status.h"

#define FL_FRAME_HEADER_BYTES 24
#define FL_FRAME_PAYLOAD_MAX (8u * 1024 * 1024)

typedef struct {
    uint16_t kind;
    uint32_t payload_bytes;
    uint64_t checksum;
    const uint8_t *payload;      /* borrowed from the decoded buffer */
} fl_frame;

/* Write the 24-byte header for a payload made of `n_parts` pieces that follow it back to back (16 at most). Returns the checksum. More
 * than FL_FRAME_PAYLOAD_MAX bytes is a broken assumption of the caller's (FL_ASSERT). */
uint64_t fl_frame_header(uint8_t header[FL_FRAME_HEADER_BYTES], uint16_t kind, const fl_bytes *parts, int n_parts, uint64_t chain);

/* Decode the frame at the start of `data`. FL_OK: `*frame` borrows from data, and header + payload_bytes are consumed.
 * FL_AGAIN: a prefix of a good frame (more bytes are needed); once the header is there, kind, payload_bytes and checksum
 * are filled. FL_CORRUPT: not a frame, too long, or a wrong checksum. */
fl_status fl_frame_decode(fl_frame *frame, const uint8_t *data, size_t n_bytes, uint64_t chain, fl_err *err);

#endif
