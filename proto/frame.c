#include "proto/frame.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY                          /* the state on the stack: no allocation a frame */
#include <xxhash.h>

#include "proto/bytes.h"

#define MAGIC 0x31464654u                                /* "TFF1" */
#define VERSION 1
#define SUMMED_HEADER_BYTES 16

static uint64_t frame_checksum(const uint8_t *header, const fl_bytes *parts, int n_parts, uint64_t chain)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, chain);
    XXH3_64bits_update(&state, header, SUMMED_HEADER_BYTES);
    for (int i = 0; i < n_parts; i++)
        if (parts[i].bytes) XXH3_64bits_update(&state, parts[i].data, parts[i].bytes);
    return XXH3_64bits_digest(&state);
}

uint64_t fl_frame_header(uint8_t header[FL_FRAME_HEADER_BYTES], uint16_t kind, const fl_bytes *parts, int n_parts, uint64_t chain)
{
    size_t n_bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        FL_ASSERT(parts[i].bytes <= FL_FRAME_PAYLOAD_MAX - n_bytes);
        n_bytes += parts[i].bytes;
    }
    fl_put_u32(header, MAGIC);
    fl_put_u16(header + 4, VERSION);
    fl_put_u16(header + 6, kind);
    fl_put_u32(header + 8, (uint32_t)n_bytes);
    fl_put_u32(header + 12, 0);
    uint64_t checksum = frame_checksum(header, parts, n_parts, chain);
    fl_put_u64(header + SUMMED_HEADER_BYTES, checksum);
    return checksum;
}

fl_status fl_frame_decode(fl_frame *frame, const uint8_t *data, size_t n_bytes, uint64_t chain, fl_err *err)
{
    *frame = (fl_frame){ 0 };
    uint8_t expected[6];                                 /* a short buffer that cannot become a frame is refused at once */
    fl_put_u32(expected, MAGIC);
    fl_put_u16(expected + 4, VERSION);
    size_t known = n_bytes < 4 ? n_bytes : 4;
    if (known && memcmp(data, expected, known) != 0) return fl_fail(err, FL_CORRUPT, "frame: these bytes do not begin a frame");
    known = n_bytes < 6 ? n_bytes : 6;
    if (known && memcmp(data, expected, known) != 0)
        return fl_fail(err, FL_CORRUPT, "frame: of another version than %d, which this program reads", VERSION);
    if (n_bytes < FL_FRAME_HEADER_BYTES) return FL_AGAIN;

    uint32_t payload_bytes = fl_get_u32(data + 8);
    if (payload_bytes > FL_FRAME_PAYLOAD_MAX)
        return fl_fail(err, FL_CORRUPT, "frame: %u bytes are more than the %u a frame may hold", payload_bytes, FL_FRAME_PAYLOAD_MAX);
    if (fl_get_u32(data + 12) != 0) return fl_fail(err, FL_CORRUPT, "frame: reserved header bytes are not zero");
    frame->kind = fl_get_u16(data + 6);
    frame->payload_bytes = payload_bytes;
    frame->checksum = fl_get_u64(data + SUMMED_HEADER_BYTES);
    if (n_bytes - FL_FRAME_HEADER_BYTES < payload_bytes) return FL_AGAIN;

    fl_bytes payload = { data + FL_FRAME_HEADER_BYTES, payload_bytes };
    if (frame_checksum(data, &payload, 1, chain) != frame->checksum)
        return fl_fail(err, FL_CORRUPT, "frame: kind %u, %u bytes: wrong checksum", frame->kind, payload_bytes);
    frame->payload = payload.data;
    return FL_OK;
}
