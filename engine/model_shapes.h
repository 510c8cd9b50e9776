/* model_shapes.h - models without files, for benches: random:SEED:SHAPE, where SHAPE is a directory with a config.json or one of the names here.
 * Threads  plain functions. */
#ifndef ENGINE_MODEL_SHAPES_H
#define ENGINE_MODEL_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define MODEL_SHAPE_NAMES "qwen3.5-0.8b, qwen3-0.6b, qwen3-8b, qwen3.5-35b-a3b, laguna-xs.2"

/* What the model at `path` is. A path without random: is a directory or file: dir = path. Else *seed is set, and either *config is the config.json of a built-in shape, or dir is the
 * directory. FL_INVALID with a sentence when what follows random: has another form, or the path does not fit. */
fl_status model_path_split(const char *path, char *dir, size_t capacity, const char **config, uint64_t *seed, bool *is_random, fl_err *err);

#endif
