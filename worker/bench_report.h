/* bench_report.h - reading a bench's report back for its text form. A key that is not there reads as 0 or "".
 * Threads  plain functions. */
#ifndef WORKER_BENCH_REPORT_H
#define WORKER_BENCH_REPORT_H

#include <jansson.h>
#include <stdint.h>

static inline double  report_real(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }
static inline int64_t report_whole(const json_t *object, const char *key) { return (int64_t)json_integer_value(json_object_get(object, key)); }
static inline const char *report_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

#endif
