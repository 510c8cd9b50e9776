/* row_table.h - which samples of a job's rows are done, held by a lease (or by two), or waiting: 16 bytes a row and 3 bits a sample, so
 * that 10 M rows take about 170 MB.
 * Order     waiting rows are always taken lowest first. A waiting row is in one of four queues: FRESH, SUSPECT (an engine ended under it:
 *           it runs in a group of suspects), ROOM (a worker had no room for it: it waits for a larger one), GRADE.
 * Grading   a graded job of n rows has n more behind them, its grade rows: sample s of row n + r is the grading of sample s of row r. It waits, in GRADE, once
 *           that one is committed. A row and its grade row fail together, and the row is completed when its grade row is. Grade rows are rows in every call that names one;
 *           those that count or iterate speak of the job's n rows only.
 * Threads   one. Pure memory. */
#ifndef COORDINATOR_ROW_TABLE_H
#define COORDINATOR_ROW_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/ids.h"
#include "proto/status.h"

#define ROW_TABLE_ROWS_MAX UINT32_MAX
typedef enum { ROW_QUEUE_FRESH, ROW_QUEUE_SUSPECT, ROW_QUEUE_ROOM, ROW_QUEUE_GRADE, ROW_QUEUE_COUNT } row_queue;

typedef struct row_table row_table;

/* An empty table; n_rows_hint (0 allowed) saves growing. */
fl_status row_table_open(row_table **out, uint64_t n_rows_hint, fl_err *err);
void      row_table_close(row_table *t);                 /* accepts NULL */

/* Append the next row: n_samples 1 .. FL_SAMPLES_MAX (a row refused at ingest: 1, then row_table_fail), sample_cost = tokens of
 * work of one sample (its share of the prompt + max_tokens; at least 1 is taken). */
fl_status row_table_add(row_table *t, uint32_t n_samples, uint64_t sample_cost, fl_err *err);

/* The job is graded: add the grade rows, once, behind the last row and before anything is committed. One sample of them costs 1. */
fl_status row_table_add_grades(row_table *t, fl_err *err);
bool      row_table_is_graded(const row_table *t);
bool      row_table_is_grade(const row_table *t, row_index row);                 /* a grade row */
row_index row_table_grade_of(const row_table *t, row_index row);                 /* of a row of a graded job */
row_index row_table_graded(const row_table *t, row_index row);                   /* the row that a grade row is of; any other row itself */

/* Replay of committed records. true: this is news. false: the sample is done or the row has failed already, or it is the grading of a sample that is not there.
 * The row and sample must exist (row_table_has). */
bool row_table_commit(row_table *t, row_index row, uint32_t sample);
bool row_table_fail(row_table *t, row_index row);

bool     row_table_has(const row_table *t, uint64_t row, uint64_t sample);
bool     row_table_done(const row_table *t, row_index row, uint32_t sample);     /* this sample is committed */
bool     row_table_failed(const row_table *t, row_index row);
bool     row_table_finished(const row_table *t, row_index row);                  /* all samples committed, or failed */
bool     row_table_settled(const row_table *t, row_index row);                   /* the same, and graded where the job is */
bool     row_table_waits(const row_table *t, row_index row, uint32_t sample);    /* neither done nor held, and nothing must come before it */
uint32_t row_table_samples(const row_table *t, row_index row);                   /* n */
uint32_t row_table_cost(const row_table *t, row_index row);                      /* of one sample */
uint64_t row_table_slot(const row_table *t, row_index row, uint32_t sample);     /* 0 .. row_table_n_slots - 1, dense in input order */
uint64_t row_table_n_rows(const row_table *t);
uint64_t row_table_n_slots(const row_table *t);
uint64_t row_table_n_completed(const row_table *t);                              /* rows with all samples committed and no error */
uint64_t row_table_n_failed(const row_table *t);
uint64_t row_table_n_open(const row_table *t);                                   /* rows not finished */
uint64_t row_table_n_waiting(const row_table *t);                                /* rows with a sample that nobody holds */
uint64_t row_table_cost_waiting(const row_table *t);                             /* tokens of all their waiting samples */
uint64_t row_table_samples_waiting(const row_table *t);                          /* how many those are */
uint64_t row_table_grades_waiting(const row_table *t);                           /* samples of grade rows that wait */

/* For the core: leases hold samples, two of them at most the same one. */
bool      row_table_held(const row_table *t, row_index row, uint32_t sample);
bool      row_table_held_twice(const row_table *t, row_index row, uint32_t sample);
bool      row_table_held_row(const row_table *t, row_index row);                 /* any of its samples is held */
bool      row_table_was_held(const row_table *t, row_index row);                 /* some sample was held at some time */
void      row_table_hold(row_table *t, row_index row, uint32_t sample);          /* neither done nor held before */
void      row_table_hold_again(row_table *t, row_index row, uint32_t sample);    /* held once before */
void      row_table_release(row_table *t, row_index row, uint32_t sample);       /* one holder less; without any it waits again, unless its row has failed */
bool      row_table_first(const row_table *t, row_queue queue, row_index *row);  /* lowest waiting row of a queue */
bool      row_table_next(const row_table *t, row_queue queue, row_index after, row_index *row);
uint64_t  row_table_queue_count(const row_table *t, row_queue queue);
void      row_table_move(row_table *t, row_index row, row_queue queue);          /* where the row waits from now on */
row_queue row_table_queue(const row_table *t, row_index row);

/* An engine ended under `n_together` rows, this one of them: it is a suspect from now on. row_table_group: how many suspects may run together where a suspect is one of them, a power of two:
 * the largest one below n_together (1 for one row), and never more than before, so that after log2(n_together) ends the row is alone. */
void     row_table_suspect(row_table *t, row_index row, uint64_t n_together);
uint32_t row_table_group(const row_table *t, row_index row);

/* What happened to the row so far (saturating: crashes at 3, stalls at 15, retries at 255). */
uint32_t row_table_crashes(const row_table *t, row_index row);
uint32_t row_table_stalls(const row_table *t, row_index row);
uint32_t row_table_retries(const row_table *t, row_index row);
void     row_table_add_crash(row_table *t, row_index row);
void     row_table_add_stall(row_table *t, row_index row);
void     row_table_add_retry(row_table *t, row_index row);

/* A small number the core keeps with a row: which workers had no room for it. 0 at first. */
uint8_t row_table_mark(const row_table *t, row_index row);
void    row_table_set_mark(row_table *t, row_index row, uint8_t mark);

#endif
