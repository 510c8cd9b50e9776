/* set_fields.h - `--set KEY=VALUE`: body fields for rows that lack them, as the one JSON object that travels with a job.
 * Rule     VALUE is read as JSON, and as a string where it is none. The object has sorted keys, so the same settings in any order are the same job.
 * Threads  plain functions. */
#ifndef COORDINATOR_SET_FIELDS_H
#define COORDINATOR_SET_FIELDS_H

#include "coordinator/flags.h"
#include "proto/status.h"

/* *out is malloc'ed, the caller frees; "" when nothing is set. FL_INVALID with a sentence: no `=`, a key given twice, or a field or value that no row could have. */
fl_status set_fields_json(const flag_list *settings, char **out, fl_err *err);

#endif
