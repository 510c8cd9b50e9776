#include "proto/frame.h"

#include <string.h>

#define MAGIC 0x31464654u                                /* "TFF1" */
#define VERSION 1
#define SUMMED_HEADER_BYTES 16
#define PARTS_MAX 16

uint64_t fl_frame_header(uint8_t header[FL_FRAME_HEADER_BYTES], uint16_t kind, const fl_bytes *parts, int n_parts, uint64_t chain)
{
    FL_ASSERT(n_parts >= 0 && n_parts <= PARTS_MAX);
    fl_bytes summed[1 + PARTS_MAX] = { { header, SUMMED_HEADER_BYTES } };
    size_t n_bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        FL_ASSERT(parts[i].bytes <= FL_FRAME_PAYLOAD_MAX - n_bytes);
        n_bytes += parts[i].bytes;
        summed[1 + i] = parts[i];
    }
    fl_put_u32(header, MAGIC);
    fl_put_u16(header + 4, VERSION);
    fl_put_u16(header + 6, kind);
    fl_put_u32(header + 8, (uint32_t)n_bytes);
    fl_put_u32(header + 12, 0);
    uint64_t checksum = fl_checksum(chain, summed, 1 + n_parts);
    fl_put_u64(header + SUMMED_HEADER_BYTES, checksum);
    return checksum;
}

fl_status fl_frame_decode(fl_frame *frame, const uint8_t *data, size_t n_bytes, uint64_t chain, fl_err *err)
{
    *frame = (fl_frame){ 0 };
    uint8_t expected[6];                                 /* a short buffer that cannot become a frame is refused at once */
    fl_put_u32(expected, MAGIC);
    fl_put_u16(expected + 4, VERSION);
    if (n_bytes && memcmp(data, expected, n_bytes < 4 ? n_bytes : 4) != 0) return fl_fail(err, FL_CORRUPT, "frame: these bytes do not begin a frame");
    if (n_bytes && memcmp(data, expected, n_bytes < 6 ? n_bytes : 6) != 0)
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

    const uint8_t *payload = data + FL_FRAME_HEADER_BYTES;
    if (fl_checksum(chain, (fl_bytes[]){ { data, SUMMED_HEADER_BYTES }, { payload, payload_bytes } }, 2) != frame->checksum)
        return fl_fail(err, FL_CORRUPT, "frame: kind %u, %u bytes: wrong checksum", frame->kind, payload_bytes);
    frame->payload = payload;
    return FL_OK;
}
