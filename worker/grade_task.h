/* grade_task.h - the tasks that a grader has seen: what its samples need of each (how it is checked, how long its canonical solution takes), kept by the task's content.
 * Threads  belongs to the grader's one thread. */
#ifndef WORKER_GRADE_TASK_H
#define WORKER_GRADE_TASK_H

#include "worker/grader.h"

typedef enum { TASK_NEW, TASK_MEASURING, TASK_MEASURED } task_state;

typedef struct {
    uint64_t hash[2];                    /* of `fields` */
    char id[80];                         /* the task id's first bytes, for sentences */
    task_state state;
    bool has_canonical;
    bool in_process, canonical_failed;   /* when measured */
    uint32_t canonical_cpu_ms;           /* when measured */
    unsigned char *fields;               /* owned: the task as the checker reads it (grade_checker.py, FIELDS), while samples of it are pending; NULL otherwise */
    size_t fields_bytes, canonical_at, canonical_bytes;      /* where the canonical solution lies in them */
    size_t n_pending;
    double atol;
} task_entry;

typedef struct task_table task_table;

fl_status task_table_open(task_table **out, fl_err *err);
void      task_table_close(task_table *table);                       /* accepts NULL */

/* The entry of this task, with its fields and one more pending sample. Entries stay where they are as long as the table. */
fl_status task_table_take(task_table *table, const grade_task *task, task_entry **out, fl_err *err);
void      task_entry_drop(task_entry *entry);                        /* one pending sample less */

#endif
