#include "proto/ids.h"

#include <stdio.h>
#include <string.h>

void fl_job_name(job_id id, char out[FL_JOB_NAME_BYTES])
{
    snprintf(out, FL_JOB_NAME_BYTES, "job-%016llx", (unsigned long long)id.v);
}

int fl_job_parse(const char *name, job_id *out)
{
    const char *digits = strncmp(name, "job-", 4) == 0 ? name + 4 : name;
    if (strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16) return 0;
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) v = v << 4 | (uint64_t)(digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
    if (v == 0) return 0;                                /* 0 is "none" */
    out->v = v;
    return 1;
}
