/* status_print.h - status_json.h's answers for people: one screen, wrapped to a terminal's width; plain whole lines elsewhere.
 * Threads  plain functions. */
#ifndef COORDINATOR_STATUS_PRINT_H
#define COORDINATOR_STATUS_PRINT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* Columns of the terminal behind a file; 0: it is none. */
int status_width(FILE *file);

/* width 0: whole lines. now_s: the wall clock's seconds. workers and queues may be NULL: nobody works on the job. */
void status_print_job(FILE *file, int width, uint64_t now_s, const json_t *job, const json_t *workers, const json_t *queues);
void status_print_list(FILE *file, uint64_t now_s, const json_t *jobs);

#endif
