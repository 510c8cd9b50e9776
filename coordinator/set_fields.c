#include "coordinator/set_fields.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "proto/job_row.h"

static fl_status add_field(json_t *fields, const char *setting, fl_err *err)
{
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting) return fl_fail(err, FL_INVALID, "--set takes KEY=VALUE, as in --set temperature=0.7, not '%s'", setting);
    size_t key_bytes = (size_t)(equals - setting);
    char *key = strndup(setting, key_bytes);
    if (!key) return fl_fail(err, FL_FULL, "no memory for --set %s", setting);
    fl_status st = FL_OK;
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) value = json_string(equals + 1);
    if (!value) st = fl_fail(err, FL_INVALID, "--set %s: the value is not UTF-8", key);
    else if (json_object_get(fields, key)) st = fl_fail(err, FL_INVALID, "--set %s is given twice", key);
    else if (json_object_set(fields, key, value) != 0) st = fl_fail(err, FL_INVALID, "--set %s: the key is not UTF-8", key);
    json_decref(value);
    free(key);
    return st;
}

fl_status set_fields_json(const flag_list *settings, char **out, fl_err *err)
{
    fl_status st = FL_OK;
    char *text = NULL;
    fl_row_fault fault = { 0 };
    json_t *fields = json_object();
    if (!fields) return fl_fail(err, FL_FULL, "no memory for --set");
    for (int i = 0; i < settings->n; i++) {
        if ((st = add_field(fields, settings->v[i], err)) != FL_OK) goto done;
    }
    text = settings->n ? json_dumps(fields, JSON_COMPACT | JSON_SORT_KEYS) : strdup("");
    if (!text) { st = fl_fail(err, FL_FULL, "no memory for --set"); goto done; }
    if (settings->n && fl_row_defaults_check(text, &fault) != ROW_OK) { st = fl_fail(err, FL_INVALID, "%s", fault.text); goto done; }
    *out = text;
    text = NULL;
done:
    json_decref(fields);
    free(text);
    return st;
}
