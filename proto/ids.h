/* ids.h - ids that travel together are distinct types: a swap fails to compile. 0 is "none" in each. */
#ifndef FL_IDS_H
#define FL_IDS_H

#include <stdint.h>

typedef struct { uint64_t v; } job_id;      /* random at submit; printed as job-<16 hex digits> */
typedef struct { uint64_t v; } lease_id;    /* from a counter of the spool that is durable before the grant is sent; never reused */
typedef struct { uint64_t v; } worker_id;   /* random at each start of a worker process */
typedef struct { uint64_t v; } row_index;   /* index of a non-blank line of a job, from 0 */

#define FL_JOB_NAME_BYTES 21                /* "job-" + 16 digits + NUL */
void fl_job_name(job_id id, char out[FL_JOB_NAME_BYTES]);
int  fl_job_parse(const char *name, job_id *out);        /* 1 when `name` is a job's name; also takes the bare digits */

#endif
