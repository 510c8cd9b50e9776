/* grade_cell.h - a sandbox with what the grader holds of it: its link (a socket), its output, when it began. The grader has cells of two kinds: a fresh one for each completion, and
 * those of the checkers, which last.
 * Threads  belongs to the grader's one thread. */
#ifndef WORKER_GRADE_CELL_H
#define WORKER_GRADE_CELL_H

#include "worker/sandbox.h"

typedef struct {
    sandbox box;
    sandbox_group group;                 /* a zeroed one: none */
    int link_fd, output_fd;              /* ours; -1: none */
    uint64_t output_bytes;               /* on stdout and stderr so far */
    char words[400];                     /* the last of it, NUL-terminated */
    size_t n_words;
    int64_t start_ms;
} grade_cell;

#define GRADE_CELL_NONE ((grade_cell){.box = SANDBOX_NONE, .link_fd = -1, .output_fd = -1})

/* Start the sandbox of an empty cell (its group stays as it is). socket_type is SOCK_STREAM or SOCK_SEQPACKET. */
fl_status cell_start(grade_cell *cell, const sandbox_kit *kit, int program_fd, int socket_type, int64_t now_ms, fl_err *err);

void cell_read_output(grade_cell *cell);                             /* what is there */
void cell_close_link(grade_cell *cell);

/* True when it has ended wholly; all output was read then, and the cell is empty but for output_bytes and words. */
bool cell_reap(grade_cell *cell, int *status);
void cell_end(grade_cell *cell);                                     /* kill and reap, waiting */

/* The last line of its output, for a sentence; "it said nothing" when there is none. */
const char *cell_last_line(grade_cell *cell);

#endif
