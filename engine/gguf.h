/* gguf.h - GGUF files, mapped, checked, never trusted: typed metadata and a directory of tensors, of one file or of a split model's files.
 * Source   ggml's docs/gguf.md, versions 2 and 3, little-endian: magic, version, u64 counts, key-value pairs, tensor infos, then the data from the next
 *          multiple of general.alignment. Lengths are u64; dimensions are stored columns first, and shown here rows first.
 * Checks   every length and count against the bytes that are left; keys and tensors named once; known value kinds and tensor types; whole blocks a row; offsets
 *          aligned, inside the file, without overlap. Sums and products are overflow-checked, and sentences name all operands.
 * Memory   an index entry for each key and tensor that is really there: no count is believed before its bytes were seen.
 * Threads  immutable after open; any thread may read. A file that is cut while it is mapped ends the process (SIGBUS). */
#ifndef ENGINE_GGUF_H
#define ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/tensor.h"
#include "proto/status.h"

typedef struct gguf gguf;

/* Whether `path` is one file in this format (by its end or, where it is a file, by its first bytes) rather than a model directory. A name that ends in .gguf and is not there counts. */
bool gguf_is_path(const char *path);

/* What a model in this file is called: the path's last part without .gguf and without -00001-of-0000N. malloc'ed; NULL without memory. */
char *gguf_model_name(const char *path);

/* Map `path`, and where it is the first file of a split model the others beside it. FL_NOT_FOUND when one is missing; FL_CORRUPT or FL_UNSUPPORTED with a sentence that names file
 * and place. */
fl_status gguf_open(gguf **out, const char *path, fl_err *err);

/* The same over one file's bytes, which stay the caller's, 8-byte aligned, and must outlive *out. `name` is what sentences call it. */
fl_status gguf_open_bytes(gguf **out, const char *name, const uint8_t *bytes, size_t n_bytes, fl_err *err);
void      gguf_close(gguf *g);                           /* accepts NULL */

uint32_t    gguf_version(const gguf *g);
const char *gguf_name(const gguf *g);                    /* of the first file, for sentences */

/* ---- tensors ---- */

size_t        gguf_tensor_count(const gguf *g);
const tensor *gguf_tensor_at(const gguf *g, size_t index);               /* sorted by name */
const tensor *gguf_tensor_find(const gguf *g, const char *name);         /* NULL when absent */
size_t        gguf_file_count(const gguf *g);
const uint8_t *gguf_header(const gguf *g, size_t file, size_t *n_bytes); /* all before the data of one file */

/* ---- metadata (of the first file) ---- */

typedef enum { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_KINDS } gguf_kind;

/* One key and its value; all pointers into the mapping. */
typedef struct {
    const char *key; size_t key_bytes;
    gguf_kind kind, element;         /* element: of an array */
    uint64_t count;                  /* of an array; 1 otherwise */
    const uint8_t *data; size_t n_bytes;         /* the value; a string's text, an array's elements */
} gguf_field;

size_t            gguf_field_count(const gguf *g);
const gguf_field *gguf_field_at(const gguf *g, size_t index);            /* sorted by key */
const gguf_field *gguf_find(const gguf *g, const char *key);             /* NULL when absent */

/* Typed readers. FL_NOT_FOUND: the key is absent. FL_CORRUPT, saying what the value is and what is wanted: it has another type, sign or length. On failure nothing is stored.
 *   int     a whole number of any width, within lo .. hi            number  a finite f32, f64 or whole number
 *   flag    a bool, 0 or 1                                          text    a string of valid UTF-8 without NUL; *text is not NUL-terminated */
fl_status gguf_int(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, fl_err *err);
fl_status gguf_number(const gguf *g, const char *key, double *out, fl_err *err);
fl_status gguf_flag(const gguf *g, const char *key, bool *out, fl_err *err);
fl_status gguf_text(const gguf *g, const char *key, const char **text, size_t *n_bytes, fl_err *err);
bool      gguf_text_is(const gguf *g, const char *key, const char *wanted);      /* the key is a text, and this one */

/* An array of bools or of whole numbers of any width as u32; each must be 0 .. 2^32 - 1, and there must be n_want of them unless that is 0. *out [*n] is malloc'ed, the caller frees. */
fl_status gguf_u32_array(const gguf *g, const char *key, size_t n_want, uint32_t **out, size_t *n, fl_err *err);

/* The elements of an array of strings, in order; begin checks the type, next is true while there is one more. */
typedef struct { const uint8_t *at; uint64_t left; } gguf_strings;
fl_status gguf_strings_begin(gguf_strings *s, const gguf *g, const char *key, fl_err *err);
bool      gguf_strings_next(gguf_strings *s, const char **text, size_t *n_bytes);

#endif
