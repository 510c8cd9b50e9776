#include "coordinator/sha256.h"

#include <string.h>

void sha256_init(sha256 *state)
{
    static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(state->h, first, sizeof first);
    state->blocks = sha256_blocks_here();
    state->n_bytes = 0;
}

void sha256_add(sha256 *state, const void *data, size_t n_bytes)
{
    const uint8_t *at = data;
    size_t held = state->n_bytes % 64;
    state->n_bytes += n_bytes;
    if (held) {
        size_t take = n_bytes < 64 - held ? n_bytes : 64 - held;
        memcpy(state->block + held, at, take);
        at += take;
        n_bytes -= take;
        if (held + take < 64) return;
        state->blocks(state->h, state->block, 1);
    }
    if (n_bytes >= 64) state->blocks(state->h, at, n_bytes / 64);
    if (n_bytes % 64) memcpy(state->block, at + n_bytes / 64 * 64, n_bytes % 64);
}

void sha256_end(sha256 *state, char hex[SHA256_HEX_BYTES])
{
    uint64_t n_bits = state->n_bytes * 8;
    uint8_t tail[72] = { 0x80 };
    size_t held = state->n_bytes % 64, pad = (held < 56 ? 56 : 120) - held;
    for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (uint8_t)(n_bits >> (56 - 8 * i));
    sha256_add(state, tail, pad + 8);
    for (int i = 0; i < 32; i++) {
        uint8_t byte = (uint8_t)(state->h[i / 4] >> (24 - 8 * (i % 4)));
        hex[2 * i] = "0123456789abcdef"[byte >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[byte & 15];
    }
    hex[64] = '\0';
}
