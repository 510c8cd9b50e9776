#include "engine/unicode.h"
#include "engine/unicode_ranges.h"

#include <string.h>
#include <utf8proc.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

size_t unicode_run_count(void) { return COUNT(unicode_runs); }
uint32_t unicode_run_first(size_t run) { return unicode_runs[run] >> 5; }
uint32_t unicode_run_bit(size_t run) { return 1u << (unicode_runs[run] & 31); }

uint32_t unicode_property(const char *name, size_t n_bytes)
{
    uint32_t bits = 0;
    bool cased = n_bytes == 2 && memcmp(name, "LC", 2) == 0;
    for (size_t i = 0; i < COUNT(unicode_category_names); i++) {
        const char *c = unicode_category_names[i];
        if (n_bytes == 1 && name[0] == c[0]) bits |= 1u << i;
        if (n_bytes == 2 && memcmp(name, c, 2) == 0) bits |= 1u << i;
        if (cased && c[0] == 'L' && (c[1] == 'u' || c[1] == 'l' || c[1] == 't')) bits |= 1u << i;
    }
    return bits;
}

const unicode_range *unicode_script(const char *name, size_t n_bytes, size_t *count)
{
    static const struct { const char *name; const unicode_range *ranges; size_t count; } scripts[] = {
        { "Han", unicode_han, COUNT(unicode_han) },
        { "Hiragana", unicode_hiragana, COUNT(unicode_hiragana) },
        { "Katakana", unicode_katakana, COUNT(unicode_katakana) },
        { "Hangul", unicode_hangul, COUNT(unicode_hangul) },
    };
    for (size_t i = 0; i < COUNT(scripts); i++) {
        if (strlen(scripts[i].name) != n_bytes || memcmp(scripts[i].name, name, n_bytes) != 0) continue;
        *count = scripts[i].count;
        return scripts[i].ranges;
    }
    return NULL;
}

const unicode_range *unicode_space(size_t *count) { *count = COUNT(unicode_spaces); return unicode_spaces; }
const unicode_range *unicode_word_rest(size_t *count) { *count = COUNT(unicode_word_extra); return unicode_word_extra; }

static bool among(const unicode_range *r, size_t count, uint32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > r[mid].last) low = mid + 1;
        else high = mid;
    }
    return low < count && c >= r[low].first;
}

bool unicode_is_space(uint32_t c) { return among(unicode_spaces, COUNT(unicode_spaces), c); }

bool unicode_is_young(uint32_t c, bool decomposing)
{
    return among(unicode_young, COUNT(unicode_young), c) || (decomposing && among(unicode_young_decompositions, COUNT(unicode_young_decompositions), c));
}

size_t unicode_lower(uint32_t c, uint32_t lower[2])
{
    if (c < 0x80) { lower[0] = c >= 'A' && c <= 'Z' ? c | 0x20 : c; return 1; }
    if (c == 0x130) { lower[0] = 'i'; lower[1] = 0x307; return 2; }
    for (size_t i = 0; i < COUNT(unicode_lower_cases) && unicode_lower_cases[i].first <= c; i++) {
        if (unicode_lower_cases[i].first == c) { lower[0] = unicode_lower_cases[i].last; return 1; }
    }
    lower[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

const char *unicode_numeric(void) { return unicode_numeric_class; }

bool unicode_is_added_word(uint32_t c)
{
    size_t low = 0, high = COUNT(unicode_runs);
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (unicode_run_first(mid) <= c) low = mid;
        else high = mid;
    }
    uint32_t word = unicode_property("L", 1) | unicode_property("M", 1) | unicode_property("Nd", 2) | unicode_property("Nl", 2) | unicode_property("Pc", 2);
    if (unicode_run_bit(low) & word) return true;
    if (c == 0x200C || c == 0x200D) return true;         /* the joiners count there, the superscripts and fractions of Latin-1 do not */
    return c > 0xFF && among(unicode_word_extra, COUNT(unicode_word_extra), c);
}
