#include "coordinator/md5.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

/* RFC 1321, section 3.4; k[i] is the integer part of 2^32 |sin(i + 1)|. */
static void add_block(uint32_t state[4], const uint32_t k[64], const uint8_t *block)
{
    static const int shifts[4][4] = { { 7, 12, 17, 22 }, { 5, 9, 14, 20 }, { 4, 11, 16, 23 }, { 6, 10, 15, 21 } };
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], words[16];
    for (int i = 0; i < 16; i++) words[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    for (int i = 0; i < 64; i++) {
        uint32_t f;
        int word;
        switch (i / 16) {
        case 0:  f = (b & c) | (~b & d); word = i; break;
        case 1:  f = (d & b) | (~d & c); word = (5 * i + 1) % 16; break;
        case 2:  f = b ^ c ^ d;          word = (3 * i + 5) % 16; break;
        default: f = c ^ (b | ~d);       word = 7 * i % 16; break;
        }
        uint32_t next = b + rotate(a + f + k[i] + words[word], shifts[i / 16][i % 4]);
        a = d;
        d = c;
        c = b;
        b = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

void md5_hex(const void *data, size_t n_bytes, char out[33])
{
    uint32_t state[4] = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476 }, k[64];
    uint8_t tail[128] = { 0 };
    const uint8_t *bytes = data;
    size_t n_whole = n_bytes / 64 * 64, n_rest = n_bytes - n_whole, n_tail = n_rest < 56 ? 64 : 128;
    uint64_t n_bits = (uint64_t)n_bytes * 8;
    for (int i = 0; i < 64; i++) k[i] = (uint32_t)floor(fabs(sin(i + 1)) * 4294967296.0);
    for (size_t at = 0; at < n_whole; at += 64) add_block(state, k, bytes + at);
    if (n_rest) memcpy(tail, bytes + n_whole, n_rest);
    tail[n_rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[n_tail - 8 + (size_t)i] = (uint8_t)(n_bits >> (8 * i));
    for (size_t at = 0; at < n_tail; at += 64) add_block(state, k, tail + at);
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", state[i / 4] >> (8 * (i % 4)) & 0xff);
}
