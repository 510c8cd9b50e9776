/* output_maker.h - one thread's means to make the lines of OUT and ERR: its own readers and buffers over what a job's makers share.
 * Threads  a maker belongs to one thread; what they share is only read while lines are made. */
#ifndef COORDINATOR_OUTPUT_MAKER_H
#define COORDINATOR_OUTPUT_MAKER_H

#include "coordinator/ledger_index.h"
#include "coordinator/output_line.h"

#define OUTPUT_BATCH_ROWS 256
#define OUTPUT_LARGE_BYTES (1u << 20)    /* a row whose line or results have so many bytes is large: one at a time is in memory */

/* What all makers of a job read. Borrowed. */
typedef struct {
    const char *ledger_dir;
    const rows *lines;
    const ledger_index *index;
    const fl_detok *detok;
    output_job job;
    const char *defaults;                /* the --set object, NULL = none */
    uint32_t n_vocab;
    bool is_graded;                      /* row n_rows + r has the verdicts of row r */
    ledger_cause cause;                  /* 0: the job goes on, so only finished rows may be asked for */
} output_shared;

/* Lines of rows that follow each other, in input order: the rows `first` .. first + n_rows - 1. */
typedef struct {
    row_index first;
    uint32_t n_rows;
    uint8_t is_error[OUTPUT_BATCH_ROWS]; /* of each row: its line is in lines[1] (ERR), else in lines[0] (OUT) */
    json_out lines[2];                   /* owned */
    uint64_t n_tokens;
} output_batch;

void output_batch_reset(output_batch *b, row_index first);       /* keeps memory of a usual size */
void output_batch_fini(output_batch *b);

typedef struct output_maker output_maker;
fl_status output_maker_open(output_maker **out, const output_shared *shared, fl_err *err);
void      output_maker_close(output_maker *m);           /* accepts NULL */

/* Is this row large? Reads no more than its sizes. */
fl_status output_maker_is_large(output_maker *m, row_index row, bool *is_large, fl_err *err);

/* Add the line of the row behind the batch's last. FL_CORRUPT: with the place; the batch is as it was. */
fl_status output_maker_add(output_maker *m, output_batch *b, fl_err *err);

#endif
