/* mapped_file.h - one file of a model, mapped for reading: what safetensors.h and gguf.h read their headers from.
 * Threads  immutable once its reader has set header_bytes. A file that is cut while it is mapped ends the process (SIGBUS). */
#ifndef ENGINE_MAPPED_FILE_H
#define ENGINE_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct {
    char *name;                          /* owned; without its folder, for sentences; set by the caller */
    const uint8_t *bytes; size_t n_bytes;
    bool is_mapped;                      /* bytes are our mapping, else borrowed from the caller */
    size_t header_bytes;                 /* all before the data; set by the format's reader */
} mapped_file;

/* Map the file at `path`, which has `least_bytes` (1 or more) in this `format`. FL_NOT_FOUND when there is none; FL_INVALID when it is no file; FL_CORRUPT when it is shorter. */
fl_status mapped_file_open(mapped_file *file, const char *path, const char *format, size_t least_bytes, fl_err *err);
void      mapped_file_close(mapped_file *file);          /* accepts what was never opened */

#endif
