/* printable.h - text that others chose (names of jobs and models, custom_ids, sentences with them) on its way to somebody's terminal.
 * Threads  plain functions. */
#ifndef COORDINATOR_PRINTABLE_H
#define COORDINATOR_PRINTABLE_H

/* Make one line of `text` that drives no terminal: each control character (C0, delete, and C1 as UTF-8) becomes `?`. In place; returns `text`. */
char *printable(char *text);

#endif
