#include "coordinator/eval_samples.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/job_store.h"
#include "proto/code_extract.h"
#include "proto/job_row.h"
#include "proto/json_scan.h"

fl_status eval_samples_open(eval_samples *out, const eval_set *set, fl_err *err)
{
    *out = (eval_samples){ set, calloc(set->n_tasks, sizeof *out->of) };
    return out->of ? FL_OK : fl_fail(err, FL_FULL, "no memory for the samples of %zu tasks", set->n_tasks);
}

void eval_samples_close(eval_samples *s)
{
    for (size_t i = 0; s->of && i < s->set->n_tasks; i++) {
        for (uint32_t k = 0; k < s->of[i].n; k++) {
            free(s->of[i].v[k].completion);
            free(s->of[i].v[k].detail);
        }
        free(s->of[i].v);
    }
    free(s->of);
    *s = (eval_samples){ 0 };
}

eval_sample *eval_samples_add(eval_samples *s, size_t task, uint32_t n)
{
    eval_sample_list *list = &s->of[task];
    if (list->n + n > list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity : 8;
        while (capacity < list->n + n) capacity *= 2;
        eval_sample *grown = realloc(list->v, capacity * sizeof *grown);
        if (!grown) return NULL;
        list->v = grown;
        list->capacity = capacity;
    }
    memset(&list->v[list->n], 0, n * sizeof *list->v);
    list->n += n;
    return &list->v[list->n - n];
}

static fl_status no_memory(fl_err *err) { return fl_fail(err, FL_FULL, "no memory for samples"); }

static bool find_task(const eval_samples *s, const char *id, size_t *task)
{
    const eval_task *found = eval_set_find(s->set, id);
    if (found) *task = (size_t)(found - s->set->tasks);
    return found != NULL;
}

/* ---- a samples file ---- */

static fl_status read_sample(eval_samples *s, const char *line, size_t n_bytes, size_t *offset, fl_err *err)
{
    char why[FL_JSON_WHY_BYTES], *id = NULL;
    size_t n_id, task = 0;
    fl_json object, key, value, task_id = { 0 }, completion = { 0 }, solution = { 0 };
    if (fl_json_check(line, n_bytes, &object, offset, why) != ROW_OK) return fl_fail(err, FL_INVALID, "%s", why);
    *offset = 0;
    if (object.type != FL_JSON_OBJECT) return fl_fail(err, FL_INVALID, "a sample must be a JSON object");
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value)) {
        if (fl_json_is(line, key, "task_id")) task_id = value;
        if (fl_json_is(line, key, "completion")) completion = value;
        if (fl_json_is(line, key, "solution")) solution = value;
    }
    if (task_id.type == FL_JSON_STRING) id = fl_json_string(line, task_id, &n_id);
    else if (task_id.type == FL_JSON_NUMBER) id = strndup(line + task_id.start, task_id.end - task_id.start);
    if (!id) return fl_fail(err, FL_INVALID, "task_id is missing");
    bool known = find_task(s, id, &task);
    fl_status st = known ? FL_OK : fl_fail(err, FL_INVALID, "the tasks have no %.80s", id);
    free(id);
    if (st != FL_OK) return st;
    bool is_program = solution.type == FL_JSON_STRING;
    if (!is_program && completion.type != FL_JSON_STRING) return fl_fail(err, FL_INVALID, "neither completion nor solution is there as a string");
    eval_sample *sample = eval_samples_add(s, task, 1);
    if (!sample) return no_memory(err);
    char *text = fl_json_string(line, is_program ? solution : completion, &sample->n_bytes);
    if (!is_program) {
        sample->completion = text;
        return FL_OK;
    }
    static const char marker[] = FL_SCRIPT_MARKER "\n";
    sample->completion = malloc(sizeof marker + sample->n_bytes);
    if (sample->completion) {
        memcpy(sample->completion, marker, sizeof marker - 1);
        memcpy(sample->completion + sizeof marker - 1, text, sample->n_bytes + 1);
        sample->n_bytes += sizeof marker - 1;
    }
    free(text);
    return sample->completion ? FL_OK : no_memory(err);
}

fl_status eval_samples_read(eval_samples *s, const char *path, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0, n_samples = 0;
    fl_status st = eval_read_file(path, &text, &n_bytes, err);
    if (st != FL_OK) return st;
    uint64_t number = 1;
    for (size_t at = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; st == FL_OK && at < n_bytes; number++) {
        const char *feed = memchr(text + at, '\n', n_bytes - at);
        size_t n = feed ? (size_t)(feed - text) - at : n_bytes - at, offset = 0;
        fl_err why;
        if (!fl_line_is_blank(text + at, n)) {
            st = read_sample(s, text + at, n, &offset, &why);
            if (st != FL_OK) st = fl_fail(err, st, "%s, line %llu, byte %llu: %s", path, (unsigned long long)number, (unsigned long long)(at + offset), why.text);
            n_samples++;
        }
        at += n + 1;
    }
    free(text);
    return st == FL_OK && n_samples == 0 ? fl_fail(err, FL_INVALID, "%s has no samples", path) : st;
}

/* ---- the OUT of a graded job ---- */

static fl_verdict_kind kind_at(const json_t *object, const char *key)
{
    const json_t *name = json_object_get(object, key);
    return json_is_string(name) ? fl_verdict_find(json_string_value(name), json_string_length(name)) : FL_VERDICT_END;
}

static bool read_verdict(const json_t *extra, fl_verdict *v)
{
    *v = (fl_verdict){ .verdict = kind_at(extra, "verdict"), .in_process = json_is_true(json_object_get(extra, "in_process")),
                       .canonical_failed = json_is_true(json_object_get(extra, "canonical_failed")), .has_inputs = json_object_get(extra, "base") != NULL,
                       .base_failed = -1, .plus_failed = -1 };
    v->base = v->has_inputs ? kind_at(extra, "base") : v->verdict;
    v->plus = v->has_inputs ? kind_at(extra, "plus") : v->verdict;
    if (json_object_get(extra, "base_failed")) v->base_failed = (int32_t)json_integer_value(json_object_get(extra, "base_failed"));
    if (json_object_get(extra, "plus_failed")) v->plus_failed = (int32_t)json_integer_value(json_object_get(extra, "plus_failed"));
    return v->verdict != FL_VERDICT_END && v->base != FL_VERDICT_END && v->plus != FL_VERDICT_END;
}

static fl_status read_choice(const eval_task *task, const json_t *choice, const json_t *extra, bool chat, eval_sample *sample, fl_err *err)
{
    const json_t *text = chat ? json_object_get(json_object_get(choice, "message"), "content") : json_object_get(choice, "text");
    if (!json_is_string(text) || !read_verdict(extra, &sample->verdict)) return fl_fail(err, FL_CORRUPT, "a choice without text or verdict");
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    if (chat) return fl_code_from_chat(bytes, n, task->entry_point, task->prompt[0] == '\0', &sample->completion, &sample->n_bytes, err);
    sample->completion = malloc(n + 1);
    if (!sample->completion) return no_memory(err);
    memcpy(sample->completion, bytes, n);
    sample->completion[n] = '\0';
    sample->n_bytes = n;
    return FL_OK;
}

static fl_status read_out_line(eval_samples *s, const json_t *line, const char *suffix, bool *seen, uint32_t n, bool chat, fl_err *err)
{
    const json_t *body = json_object_get(json_object_get(line, "response"), "body"), *choices = json_object_get(body, "choices");
    const json_t *extras = json_object_get(json_object_get(body, "tokenfleet"), "choices");
    const char *name = json_string_value(json_object_get(line, "custom_id"));
    size_t task = 0, n_name = name ? strlen(name) : 0, n_suffix = strlen(suffix);
    char id[FL_CUSTOM_ID_MAX + 1];
    if (n_name < n_suffix || n_name >= sizeof id) return fl_fail(err, FL_CORRUPT, "a line without a custom_id of ours");
    snprintf(id, sizeof id, "%.*s", (int)(n_name - n_suffix), name);
    if (!find_task(s, id, &task) || seen[task] || json_array_size(choices) != n || json_array_size(extras) != n) return fl_fail(err, FL_CORRUPT, "%.80s is not what was asked for", id);
    seen[task] = true;
    eval_sample *samples = eval_samples_add(s, task, n);
    fl_status st = samples ? FL_OK : no_memory(err);
    for (uint32_t i = 0; st == FL_OK && i < n; i++) st = read_choice(&s->set->tasks[task], json_array_get(choices, i), json_array_get(extras, i), chat, &samples[i], err);
    return st;
}

fl_status eval_samples_read_out(eval_samples *s, const char *path, const char *suffix, const bool *wanted, uint32_t n, bool chat, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0, number = 1;
    bool *seen = calloc(s->set->n_tasks, sizeof *seen);
    fl_status st = seen ? eval_read_file(path, &text, &n_bytes, err) : no_memory(err);
    for (size_t at = 0; st == FL_OK && at < n_bytes; number++) {
        const char *feed = memchr(text + at, '\n', n_bytes - at);
        size_t length = feed ? (size_t)(feed - text) - at : n_bytes - at;
        fl_err why;
        json_t *line = json_loadb(text + at, length, JSON_ALLOW_NUL, NULL);
        st = line ? read_out_line(s, line, suffix, seen, n, chat, &why) : fl_fail(&why, FL_CORRUPT, "no JSON");
        if (st != FL_OK) st = fl_fail(err, st, "%s, line %zu: %s; remove it and run again", path, number, why.text);
        json_decref(line);
        at += length + 1;
    }
    for (size_t i = 0; st == FL_OK && i < s->set->n_tasks; i++)
        if (wanted[i] && !seen[i] && !eval_samples_add(s, i, n)) st = no_memory(err);
    free(seen);
    free(text);
    return st;
}

/* ---- files out ---- */

static void write_id(json_out *out, const eval_task *task)
{
    json_out_key(out, "task_id");
    if (task->id_is_number) json_out_raw(out, task->id, strlen(task->id));
    else json_out_string(out, task->id);
}

static void write_text(json_out *out, const char *key, const char *text, size_t n_bytes)
{
    json_out_key(out, key);
    json_out_bytes(out, text, n_bytes);
}

static const char *result_of(const eval_sample *sample, char out[64])
{
    if (sample->verdict.verdict == FL_VERDICT_PASSED) return "passed";
    if (sample->verdict.verdict == FL_VERDICT_TIMEOUT) return "timed out";
    snprintf(out, 64, "failed: %s", fl_verdict_name(sample->verdict.verdict));
    return out;
}

static void write_result(json_out *out, const eval_sample *sample)
{
    char text[64];
    const fl_verdict *v = &sample->verdict;
    json_out_key(out, "result");
    json_out_string(out, result_of(sample, text));
    json_out_key(out, "passed");
    json_out_bool(out, v->verdict == FL_VERDICT_PASSED);
    json_out_key(out, "verdict");
    json_out_string(out, fl_verdict_name(v->verdict));
    if (v->has_inputs) {
        json_out_key(out, "base");
        json_out_string(out, fl_verdict_name(v->base));
        json_out_key(out, "plus");
        json_out_string(out, fl_verdict_name(v->plus));
    }
    if (v->in_process) {
        json_out_key(out, "in_process");
        json_out_bool(out, true);
    }
    if (v->canonical_failed) {
        json_out_key(out, "canonical_failed");
        json_out_bool(out, true);
    }
    if (sample->detail) write_text(out, "detail", sample->detail, strlen(sample->detail));
}

static fl_status write_lines(const eval_samples *s, bool with_results, const char *path, fl_err *err)
{
    json_out out = { 0 };
    for (size_t i = 0; i < s->set->n_tasks; i++)
        for (uint32_t k = 0; k < s->of[i].n; k++) {
            const eval_sample *sample = &s->of[i].v[k];
            if (!sample->completion) continue;
            json_out_begin(&out, '{');
            write_id(&out, &s->set->tasks[i]);
            write_text(&out, "completion", sample->completion, sample->n_bytes);
            if (with_results) write_result(&out, sample);
            json_out_end(&out, '}');
            json_out_line_end(&out);
        }
    fl_status st = out.failed ? no_memory(err) : job_store_write_file(path, out.data ? out.data : "", out.n_bytes, err);
    json_out_fini(&out);
    return st;
}

fl_status eval_samples_write(const eval_samples *s, const char *path, fl_err *err) { return write_lines(s, false, path, err); }
fl_status eval_results_write(const eval_samples *s, const char *path, fl_err *err) { return write_lines(s, true, path, err); }

/* The program that was judged. */
static void write_solution(json_out *out, const eval_task *task, const eval_sample *sample)
{
    const char *code;
    size_t n_code, n_prompt = strlen(task->prompt);
    bool is_script;
    fl_code_of(sample->completion, sample->n_bytes, &code, &n_code, &is_script);
    if (is_script) n_prompt = 0;
    char *whole = malloc(n_prompt + n_code + 1);
    FL_ASSERT(whole);
    memcpy(whole, task->prompt, n_prompt);
    memcpy(whole + n_prompt, code, n_code);
    write_text(out, "solution", whole, n_prompt + n_code);
    free(whole);
}

static const char *status_of(fl_verdict_kind kind) { return kind == FL_VERDICT_PASSED ? "pass" : kind == FL_VERDICT_TIMEOUT ? "timeout" : "fail"; }

static void write_stage(json_out *out, const char *status_key, const char *list_key, fl_verdict_kind kind, int32_t failed)
{
    json_out_key(out, status_key);
    json_out_string(out, status_of(kind));
    json_out_key(out, list_key);
    json_out_begin(out, '[');
    if (failed >= 0) json_out_i64(out, failed);
    json_out_end(out, ']');
}

static fl_status write_estimates(json_out *out, const eval_samples *s, bool base_only, const uint32_t *ks, size_t n_ks, fl_err *err)
{
    char key[24];
    pass_interval value;
    fl_status st = FL_OK;
    pass_count *counts = malloc(s->set->n_tasks * sizeof *counts);
    if (!counts) return no_memory(err);
    eval_samples_count(s, base_only, counts);
    json_out_key(out, base_only ? "base" : "plus");
    json_out_begin(out, '{');
    for (size_t i = 0; st == FL_OK && i < n_ks; i++) {
        if ((st = pass_at_k_mean(counts, s->set->n_tasks, ks[i], &value, err)) != FL_OK) break;
        snprintf(key, sizeof key, "pass@%u", ks[i]);
        json_out_key(out, key);
        json_out_float(out, (float)value.mean);
    }
    json_out_end(out, '}');
    free(counts);
    return st;
}

fl_status eval_evalplus_write(const eval_samples *s, const uint32_t *ks, size_t n_ks, const char *path, fl_err *err)
{
    json_out out = { 0 };
    json_out_begin(&out, '{');
    json_out_key(&out, "date");
    json_out_string(&out, "");
    json_out_key(&out, "hash");
    json_out_string(&out, s->set->md5);
    json_out_key(&out, "eval");
    json_out_begin(&out, '{');
    for (size_t i = 0; i < s->set->n_tasks; i++) {
        const eval_task *task = &s->set->tasks[i];
        json_out_key_bytes(&out, task->id, strlen(task->id));
        json_out_begin(&out, '[');
        for (uint32_t k = 0; k < s->of[i].n; k++) {
            const eval_sample *sample = &s->of[i].v[k];
            if (!sample->completion) continue;
            json_out_begin(&out, '{');
            write_id(&out, task);
            write_solution(&out, task, sample);
            write_stage(&out, "base_status", "base_fail_tests", sample->verdict.base, sample->verdict.base_failed);
            write_stage(&out, "plus_status", "plus_fail_tests", sample->verdict.plus, sample->verdict.plus_failed);
            json_out_end(&out, '}');
        }
        json_out_end(&out, ']');
    }
    json_out_end(&out, '}');
    json_out_key(&out, "pass_at_k");
    json_out_begin(&out, '{');
    fl_status st = write_estimates(&out, s, true, ks, n_ks, err);
    if (st == FL_OK) st = write_estimates(&out, s, false, ks, n_ks, err);
    json_out_end(&out, '}');
    json_out_end(&out, '}');
    json_out_line_end(&out);
    if (st == FL_OK && out.failed) st = no_memory(err);
    if (st == FL_OK) st = job_store_write_file(path, out.data, out.n_bytes, err);
    json_out_fini(&out);
    return st;
}

void eval_samples_count(const eval_samples *s, bool base_only, pass_count *out)
{
    for (size_t i = 0; i < s->set->n_tasks; i++) {
        out[i] = (pass_count){ .n = s->of[i].n };
        for (uint32_t k = 0; k < s->of[i].n; k++) {
            const fl_verdict *v = &s->of[i].v[k].verdict;
            out[i].c += (base_only ? v->base : v->verdict) == FL_VERDICT_PASSED;
        }
    }
}
