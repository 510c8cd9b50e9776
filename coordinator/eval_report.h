/* eval_report.h - what an evaluation found: as text, as JSON, and several of them side by side, also as a plot (SVG). All of it is a function of the verdicts.
 * Threads  plain functions. */
#ifndef COORDINATOR_EVAL_REPORT_H
#define COORDINATOR_EVAL_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include "coordinator/eval_samples.h"

typedef struct { uint32_t v[PASS_KS_MAX]; size_t n; } pass_ks;       /* ascending */

/* Read "1,10,100". FL_INVALID: not numbers of at least 1, or too many. */
fl_status pass_ks_parse(pass_ks *out, const char *text, fl_err *err);

typedef struct {
    const eval_set *set;                 /* borrowed */
    char model[257], setting[128];       /* as the user called it; "temperature=0.2", or "" */
    pass_ks ks;
    uint32_t n;                          /* samples a task that were asked for; 0: they differ */
    bool has_base;                       /* EvalPlus tasks: the base inputs alone are counted too */
    pass_count *counts;                  /* owned [n_tasks]; of a task that ended early with the n it was decided for */
    pass_interval all[PASS_KS_MAX], base[PASS_KS_MAX];
    uint64_t n_samples, n_missing, n_in_process, verdicts[FL_VERDICT_END];       /* n_missing: rows that failed; they count as not passed */
    uint64_t n_early;                    /* tasks that ended early */
    uint64_t n_unsound;                  /* tasks whose own canonical solution does not pass */
    char unsound[160];                   /* the first of them */
} eval_outcome;

/* n_asked: 0 where samples came from a file. Every k must be at most the samples of each task; otherwise FL_INVALID with a sentence (ks empty: no estimate, never refused). */
fl_status eval_outcome_make(eval_outcome *out, const eval_samples *samples, uint32_t n_asked, const pass_ks *ks, const char *model, const char *setting, fl_err *err);
void      eval_outcome_free(eval_outcome *o);            /* accepts a zeroed one */

void    eval_outcome_print(FILE *file, const eval_outcome *o);
void    eval_outcome_print_tasks(FILE *file, const eval_outcome *o);             /* a line a task */
json_t *eval_outcome_json(const eval_outcome *o);        /* NULL: no memory */

/* Several outcomes over the same ks, side by side. */
void      eval_compare_print(FILE *file, const eval_outcome *all, size_t n);
fl_status eval_compare_svg(const eval_outcome *all, size_t n, const char *path, fl_err *err);

#endif
