#include "proto/json_load.h"

#include <stdbool.h>
#include <stdlib.h>

#include "proto/log.h"

static _Thread_local bool lacked_memory;

static void *take(size_t n_bytes)
{
    void *p = malloc(n_bytes);
    if (!p && !lacked_memory) fl_log(FL_LOG_ERROR, "there is no memory to read or make a JSON text (%zu bytes more): give the process more", n_bytes);
    lacked_memory |= !p;
    return p;
}

__attribute__((constructor)) static void watch_allocations(void)
{
    json_set_alloc_funcs(take, free);
}

fl_status fl_json_load(json_t **out, const char *what, const char *text, size_t n_bytes, size_t flags, fl_err *err)
{
    json_error_t where;
    lacked_memory = false;
    *out = json_loadb(text, n_bytes, flags, &where);
    if (*out && !lacked_memory) return FL_OK;
    if (!lacked_memory) return fl_fail(err, FL_CORRUPT, "%s: not JSON: %s (line %d)", what, where.text, where.line);
    json_decref(*out);
    *out = NULL;
    return fl_fail(err, FL_FULL, "%s: no memory to read its JSON", what);
}
