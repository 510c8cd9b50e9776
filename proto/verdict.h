/* verdict.h - what grading one sample gave: the body of a grade row's result, from the grader to the ledger unchanged. Nothing volatile is in it.
 * Layout   20 bytes, little-endian: u8 version (1), u8 verdict, u8 base, u8 plus (numbers of FL_VERDICT_TABLE), u8 flags (1 in_process, 2 has_inputs, 4 canonical_failed), three zero bytes,
 *          u32 base_failed + 1, u32 plus_failed + 1, u32 zero. So equal verdicts are equal bytes.
 * Threads  plain functions. */
#ifndef FL_VERDICT_H
#define FL_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FL_VERDICT_BYTES 20

/* The numbers travel on the wire and into the ledger: append only.
 *       NAME           number  name             meaning */
#define FL_VERDICT_TABLE(X) \
    X(PASSED,        1, "passed",        "every check held") \
    X(WRONG,         2, "wrong",         "a check did not hold") \
    X(ERROR,         3, "error",         "the completion raised, ended its process, or does not define the entry point") \
    X(SYNTAX,        4, "syntax",        "the completion is no Python program") \
    X(TIMEOUT,       5, "timeout",       "CPU time or waiting time ran out, twice") \
    X(MEMORY,        6, "memory",        "memory ran out") \
    X(OUTPUT_LIMIT,  7, "output_limit",  "it printed or returned too much") \
    X(SANDBOX_FAULT, 8, "sandbox_fault", "the sandbox or the check itself failed: nothing is known about the completion")

typedef enum {
#define FL_VERDICT_ENUM(NAME, number, name, meaning) FL_VERDICT_##NAME = number,
    FL_VERDICT_TABLE(FL_VERDICT_ENUM)
#undef FL_VERDICT_ENUM
    FL_VERDICT_END
} fl_verdict_kind;

typedef struct {
    fl_verdict_kind verdict;
    bool in_process;                     /* completion and check shared an interpreter */
    bool canonical_failed;               /* the task's own canonical solution does not pass its test */
    bool has_inputs;                     /* an EvalPlus task: base and plus were judged apart; else both equal `verdict` */
    fl_verdict_kind base, plus;
    int32_t base_failed, plus_failed;    /* with inputs: index of the first that failed, -1 when none */
} fl_verdict;

const char *fl_verdict_name(fl_verdict_kind kind);       /* "?" for a number that is not in the table */
fl_verdict_kind fl_verdict_find(const char *name, size_t n_bytes);       /* FL_VERDICT_END: no such name */

void      fl_verdict_encode(const fl_verdict *verdict, uint8_t out[FL_VERDICT_BYTES]);
fl_status fl_verdict_decode(fl_verdict *out, const void *body, size_t n_bytes, fl_err *err);     /* FL_CORRUPT: anything else than the layout */

#endif
