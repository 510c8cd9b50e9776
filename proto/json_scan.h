/* json_scan.h - JSON as a job line has it: checked once, then read in place through spans, without a tree.
 * Why      a line may be 64 MB: a tree takes up to 66 bytes a byte, this takes 16 bytes a key of the open objects and nothing else. It also gives the byte of every
 *          fault, 64-bit unsigned integers, and values that can be passed on (to a chat template) exactly as they were written.
 * Rules    RFC 8259 and: valid UTF-8 everywhere; no half surrogate pairs; no object with the same key twice (compared after escapes); at most FL_JSON_DEPTH_MAX
 *          levels; at most FL_JSON_KEYS_MAX keys in the objects open at one place. Numbers have any size.
 * Threads  plain functions on the caller's memory. Everything but fl_json_check expects text that fl_json_check accepted. */
#ifndef FL_JSON_SCAN_H
#define FL_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/row_error.h"

#define FL_JSON_DEPTH_MAX 128
#define FL_JSON_KEYS_MAX (1u << 20)
#define FL_JSON_WHY_BYTES 160

typedef enum { FL_JSON_ABSENT, FL_JSON_NULL, FL_JSON_BOOL, FL_JSON_NUMBER, FL_JSON_STRING, FL_JSON_ARRAY, FL_JSON_OBJECT } fl_json_type;

/* A value: text[start .. end), quotes and brackets included. */
typedef struct { fl_json_type type; size_t start, end; } fl_json;

/* Check that text[0 .. n_bytes) is one JSON value with white space around it. ROW_OK and *value; else ROW_INVALID_UTF8 (looked for first, in the whole text),
 * ROW_INVALID_JSON or ROW_LINE_TOO_LONG (too many keys), the byte of the fault and a sentence. Stops the process when memory runs out. */
fl_row_error fl_json_check(const char *text, size_t n_bytes, fl_json *value, size_t *offset, char why[FL_JSON_WHY_BYTES]);

/* Walk the members of an array or object: start at fl_json_members(value), then while (fl_json_next(...)). `key` may be NULL; for arrays it is ABSENT. */
typedef struct { const char *text; size_t at, end; bool is_object; } fl_json_walk;
fl_json_walk fl_json_members(const char *text, fl_json container);
bool         fl_json_next(fl_json_walk *walk, fl_json *key, fl_json *value);

bool     fl_json_is(const char *text, fl_json string, const char *literal);      /* a STRING that reads as this C string */
bool     fl_json_true(const char *text, fl_json boolean);
size_t   fl_json_string_bytes(const char *text, fl_json string);                 /* of its UTF-8, escapes resolved */
char    *fl_json_string(const char *text, fl_json string, size_t *n_bytes);      /* malloc'ed, a NUL follows; stops the process when memory runs out */
bool     fl_json_integer(const char *text, fl_json number, bool *negative, uint64_t *magnitude);   /* false: has a fraction or exponent, or is beyond 64 bits */
double   fl_json_double(const char *text, fl_json number);                       /* nearest; infinite when beyond the range */

/* The offset of the first byte that is not part of valid UTF-8 (its sequence's first byte), or n_bytes. */
size_t fl_utf8_fault(const char *text, size_t n_bytes);

#endif
