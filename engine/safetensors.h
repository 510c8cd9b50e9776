/* safetensors.h - the weight files of a model directory, mapped, checked, never trusted: model.safetensors, or the shards that
 * model.safetensors.index.json names.
 * Source   the safetensors format: u64 header bytes, a JSON object of name -> dtype, shape, data_offsets, then the data without holes.
 * Checks   header length, duplicate names (also between shards), known dtypes, size = shape product * dtype, offsets inside the
 *          file, no overlap, no hole, alignment. Every sum and product is overflow-checked.
 * Threads  immutable after open; any thread may read. A file that is cut while it is mapped ends the process (SIGBUS). */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/tensor.h"
#include "proto/status.h"

typedef struct safetensors safetensors;

/* Map the weights of `model_dir`. FL_NOT_FOUND without them; FL_CORRUPT or FL_UNSUPPORTED with a sentence that names file and tensor. */
fl_status safetensors_open(safetensors **out, const char *model_dir, fl_err *err);

/* The same over one file's bytes, which stay the caller's and must outlive *out. `name` is what sentences call it. */
fl_status safetensors_open_bytes(safetensors **out, const char *name, const uint8_t *bytes, size_t n_bytes, fl_err *err);
void      safetensors_close(safetensors *st);            /* accepts NULL */

size_t        safetensors_count(const safetensors *st);
const tensor *safetensors_at(const safetensors *st, size_t index);       /* sorted by name */
const tensor *safetensors_find(const safetensors *st, const char *name); /* NULL when absent */

size_t   safetensors_file_count(const safetensors *st);                  /* in order of file names */
const uint8_t *safetensors_header(const safetensors *st, size_t file, size_t *n_bytes);   /* the length word and the JSON of one file */

#endif
