/* unicode.h - character classes as the reference tokenizer library knows them (its Unicode version, not PCRE2's).
 * Source   unicode_ranges.h, made by tests/golden/make_unicode_ranges.py.
 * Threads  constant tables. */
#ifndef ENGINE_UNICODE_H
#define ENGINE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_END 0x110000u

typedef struct { uint32_t first, last; } unicode_range;

/* General categories as bits: a run of code points has one. */
size_t   unicode_run_count(void);
uint32_t unicode_run_first(size_t run);
uint32_t unicode_run_bit(size_t run);

/* The bits of \p{name}: a category (Lu), a major class (L) or LC. 0 when it is neither. */
uint32_t unicode_property(const char *name, size_t n_bytes);

/* The ranges of \p{script}, of \s, and of what \w holds beyond L, M, Nd, Nl, Pc; NULL when the script is not known here. */
const unicode_range *unicode_script(const char *name, size_t n_bytes, size_t *count);
const unicode_range *unicode_space(size_t *count);
const unicode_range *unicode_word_rest(size_t *count);

bool unicode_is_space(uint32_t c);
/* A word character to the matcher of added tokens (the reference uses another regular expression library there). */
bool unicode_is_added_word(uint32_t c);
/* Inert for the reference's normalization, whatever utf8proc thinks; `decomposing` is a form other than NFC. */
bool unicode_is_young(uint32_t c, bool decomposing);
/* The lower case of c: one character, of U+0130 two. */
size_t unicode_lower(uint32_t c, uint32_t lower[2]);
/* The regular expression of what the Digits pre-tokenizer takes for a digit. */
const char *unicode_numeric(void);

/* Decode one character of valid UTF-8. */
static inline uint32_t utf8_next(const uint8_t *s, size_t *i)
{
    uint32_t b = s[*i];
    if (b < 0x80) { *i += 1; return b; }
    if (b < 0xE0) { uint32_t c = (b & 0x1F) << 6 | (s[*i + 1] & 0x3Fu); *i += 2; return c; }
    if (b < 0xF0) { uint32_t c = (b & 0x0F) << 12 | (s[*i + 1] & 0x3Fu) << 6 | (s[*i + 2] & 0x3Fu); *i += 3; return c; }
    uint32_t c = (b & 0x07) << 18 | (s[*i + 1] & 0x3Fu) << 12 | (s[*i + 2] & 0x3Fu) << 6 | (s[*i + 3] & 0x3Fu);
    *i += 4;
    return c;
}

/* Encode c; room for 4 bytes. Returns how many. */
static inline size_t utf8_put(uint8_t *s, uint32_t c)
{
    if (c < 0x80) { s[0] = (uint8_t)c; return 1; }
    if (c < 0x800) { s[0] = (uint8_t)(0xC0 | c >> 6); s[1] = (uint8_t)(0x80 | (c & 0x3F)); return 2; }
    if (c < 0x10000) { s[0] = (uint8_t)(0xE0 | c >> 12); s[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F)); s[2] = (uint8_t)(0x80 | (c & 0x3F)); return 3; }
    s[0] = (uint8_t)(0xF0 | c >> 18); s[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F)); s[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F)); s[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

#endif
