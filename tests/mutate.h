/* mutate.h - good inputs made bad, from a seed: flipped bits, bytes and words overwritten (also with huge counts), pieces cut, doubled and spliced between two samples, JSON
 * numbers and words replaced. Each input is a function of (samples, seed, number), so a failure is made again from the two numbers it prints.
 * Threads  plain functions. */
#ifndef TESTS_MUTATE_H
#define TESTS_MUTATE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUTATE_BYTES_MAX (64 * 1024)     /* of one mutated input */

typedef struct { uint8_t *data; size_t n_bytes; } mutate_sample;         /* data owned */
typedef struct { uint64_t state; } mutate_random;

static inline uint64_t mutate_next(mutate_random *r)                     /* splitmix64 */
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline size_t mutate_below(mutate_random *r, size_t n) { return n ? (size_t)(mutate_next(r) % n) : 0; }

/* Replace n_old bytes at `at` by n_new others. A result over the limit is left as it was. */
static inline void mutate_replace(mutate_sample *s, size_t at, size_t n_old, const void *with, size_t n_new)
{
    if (s->n_bytes - n_old + n_new > MUTATE_BYTES_MAX) return;
    memmove(s->data + at + n_new, s->data + at + n_old, s->n_bytes - at - n_old);
    if (n_new) memmove(s->data + at, with, n_new);
    s->n_bytes += n_new - n_old;
}

/* A count or a length as an attacker writes it, over 1, 2, 4 or 8 bytes, either end first. */
static inline void mutate_count(mutate_sample *s, mutate_random *r)
{
    static const uint64_t counts[] = { 0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff };
    size_t width = (size_t)1 << mutate_below(r, 4);
    if (s->n_bytes < width) return;
    size_t at = mutate_below(r, s->n_bytes - width + 1);
    uint64_t count = counts[mutate_below(r, sizeof counts / sizeof *counts)] - mutate_below(r, 3) + 1;
    bool big = mutate_below(r, 2);
    for (size_t i = 0; i < width; i++) s->data[at + i] = (uint8_t)(count >> 8 * (big ? width - 1 - i : i));
}

/* The digits at or after a random place become another number. */
static inline void mutate_number(mutate_sample *s, mutate_random *r)
{
    static const char *const numbers[] = { "0", "-1", "1e999", "-1e999", "1e-999", "4294967295", "4294967296", "2147483648", "9223372036854775807", "9223372036854775808",
                                           "18446744073709551615", "18446744073709551616", "0.1", "-0", "1e15", "99999999999999999999999999999999999999", "null", "[]", "{}", "\"1\"", "true" };
    size_t at = mutate_below(r, s->n_bytes), end;
    while (at < s->n_bytes && !(s->data[at] >= '0' && s->data[at] <= '9')) at++;
    for (end = at; end < s->n_bytes && ((s->data[end] >= '0' && s->data[end] <= '9') || s->data[end] == '.');) end++;
    const char *number = numbers[mutate_below(r, sizeof numbers / sizeof *numbers)];
    if (end > at) mutate_replace(s, at, end - at, number, strlen(number));
}

/* A piece of JSON that has meaning goes in at a random place. */
static inline void mutate_word(mutate_sample *s, mutate_random *r)
{
    static const char *const words[] = { "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud800", "\xff", "\xc0\x80", "\xed\xa0\x80", "\n", "\r\n", "[[[[[[[[[[[[[[[[", "{\"a\":", "\"\":null,",
                                         "\xef\xbb\xbf", "\0", "e", "-", "\xe2\x80\xa8", "NaN", "Infinity" };
    const char *word = words[mutate_below(r, sizeof words / sizeof *words)];
    mutate_replace(s, mutate_below(r, s->n_bytes + 1), 0, word, word[0] ? strlen(word) : 1);
}

/* A piece of the input (or of the other sample) once more, up to 64 times, at a random place; or over what stands there. */
static inline void mutate_chunk(mutate_sample *s, const mutate_sample *other, mutate_random *r)
{
    const mutate_sample *from = mutate_below(r, 2) ? other : s;
    if (from->n_bytes == 0) return;
    size_t begin = mutate_below(r, from->n_bytes), n = 1 + mutate_below(r, from->n_bytes - begin < 256 ? from->n_bytes - begin : 256);
    size_t at = mutate_below(r, s->n_bytes + 1), times = mutate_below(r, 4) ? 1 : 1 + mutate_below(r, 64);
    uint8_t piece[256];
    memcpy(piece, from->data + begin, n);
    bool over = mutate_below(r, 2);
    for (size_t i = 0; i < times && at <= s->n_bytes; i++) mutate_replace(s, at, over ? (n < s->n_bytes - at ? n : s->n_bytes - at) : 0, piece, n);
}

static inline void mutate_step(mutate_sample *s, const mutate_sample *other, mutate_random *r)
{
    size_t at = mutate_below(r, s->n_bytes);
    switch (s->n_bytes == 0 ? 8 : mutate_below(r, 11)) {
    case 0: case 1: s->data[at] ^= (uint8_t)(1u << mutate_below(r, 8)); break;
    case 2: s->data[at] = (uint8_t)mutate_next(r); break;
    case 3: s->n_bytes = at; break;                                                          /* cut the end off */
    case 4: mutate_replace(s, at, 1 + mutate_below(r, s->n_bytes - at), NULL, 0); break;     /* cut a piece out */
    case 5: mutate_count(s, r); break;
    case 6: case 7: mutate_number(s, r); break;
    case 8: mutate_word(s, r); break;
    case 9: mutate_chunk(s, other, r); break;
    case 10:                                                                                 /* the rest is the other sample's */
        mutate_replace(s, at, s->n_bytes - at, other->data + (at < other->n_bytes ? at : 0), at < other->n_bytes ? other->n_bytes - at : 0);
        break;
    }
}

/* Input `number` of the run `seed`, in out->data [MUTATE_BYTES_MAX]. The first n_samples inputs are the samples themselves. */
static inline void mutate_make(mutate_sample *out, const mutate_sample *samples, size_t n_samples, uint64_t seed, uint64_t number)
{
    mutate_random r = { seed ^ number * 0xD1342543DE82EF95u };
    const mutate_sample *from = &samples[number < n_samples ? (size_t)number : mutate_below(&r, n_samples)], *other = &samples[mutate_below(&r, n_samples)];
    out->n_bytes = from->n_bytes < MUTATE_BYTES_MAX ? from->n_bytes : MUTATE_BYTES_MAX;
    memcpy(out->data, from->data, out->n_bytes);
    if (number < n_samples) return;
    for (size_t n = 1 + mutate_below(&r, 4); n > 0; n--) mutate_step(out, other, &r);
}

#endif
