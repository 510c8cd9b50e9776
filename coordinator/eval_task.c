#include "coordinator/eval_task.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "coordinator/gunzip.h"
#include "coordinator/md5.h"
#include "proto/grade_line.h"
#include "proto/job_row.h"
#include "proto/json_scan.h"

#define FILE_BYTES_MAX ((size_t)1 << 31)
#define CHUNK_BYTES (1u << 20)

static const char *const HUMANEVAL_STOPS[] = { "\nclass", "\ndef", "\n#", "\n@", "\nif", "\nprint", "\nassert", "\nimport", "\nfrom", "\n```", NULL };
static const char *const MBPP_STOPS[] = { "\nclass", "\nassert", "\n\"\"\"", "\nprint", "\nif", "\n```", NULL };

bool eval_kind_is_plus(eval_kind kind) { return kind == EVAL_HUMANEVAL_PLUS || kind == EVAL_MBPP_PLUS; }
static bool is_mbpp(eval_kind kind) { return kind == EVAL_MBPP || kind == EVAL_MBPP_PLUS; }

/* ---- files ---- */

fl_status eval_read_file(const char *path, char **out, size_t *n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    char *text = NULL;
    size_t n = 0, capacity = 0;
    int got = 0, code = Z_OK, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && strcmp(path, "-") == 0) return fl_fail(err, FL_INVALID, "tasks and samples are not read from standard input; give a file");
    if (fd < 0) return errno == ENOENT ? fl_fail(err, FL_NOT_FOUND, "%s is not there", path) : fl_fail_errno(err, errno, "cannot read %s", path);
    gzFile file = gzdopen(fd, "rb");                     /* a plain file passes through */
    if (!file) {
        close(fd);
        return fl_fail(err, FL_FULL, "no memory to read %s", path);
    }
    do {
        if (n + CHUNK_BYTES + 1 > capacity) {
            capacity = capacity ? 2 * capacity : 2 * CHUNK_BYTES;
            char *grown = capacity <= FILE_BYTES_MAX ? realloc(text, capacity) : NULL;
            if (!grown) { st = fl_fail(err, FL_FULL, "no memory for %s, which is very large", path); goto done; }
            text = grown;
        }
        got = gzread(file, text + n, CHUNK_BYTES);
        if (got > 0) n += (size_t)got;
    } while (got > 0);
    const char *why = gzerror(file, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        st = code == Z_ERRNO ? fl_fail_errno(err, errno, "cannot read %s", path) : gunzip_damaged(path, why, err);
        goto done;
    }
    text[n] = '\0';
    *out = text;
    *n_bytes = n;
    text = NULL;
done:
    gzclose(file);
    free(text);
    return st;
}

/* ---- one line ---- */

/* The members of a task that some format has. */
typedef struct {
    fl_json task_id, prompt, entry_point, canonical_solution, test, base_input, plus_input, atol, text, code, test_list, test_setup_code;
} members;

static members find_members(const char *line, fl_json object)
{
    members m = { 0 };
    const struct { const char *name; fl_json *into; } all[] = {
        { "task_id", &m.task_id }, { "prompt", &m.prompt }, { "entry_point", &m.entry_point }, { "canonical_solution", &m.canonical_solution }, { "test", &m.test },
        { "base_input", &m.base_input }, { "plus_input", &m.plus_input }, { "atol", &m.atol }, { "text", &m.text }, { "code", &m.code }, { "test_list", &m.test_list },
        { "test_setup_code", &m.test_setup_code },
    };
    fl_json key, value;
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value))
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (value.type != FL_JSON_NULL && fl_json_is(line, key, all[i].name)) *all[i].into = value;
    return m;
}

static char *string_of(const char *line, fl_json value)
{
    size_t n;
    return value.type == FL_JSON_STRING ? fl_json_string(line, value, &n) : NULL;
}

static fl_status need_string(const char *line, fl_json value, const char *name, char **out, fl_err *err)
{
    (void)line;
    if (value.type == FL_JSON_ABSENT) return fl_fail(err, FL_INVALID, "%s is missing", name);
    if (value.type != FL_JSON_STRING) return fl_fail(err, FL_INVALID, "%s must be a string", name);
    *out = string_of(line, value);
    return FL_OK;
}

static fl_status read_id(eval_task *t, const char *line, fl_json id, fl_err *err)
{
    if (id.type == FL_JSON_NUMBER) {
        t->id_is_number = true;
        t->id = strndup(line + id.start, id.end - id.start);
        FL_ASSERT(t->id);
        return FL_OK;
    }
    fl_status st = need_string(line, id, "task_id", &t->id, err);
    if (st == FL_OK && (!t->id[0] || strlen(t->id) > FL_CUSTOM_ID_MAX - 32)) st = fl_fail(err, FL_INVALID, "task_id must have 1 to %d bytes", FL_CUSTOM_ID_MAX - 32);
    return st;
}

static char *join(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *join(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    FL_ASSERT(n >= 0);
    return text;
}

static void add_text(json_out *out, const char *key, const char *text)
{
    json_out_key(out, key);
    json_out_bytes(out, text, strlen(text));
}

static void add_raw(json_out *out, const char *key, const char *line, fl_json value)
{
    if (value.type == FL_JSON_ABSENT) return;
    json_out_key(out, key);
    json_out_raw(out, line + value.start, value.end - value.start);
}

/* ---- HumanEval and EvalPlus ---- */

static fl_status read_function(eval_task *t, const char *line, const members *m, fl_err *err)
{
    bool plus = m->base_input.type != FL_JSON_ABSENT;
    fl_status st = need_string(line, m->prompt, "prompt", &t->prompt, err);
    if (st == FL_OK) st = need_string(line, m->entry_point, "entry_point", &t->entry_point, err);
    if (st == FL_OK && !plus && m->test.type != FL_JSON_STRING) st = fl_fail(err, FL_INVALID, "test must be a string of Python that defines check(candidate)");
    if (st == FL_OK && plus && m->canonical_solution.type != FL_JSON_STRING) st = fl_fail(err, FL_INVALID, "canonical_solution must be a string: what an EvalPlus task expects is computed with it");
    if (st != FL_OK) return st;
    t->kind = plus ? strncmp(t->id, "Mbpp/", 5) == 0 ? EVAL_MBPP_PLUS : EVAL_HUMANEVAL_PLUS : EVAL_HUMANEVAL;
    t->shown = strdup(t->prompt);
    FL_ASSERT(t->shown);
    json_out_begin(&t->grade, '{');
    add_text(&t->grade, "mode", plus ? "inputs" : "check");
    add_text(&t->grade, "task_id", t->id);
    add_text(&t->grade, "entry_point", t->entry_point);
    add_text(&t->grade, "prompt", t->prompt);
    if (!plus) add_raw(&t->grade, "test", line, m->test);
    if (m->canonical_solution.type == FL_JSON_STRING) add_raw(&t->grade, "canonical_solution", line, m->canonical_solution);
    add_raw(&t->grade, "base_input", line, m->base_input);
    if (plus) add_raw(&t->grade, "plus_input", line, m->plus_input);
    if (plus) add_raw(&t->grade, "atol", line, m->atol);
    json_out_end(&t->grade, '}');
    return FL_OK;
}

/* ---- MBPP ---- */

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80); }

static bool calls(const char *test, const char *name, size_t n)
{
    for (const char *at = test; (at = strstr(at, name)) != NULL; at++)
        if ((at == test || !is_word(at[-1])) && at[n] == '(') return true;
    return false;
}

/* The last function that `code` defines and `test` calls. */
static char *find_entry_point(const char *code, const char *test)
{
    char *found = NULL;
    for (const char *at = code; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (strncmp(at, "def ", 4) != 0) continue;
        const char *name = at + 4 + strspn(at + 4, " ");
        size_t n = 0;
        while (is_word(name[n])) n++;
        char *word = strndup(name, n);
        FL_ASSERT(word);
        if (n > 0 && calls(test, word, n)) {
            free(found);
            found = word;
        } else {
            free(word);
        }
    }
    return found;
}

/* Setup and tests as one program text; *first is the first test. */
static fl_status join_tests(const char *line, const members *m, char **out, char **first, fl_err *err)
{
    fl_json item;
    char *setup = string_of(line, m->test_setup_code), *all = strdup(setup ? setup : "");
    free(setup);
    FL_ASSERT(all);
    fl_json_walk walk = fl_json_members(line, m->test_list);
    while (fl_json_next(&walk, NULL, &item)) {
        char *test = string_of(line, item), *longer;
        if (!test) {
            free(all);
            return fl_fail(err, FL_INVALID, "test_list must hold strings");
        }
        longer = join("%s%s%s", all, all[0] ? "\n" : "", test);
        free(all);
        all = longer;
        if (*first) free(test);
        else *first = test;
    }
    *out = all;
    return *first ? FL_OK : fl_fail(err, FL_INVALID, "test_list is empty");
}

static fl_status read_mbpp(eval_task *t, const char *line, const members *m, fl_err *err)
{
    char *text = NULL, *code = NULL, *test = NULL, *first = NULL;
    fl_status st = FL_OK;
    t->kind = EVAL_MBPP;
    if (m->test_list.type != FL_JSON_ARRAY) { st = fl_fail(err, FL_INVALID, "test_list must be a list of assert statements"); goto done; }
    if ((st = need_string(line, m->text.type != FL_JSON_ABSENT ? m->text : m->prompt, "text", &text, err)) != FL_OK) goto done;
    if ((st = need_string(line, m->code, "code", &code, err)) != FL_OK) goto done;
    if ((st = join_tests(line, m, &test, &first, err)) != FL_OK) goto done;
    t->entry_point = find_entry_point(code, first);
    if (!t->entry_point) { st = fl_fail(err, FL_INVALID, "the first test calls no function that code defines"); goto done; }
    t->prompt = strdup("");
    t->shown = join("\"\"\"\n%s\n%s\n\"\"\"\n", text, first);
    FL_ASSERT(t->prompt);
    json_out_begin(&t->grade, '{');
    add_text(&t->grade, "mode", "asserts");
    add_text(&t->grade, "task_id", t->id);
    add_text(&t->grade, "entry_point", t->entry_point);
    add_text(&t->grade, "prompt", "");
    add_text(&t->grade, "test", test);
    add_text(&t->grade, "canonical_solution", code);
    json_out_end(&t->grade, '}');
done:
    free(text);
    free(code);
    free(test);
    free(first);
    return st;
}

/* ---- a set ---- */

static void free_task(eval_task *t)
{
    free(t->id);
    free(t->prompt);
    free(t->shown);
    free(t->entry_point);
    json_out_fini(&t->grade);
}

void eval_set_free(eval_set *set)
{
    for (size_t i = 0; i < set->n_tasks; i++) free_task(&set->tasks[i]);
    free(set->tasks);
    free(set->name);
    memset(set, 0, sizeof *set);
}

const eval_task *eval_set_find(const eval_set *set, const char *id)
{
    for (size_t i = 0; i < set->n_tasks; i++)
        if (strcmp(set->tasks[i].id, id) == 0) return &set->tasks[i];
    return NULL;
}

static fl_status read_line(eval_task *t, const char *line, size_t n_bytes, size_t *offset, fl_err *err)
{
    char why[FL_JSON_WHY_BYTES];
    fl_json object;
    *offset = 0;
    if (fl_json_check(line, n_bytes, &object, offset, why) != ROW_OK) return fl_fail(err, FL_INVALID, "%s", why);
    *offset = 0;
    if (object.type != FL_JSON_OBJECT) return fl_fail(err, FL_INVALID, "a task must be a JSON object");
    members m = find_members(line, object);
    fl_status st = read_id(t, line, m.task_id, err);
    if (st != FL_OK) return st;
    if (m.base_input.type == FL_JSON_ABSENT && m.test_list.type != FL_JSON_ABSENT) st = read_mbpp(t, line, &m, err);
    else if (m.base_input.type != FL_JSON_ABSENT || m.test.type != FL_JSON_ABSENT) st = read_function(t, line, &m, err);
    else st = fl_fail(err, FL_INVALID, "the task has none of test, base_input and test_list: it is no line of HumanEval, EvalPlus or MBPP");
    if (st != FL_OK) return st;
    fl_grade_task checked = { 0 };                       /* a job would refuse the row: better to say so here */
    if (fl_json_check(t->grade.data, t->grade.n_bytes, &object, offset, why) != ROW_OK) return fl_fail(err, FL_INVALID, "%s", why);
    *offset = 0;
    st = fl_grade_task_read(&checked, t->grade.data, object, err);
    fl_grade_task_free(&checked);
    return st;
}

static fl_status add_task(eval_set *set, eval_task *t, fl_err *err)
{
    if (eval_set_find(set, t->id)) return fl_fail(err, FL_INVALID, "the task_id %.80s stands twice", t->id);
    if (set->n_tasks == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 256;
        eval_task *grown = realloc(set->tasks, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for %zu tasks", capacity);
        set->tasks = grown;
        set->capacity = capacity;
    }
    set->tasks[set->n_tasks++] = *t;
    return FL_OK;
}

static void name_set(eval_set *set, const char *path)
{
    static const char *const endings[] = { ".gz", ".jsonl" };
    const char *slash = strrchr(path, '/');
    set->name = strdup(slash ? slash + 1 : path);
    FL_ASSERT(set->name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(set->name), m = strlen(endings[i]);
        if (n > m && strcmp(set->name + n - m, endings[i]) == 0) set->name[n - m] = '\0';
    }
}

fl_status eval_set_read(eval_set *out, const char *path, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    eval_set set = { 0 };
    fl_status st = eval_read_file(path, &text, &n_bytes, err);
    if (st != FL_OK) return st;
    name_set(&set, path);
    md5_hex(text, n_bytes, set.md5);
    uint64_t number = 1;
    for (size_t at = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; st == FL_OK && at < n_bytes; number++) {
        const char *feed = memchr(text + at, '\n', n_bytes - at);
        size_t n = feed ? (size_t)(feed - text) - at : n_bytes - at, offset = 0;
        eval_task task = { 0 };
        fl_err why;
        if (!fl_line_is_blank(text + at, n)) {
            st = read_line(&task, text + at, n, &offset, &why);
            if (st == FL_OK) st = add_task(&set, &task, &why);
            if (st != FL_OK) {
                free_task(&task);
                st = fl_fail(err, st, "%s, line %llu, byte %llu: %s", path, (unsigned long long)number, (unsigned long long)(at + offset), why.text);
            }
        }
        at += n + 1;
    }
    if (st == FL_OK && set.n_tasks == 0) st = fl_fail(err, FL_INVALID, "%s has no tasks", path);
    free(text);
    if (st == FL_OK) *out = set;
    else eval_set_free(&set);
    return st;
}

/* ---- rows ---- */

static void write_messages(const eval_task *t, json_out *out)
{
    char *ask = is_mbpp(t->kind) ? join("Solve this task in Python. Answer with one code block that holds the whole function.\n\n%s", t->shown)
                                 : join("Complete this Python function. Answer with one code block that holds the whole function and its imports.\n\n```python\n%s```\n", t->shown);
    json_out_key(out, "messages");
    json_out_begin(out, '[');
    json_out_begin(out, '{');
    json_out_key(out, "role");
    json_out_string(out, "user");
    add_text(out, "content", ask);
    json_out_end(out, '}');
    json_out_end(out, ']');
    free(ask);
}

static void write_prompt(const eval_task *t, json_out *out)
{
    const char *const *stops = is_mbpp(t->kind) ? MBPP_STOPS : HUMANEVAL_STOPS;
    add_text(out, "prompt", t->shown);
    json_out_key(out, "stop");
    json_out_begin(out, '[');
    for (size_t i = 0; stops[i]; i++) json_out_string(out, stops[i]);
    json_out_end(out, ']');
}

void eval_task_write_row(const eval_task *t, bool chat, uint64_t n, uint64_t max_tokens, const char *suffix, json_out *out)
{
    char *id = join("%s%s", t->id, suffix);
    json_out_begin(out, '{');
    add_text(out, "custom_id", id);
    if (chat) write_messages(t, out);
    else write_prompt(t, out);
    json_out_key(out, "n");
    json_out_u64(out, n);
    if (max_tokens) {
        json_out_key(out, "max_tokens");
        json_out_u64(out, max_tokens);
    }
    json_out_key(out, "grade");
    json_out_raw(out, t->grade.data, t->grade.n_bytes);
    json_out_end(out, '}');
    json_out_line_end(out);
    free(id);
}
