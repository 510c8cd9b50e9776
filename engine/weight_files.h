/* weight_files.h - the weights of a model, wherever they lie: the safetensors files of a directory, or GGUF files. A family asks for its tensors by the names they have in
 * transformers' checkpoints; a GGUF file answers with what it calls them.
 * Threads  immutable after open. */
#ifndef ENGINE_WEIGHT_FILES_H
#define ENGINE_WEIGHT_FILES_H

#include "engine/gguf.h"
#include "engine/gguf_names.h"
#include "engine/safetensors.h"

typedef struct weight_files weight_files;

/* Map the weights of the directory or .gguf file at `path`. Fails as safetensors_open and gguf_open do. */
fl_status weight_files_open(weight_files **out, const char *path, fl_err *err);
void      weight_files_close(weight_files *w);           /* accepts NULL */

size_t        weight_files_count(const weight_files *w);
const tensor *weight_files_at(const weight_files *w, size_t index);      /* as the files call them, sorted */

size_t        weight_files_index(const weight_files *w, const tensor *t);        /* of one that weight_files_find gave, as weight_files_at counts */

/* The tensor that checkpoints call `name`, and what its values went through; NULL when absent. `change` may be NULL. */
const tensor *weight_files_find(const weight_files *w, const char *name, gguf_change *change);

/* Factors of whole matrices that a GGUF file holds beside one of its tensors (X.scale beside X.weight, as NVFP4 files do); NULL when there are none. */
const tensor *weight_files_factors(const weight_files *w, const tensor *t);

size_t         weight_files_file_count(const weight_files *w);           /* in order */
const uint8_t *weight_files_header(const weight_files *w, size_t file, size_t *n_bytes);  /* all before the data of one file */

const gguf *weight_files_gguf(const weight_files *w);    /* NULL for a directory */

#endif
