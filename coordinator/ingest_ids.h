/* ingest_ids.h - the rows of a job that have an earlier row's custom_id: found in the merge of all ids, marked in rows.idx, told in the job's order.
 *            Without suffix each becomes a bad row. With it a row gets a name of its own, ID#<line> (fl_row_rename); it is bad only when that name, too, is another row's.
 * Memory   bounded (id_runs.h), however many there are.
 * Threads  one; half of ingest.c, nobody else needs it. */
#ifndef COORDINATOR_INGEST_IDS_H
#define COORDINATOR_INGEST_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include "coordinator/fault_list.h"
#include "coordinator/id_runs.h"

typedef struct {
    id_runs *ids;                        /* borrowed: one record a row whose id could be read */
    int index_fd, job_fd;                /* of the job's two files, for reading; the index also for writing */
    const char *job_dir, *defaults;      /* as in ingest_options */
    bool suffix;
    uint64_t n_rows, n_bytes;            /* of the job */
    fl_status (*note)(void *context, fl_err *err); void *context;    /* called now and then; anything but FL_OK ends the search */
} ingest_ids_options;

/* What the search changed. */
typedef struct { uint64_t n_bad, n_renamed, samples_lost, cost_lost; } ingest_ids_counts;

typedef struct ingest_ids ingest_ids;

fl_status ingest_ids_open(ingest_ids **out, const ingest_ids_options *options, ingest_ids_counts *found, fl_err *err);     /* options' strings and descriptors are borrowed */
void      ingest_ids_close(ingest_ids *t);               /* accepts NULL */

/* The bad ones in the order of rows, also those that were bad before: begin, then next until FL_CLOSED. */
fl_status ingest_ids_begin(ingest_ids *t, fl_err *err);
fl_status ingest_ids_next(ingest_ids *t, fault_entry *fault, fl_err *err);           /* borrowed until the next call */

#endif
