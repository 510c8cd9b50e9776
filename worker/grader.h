/* grader.h - grading completions of code tasks in sandboxes: tasks and completions in, verdicts out, several in flight.
 * Sandbox  worker/sandbox.h: a fresh bubblewrap for each completion. The check runs in another one and calls the completion through a proxy of plain data; the
 *          verdict comes over a pipe that only the check's process has. Tasks whose tests need more than plain data run in one interpreter (`in_process`); which ones is
 *          decided from the task alone, by running its canonical solution.
 * Limits   CPU time decides, not wall time: max(cpu_ms_min, cpu_factor x what the canonical solution took on this machine), measured with the task's first sample.
 *          A timeout stands when it came again with nothing else in flight.
 * Loop     one descriptor for poll (grader_fd): readable when grader_step has something to do, its own timers included. No call here blocks but grader_open and _close.
 * Ending   its sandboxes end with the process, however that ends. It waits only for its own children.
 * Threads  belongs to one thread. */
#ifndef WORKER_GRADER_H
#define WORKER_GRADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct grader grader;

/*       verdict              name              meaning */
#define GRADE_VERDICT_TABLE(X) \
    X(GRADE_PASSED,        "passed",        "every check held") \
    X(GRADE_WRONG,         "wrong",         "a check of the test did not hold") \
    X(GRADE_ERROR,         "error",         "the completion raised, ended its process, or does not define the entry point") \
    X(GRADE_SYNTAX,        "syntax",        "the completion is no Python program") \
    X(GRADE_TIMEOUT,       "timeout",       "CPU time or waiting time ran out, twice") \
    X(GRADE_MEMORY,        "memory",        "memory ran out") \
    X(GRADE_OUTPUT_LIMIT,  "output_limit",  "it printed or returned too much") \
    X(GRADE_SANDBOX_FAULT, "sandbox_fault", "the sandbox or the check itself failed: nothing is known about the completion")

typedef enum {
#define GRADE_VERDICT_ENUM(verdict, name, meaning) verdict,
    GRADE_VERDICT_TABLE(GRADE_VERDICT_ENUM)
#undef GRADE_VERDICT_ENUM
    GRADE_N_VERDICTS
} grade_verdict;

const char *grade_verdict_name(grade_verdict verdict);

typedef struct { const char *bytes; size_t n; } grade_text;      /* UTF-8, need not end in NUL; {NULL, 0} is an absent one */

typedef enum {
    GRADE_CHECK,      /* HumanEval: `test` defines check(candidate), which is called with the entry point */
    GRADE_ASSERTS,    /* MBPP: `test` is statements that call the entry point by its name (test_setup_code, then test_list, one a line) */
    GRADE_INPUTS,     /* EvalPlus: `base_inputs` and `plus_inputs` are JSON arrays of argument arrays; what they must give is what the canonical solution gives */
} grade_mode;

typedef struct {
    grade_mode mode;
    grade_text task_id;                  /* for sentences, and for EvalPlus's special oracles ("Mbpp/..." or "HumanEval/...") */
    grade_text prompt;                   /* stands before a body-only completion and before the canonical solution; GRADE_ASSERTS: "" */
    grade_text entry_point;
    grade_text test;                     /* absent for GRADE_INPUTS */
    grade_text canonical_solution;       /* body only (after `prompt`), or a whole program when prompt is ""; absent: default limits, and only plain data */
    grade_text base_inputs, plus_inputs; /* GRADE_INPUTS only */
    double atol;                         /* GRADE_INPUTS only */
} grade_task;

typedef struct {
    grade_text completion;
    bool full_script;                    /* the completion is the whole program: the prompt is not put before it */
    uint64_t tag;                        /* the caller's, comes back with the result */
} grade_sample;

typedef struct {
    uint32_t cpu_ms_min;                 /* 3,000 */
    uint32_t cpu_factor;                 /* 5 */
    uint32_t idle_ms;                    /* 10,000: time in which it neither computed nor waited for a core */
    uint64_t memory_bytes;               /* 1 GiB a completion */
    uint64_t output_bytes;               /* 16 MiB on stdout and stderr together, and again for what it returns in one call */
    uint32_t n_processes;                /* 32 */
} grade_limits;

grade_limits grade_limits_default(void);

typedef struct {
    uint32_t n_slots;                    /* samples in flight, 1 .. 256; 0: as many as there are cores */
    grade_limits limits;
} grader_options;

typedef struct {
    uint64_t tag;
    grade_verdict verdict;
    bool in_process;                     /* completion and check shared an interpreter (a property of the task) */
    bool canonical_failed;               /* the task's own canonical solution does not pass its test (one too): the verdict says little */
    grade_verdict base, plus;            /* GRADE_INPUTS: of each set alone (plus: GRADE_PASSED when base failed is possible); else both equal `verdict` */
    int32_t base_failed, plus_failed;    /* GRADE_INPUTS: index of the first input that failed, -1 when none */
    uint32_t cpu_ms, wall_ms;            /* volatile: of the run that gave the verdict */
    char detail[400];                    /* one sentence, "" when passed; UTF-8. It quotes the completion's own exception text, which may differ from run to run */
} grade_result;

/* Checks that bubblewrap and python3 are there and that a sandbox starts; FL_UNSUPPORTED otherwise, with a sentence that says what to install or to allow. */
fl_status grader_open(grader **out, const grader_options *options, fl_err *err);
void      grader_close(grader *g);                                   /* ends and reaps everything in flight; accepts NULL */

/* Queue a sample; task and sample are copied. FL_FULL: grader_room is 0, take results first. FL_INVALID: the task lacks what its mode needs. */
fl_status grader_submit(grader *g, const grade_task *task, const grade_sample *sample, fl_err *err);
size_t    grader_room(const grader *g);                              /* samples that may be submitted now */

/* A sample that is no longer wanted: its result never comes. False when no such tag is pending. */
bool grader_cancel(grader *g, uint64_t tag);

int       grader_fd(const grader *g);
fl_status grader_step(grader *g, fl_err *err);                       /* do what is due. FL_IO: the machine refuses sandboxes now (no processes, no memory); pending samples stay */
bool      grader_next(grader *g, grade_result *result);              /* take one finished result; false when there is none */

#endif
