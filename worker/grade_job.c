/* grade_job.c - see grade_job.h. */
#include "worker/grade_job.h"

#include <stdlib.h>
#include <string.h>

grade_job *grade_job_make(job_kind kind, task_entry *task, const grade_sample *sample)
{
    grade_job *j = calloc(1, sizeof *j);
    if (j) j->completion = malloc(sample && sample->completion.n ? sample->completion.n : 1);
    if (!j || !j->completion) { grade_job_free(j); return NULL; }
    j->kind = kind;
    j->task = task;
    if (!sample) return j;
    if (sample->completion.n) memcpy(j->completion, sample->completion.bytes, sample->completion.n);
    j->completion_bytes = sample->completion.n;
    j->full_script = sample->full_script;
    j->result.tag = sample->tag;
    return j;
}

void grade_job_free(grade_job *j)
{
    if (!j) return;
    free(j->completion);
    free(j);
}

void grade_jobs_push(grade_jobs *list, grade_job *j)
{
    j->next = NULL;
    if (list->first) *list->last = j;
    else list->first = j;
    list->last = &j->next;
    list->n++;
}

void grade_jobs_push_first(grade_jobs *list, grade_job *j)
{
    j->next = list->first;
    if (!list->first) list->last = &j->next;
    list->first = j;
    list->n++;
}

grade_job *grade_jobs_pop(grade_jobs *list)
{
    grade_job *j = list->first;
    if (!j) return NULL;
    list->first = j->next;
    list->n--;
    return j;
}

grade_job *grade_jobs_take(grade_jobs *list, uint64_t tag)
{
    grade_jobs kept = {.first = NULL};
    grade_job *found = NULL;
    for (grade_job *j; (j = grade_jobs_pop(list));) {
        if (!found && j->kind == JOB_SAMPLE && j->result.tag == tag) found = j;
        else grade_jobs_push(&kept, j);
    }
    *list = kept;
    return found;
}

void grade_jobs_free(grade_jobs *list)
{
    for (grade_job *j; (j = grade_jobs_pop(list));) {
        if (j->completion) task_entry_drop(j->task);
        grade_job_free(j);
    }
}
