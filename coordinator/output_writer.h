/* output_writer.h - OUT and ERR of one job, written in a thread of their own while the job runs: as far as its first rows are all finished, and to the end once
 * it is closed. What is there can be read meanwhile through the temporary names (output_file.h).
 * Again    after a crash, or a full disk, a writer begins at row 0 of the same bytes.
 * Threads  start, and the calls below, belong to one thread, which never waits for the writer's own except in close. */
#ifndef COORDINATOR_OUTPUT_WRITER_H
#define COORDINATOR_OUTPUT_WRITER_H

#include "coordinator/output_file.h"

typedef struct output_writer output_writer;

/* Strings are copied. */
typedef struct {
    const char *job_dir, *ledger_dir, *job_name;
    output_place out, errors;
    int n_threads;                       /* to make lines with, when there are many */
} output_writer_options;

typedef struct { uint64_t rows, bytes[2]; } output_written;      /* rows whose lines are in the files; bytes of OUT and of ERR */

/* Begin with what is durable: the ledger up to `durable` (ledger_marked); is_closed: the closing record is among it. */
fl_status output_writer_start(output_writer **out, const output_writer_options *options, ledger_place durable, bool is_closed, fl_err *err);

/* More is durable. Cheap: the thread looks every 100 ms, at once when the job is closed. */
void output_writer_advance(output_writer *w, ledger_place durable, bool is_closed);

output_written output_writer_written(output_writer *w);

/* FL_AGAIN while it runs. FL_OK: both files have their names, *counts are the job's. FL_CLOSED: it was asked to stop. FL_DISK_FULL, FL_CONFLICT, FL_CORRUPT
 * and so on: nothing is left. To be asked until it is not FL_AGAIN, then closed. */
fl_status output_writer_poll(output_writer *w, job_counts *counts, fl_err *err);

void output_writer_stop(output_writer *w);               /* it ends soon, with nothing left; ask poll */
void output_writer_close(output_writer *w);              /* accepts NULL; waits for the thread: ask it to stop first where it shall not finish */

#endif
