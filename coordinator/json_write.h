/* json_write.h - JSON into a growing buffer: compact, deterministic, always valid UTF-8 without U+2028 and U+2029 as such.
 * Use      commas come by themselves. In an object: json_out_key, then one value. Numbers and strings are values, so are begin .. end.
 *          Without memory `failed` is set and stays; check it once at the end.
 * Threads  plain functions on the caller's buffer. */
#ifndef COORDINATOR_JSON_WRITE_H
#define COORDINATOR_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { char *data; size_t n_bytes, capacity; bool failed, needs_comma; } json_out;      /* zeroed is empty; data is owned */

void json_out_fini(json_out *out);
void json_out_reset(json_out *out, size_t n_bytes);      /* cut back to n_bytes, ready for a first value; forgets a failure */

void json_out_begin(json_out *out, char bracket);            /* '{' or '[' */
void json_out_end(json_out *out, char bracket);              /* '}' or ']' */
void json_out_key(json_out *out, const char *key);           /* plain ASCII, written as it is */
void json_out_key_bytes(json_out *out, const void *key, size_t n_bytes);
void json_out_null(json_out *out);
void json_out_bool(json_out *out, bool value);
void json_out_raw(json_out *out, const char *json, size_t n_bytes);          /* a value that is JSON already, as it is */
void json_out_u64(json_out *out, uint64_t value);
void json_out_i64(json_out *out, int64_t value);
void json_out_float(json_out *out, float value);             /* the shortest decimal that reads back equal; null when not finite */
void json_out_string(json_out *out, const char *text);
void json_out_bytes(json_out *out, const void *bytes, size_t n_bytes);       /* a string; each malformed maximal subpart becomes U+FFFD */
void json_out_base64(json_out *out, const void *bytes, size_t n_bytes);      /* a string; RFC 4648 with padding */
void json_out_line_end(json_out *out);                       /* 0x0A; the next value starts a new line */

#endif
