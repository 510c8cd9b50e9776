/* fault_list.h - the bad lines of an ingest, kept until its end: a megabyte in memory, the rest in a file without a name (spill.h).
 * Threads  one. */
#ifndef COORDINATOR_FAULT_LIST_H
#define COORDINATOR_FAULT_LIST_H

#include <stddef.h>
#include <stdint.h>
#include "proto/row_error.h"
#include "proto/status.h"

#define FAULT_ID_MAX 512                 /* bytes */
#define FAULT_TEXT_MAX 240
#define FAULT_BYTES_MAX (32 + FAULT_ID_MAX + FAULT_TEXT_MAX)         /* of one that is written down */

typedef struct {
    uint64_t row, line, offset;          /* offset: of the fault, in the job */
    fl_row_error code;
    uint32_t custom_id_bytes, text_bytes;
    const char *custom_id, *text;        /* borrowed; valid UTF-8 */
} fault_entry;

/* One fault as bytes, little-endian: u64 row, u64 line, u64 offset, u16 code, u16 id bytes, u32 text bytes, id, text. */
size_t fault_encode(uint8_t out[FAULT_BYTES_MAX], const fault_entry *fault);
size_t fault_decode(fault_entry *fault, const uint8_t *bytes);       /* bytes that fault_encode wrote */
void   fault_set_row(uint8_t *bytes, uint64_t row);

typedef struct fault_list fault_list;
fl_status fault_list_open(fault_list **out, const char *dir, fl_err *err);
void      fault_list_close(fault_list *l);                           /* accepts NULL */
fl_status fault_list_add(fault_list *l, const uint8_t *bytes, size_t n_bytes, fl_err *err);     /* one encoded fault */

/* Read them in the order they were added: begin, then next until FL_CLOSED. Any number of times, after the last add. */
fl_status fault_list_begin(fault_list *l, fl_err *err);
fl_status fault_list_next(fault_list *l, fault_entry *fault, fl_err *err);   /* borrowed until the next call */

#endif
