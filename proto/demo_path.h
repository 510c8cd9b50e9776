/* demo_path.h - where the model that ships lies: what `--model demo` means.
 * Search   beside the program that runs: DIR/../share/tokenfleet/demo_model when installed, else DIR/../../../ops/demo_model for a program in
 *          build/PRESET/bin, where DIR is the folder of /proc/self/exe. The first that holds a config.json is taken.
 * Threads  plain functions. */
#ifndef FL_DEMO_PATH_H
#define FL_DEMO_PATH_H

#include <stddef.h>
#include "proto/status.h"

#define FL_DEMO_MODEL "demo"

/* The folder or file that `model` (the value of --model) names, as a path in out[capacity]: the shipped model for "demo", else `model` itself. FL_NOT_FOUND
 * when the shipped model is in neither place, FL_INVALID when the path does not fit. Whether another path exists is the opener's affair. */
fl_status fl_model_path(const char *model, char *out, size_t capacity, fl_err *err);

#endif
