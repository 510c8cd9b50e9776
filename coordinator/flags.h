/* flags.h - the flags and operands of one command: a table that parses, checks and prints its own help.
 * Forms    --name VALUE and --name=VALUE; `--` ends the flags; a lone `-` is an operand. Flags may stand between operands.
 *          A value never begins with `--`, so a forgotten value is noticed.
 * Threads  plain functions; values are borrowed from argv. */
#ifndef COORDINATOR_FLAGS_H
#define COORDINATOR_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

/* How every command ends (ops/DESIGN.md section 4). */
enum { ENDED_WELL = 0, ENDED_ROWS_FAILED = 1, ENDED_USAGE = 2, ENDED_ENVIRONMENT = 3, ENDED_INCOMPLETE = 4 };

#define FLAGS_OPERANDS_MAX 2
#define FLAGS_LIST_MAX 64

typedef struct { const char *v[FLAGS_LIST_MAX]; int n; } flag_list;

typedef enum { FLAG_TEXT, FLAG_CHOICE, FLAG_NUMBER, FLAG_SWITCH, FLAG_LIST, FLAG_DURATION } flag_kind;

typedef struct {
    const char *name;            /* "--out" */
    flag_kind kind;
    const char *value;           /* what the help calls the value; CHOICE: the values themselves, "auto|cpu|cuda"; NUMBER: "N", or "N|auto" where a word may stand for 0 */
    const char *help;
    void *out;                   /* TEXT, CHOICE: const char **. NUMBER, DURATION (seconds): uint64_t *. SWITCH: bool *. LIST: flag_list * */
    uint64_t min, max;           /* NUMBER, DURATION: the domain, both included */
    bool required;
} flag;

typedef struct {
    const char *name;            /* "run" */
    const char *operands;        /* "JOB.jsonl" or "" */
    const char *summary;         /* what the command does, one or more lines */
    const char *example;         /* whole command lines, one or more */
    int operands_min, operands_max;
} flag_command;

/* Parse argv[0 .. argc) (behind the command's name) into the table's places. Returns -1 when the command should go on, else the exit status to
 * end with: 0 after --help (printed to stdout), 2 after a mistake (one sentence on stderr). *n_operands operands are stored. */
int flags_parse(const flag_command *command, const flag *flags, int n_flags, int argc, char **argv,
                const char *operands[FLAGS_OPERANDS_MAX], int *n_operands);

/* One sentence on stderr, "tokenfleet COMMAND: ...", and `status` back, for `return flags_end(...)`. */
int flags_end(int status, const char *command, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
