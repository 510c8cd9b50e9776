/* grade_job.h - what the grader runs: a sample, or a task's canonical solution to be measured; and the lists that they wait in.
 * Memory   a job owns its completion; it is in one list, or in one cell, or the caller's.
 * Threads  the grader's. */
#ifndef WORKER_GRADE_JOB_H
#define WORKER_GRADE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "worker/grade_task.h"
#include "worker/grader.h"

typedef enum { JOB_SAMPLE, JOB_MEASURE_APART, JOB_MEASURE_TOGETHER } job_kind;

typedef struct grade_job grade_job;
struct grade_job {
    grade_job *next;
    job_kind kind;
    task_entry *task;                        /* borrowed from the table; counted in n_pending */
    unsigned char *completion;               /* owned */
    size_t completion_bytes;
    bool full_script, is_second, is_cancelled;
    uint32_t n_faults;
    grade_result result;                     /* result.tag is the sample's */
};

typedef struct { grade_job *first, **last; size_t n; } grade_jobs;

/* NULL: no memory. Measuring takes no sample. */
grade_job *grade_job_make(job_kind kind, task_entry *task, const grade_sample *sample);
void grade_job_free(grade_job *j);                       /* a job that is in no list any more; its task is let go by who took it */

void grade_jobs_push(grade_jobs *list, grade_job *j);
void grade_jobs_push_first(grade_jobs *list, grade_job *j);
grade_job *grade_jobs_pop(grade_jobs *list);             /* NULL: it is empty */
grade_job *grade_jobs_take(grade_jobs *list, uint64_t tag);      /* the sample with this tag; NULL: it is not in this list */
void grade_jobs_free(grade_jobs *list);                  /* all that is in it, and what they hold of their tasks */

#endif
