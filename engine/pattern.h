/* pattern.h - a pre-tokenizer's regular expression, matched over symbols.
 * Idea     Only a few sets of characters occur in a pattern (\p{L}, \s, [\r\n] ...). Characters that lie in the same sets are one symbol: a byte. ASCII stands
 *          for itself, the rest shares the bytes 128 to 255. So the pattern becomes one over bytes, where every class is a bitmap, PCRE2 needs no Unicode tables
 *          of its own, and its JIT code runs as fast on Chinese as on English.
 * Source   the dialect is Oniguruma's (Ruby syntax), which the reference uses; what this file does not know it refuses by name.
 * Threads  a pattern is immutable; a finder belongs to one call. */
#ifndef ENGINE_PATTERN_H
#define ENGINE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct pattern pattern;
typedef struct pattern_finder pattern_finder;    /* the scratch of matching */

/* FL_UNSUPPORTED names the part that is not known here. */
fl_status pattern_compile(pattern **out, const char *regex, size_t n_bytes, fl_err *err);
/* A pattern that matches `text` itself. */
fl_status pattern_compile_literal(pattern **out, const char *text, size_t n_bytes, fl_err *err);
void      pattern_free(pattern *p);              /* accepts NULL */

fl_status pattern_finder_open(pattern_finder **out, const pattern *p, fl_err *err);
void      pattern_finder_close(pattern_finder *f);

/* Called with each match and each non-empty text between matches, in order, as bytes [begin, end); a match may be empty. A failure stops the cutting and is returned. */
typedef fl_status (*pattern_piece)(void *context, size_t begin, size_t end, bool is_match, fl_err *err);

/* Cut n_bytes of valid UTF-8 into matches and the rest. FL_INVALID when the pattern gives up on this text. */
fl_status pattern_cut(pattern_finder *f, const uint8_t *text, size_t n_bytes, pattern_piece piece, void *context, fl_err *err);

#endif
