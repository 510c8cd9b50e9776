/* fuzz_frame.c - a stream of frames, each chained to the one before it. The first byte says whether their checksums are made
 * right first, so that what lies behind them is reached. A frame has one encoding: its header made anew must be the same bytes. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 1) return 0;
    bool repair = data[0] & 1;
    n_bytes--;
    uint8_t *copy = malloc(n_bytes + 1), header[FL_FRAME_HEADER_BYTES];   /* one byte more: malloc(0) may be NULL */
    memcpy(copy, data + 1, n_bytes);
    uint64_t chain = 0;
    for (size_t at = 0; at < n_bytes;) {
        uint8_t *here = copy + at;
        size_t left = n_bytes - at;
        if (repair && left >= FL_FRAME_HEADER_BYTES && fl_get_u32(here + 8) <= left - FL_FRAME_HEADER_BYTES)
            fl_put_u64(here + 16, fl_checksum(chain, (fl_bytes[]){ { here, 16 }, { here + FL_FRAME_HEADER_BYTES, fl_get_u32(here + 8) } }, 2));
        fl_frame frame;
        fl_err err = { 0 };
        fl_status st = fl_frame_decode(&frame, here, left, chain, &err);
        if (st != FL_OK) {
            FL_ASSERT(st == FL_AGAIN || (st == FL_CORRUPT && err.text[0]));
            break;
        }
        chain = fl_frame_header(header, frame.kind, &(fl_bytes){ frame.payload, frame.payload_bytes }, 1, chain);
        FL_ASSERT(chain == frame.checksum && memcmp(header, here, sizeof header) == 0);
        at += FL_FRAME_HEADER_BYTES + frame.payload_bytes;
    }
    free(copy);
    return 0;
}
