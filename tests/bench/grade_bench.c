/* grade_bench TASKS.jsonl[.gz] [--samples SAMPLES.jsonl] [--slots N] [--repeat N] [--limit N] [--show] - grading speed: the canonical solutions of a HumanEval-like file, or the
 * completions of a samples file, N times over. --show prints each verdict that is not `passed`. */
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zlib.h>
#include "proto/clock.h"
#include "worker/grader.h"

enum { LINE_BYTES_MAX = 1 << 24, ITEMS_MAX = 20000 };

typedef struct { json_t *items[ITEMS_MAX]; size_t n; } lines;

static void read_lines(lines *out, const char *path)
{
    static char line[LINE_BYTES_MAX];
    gzFile file = gzopen(path, "rb");
    if (!file) { fprintf(stderr, "grade_bench: cannot open %s\n", path); exit(3); }
    while (out->n < ITEMS_MAX && gzgets(file, line, sizeof line)) {
        json_error_t error;
        json_t *item = json_loads(line, 0, &error);
        if (!item) { fprintf(stderr, "grade_bench: %s line %zu: %s\n", path, out->n + 1, error.text); exit(3); }
        out->items[out->n++] = item;
    }
    gzclose(file);
}

static grade_text text_of(const json_t *object, const char *key)
{
    const json_t *s = json_object_get(object, key);
    return (grade_text){json_string_value(s), json_string_length(s)};
}

static grade_task task_of(const json_t *t)
{
    return (grade_task){.mode = GRADE_CHECK, .task_id = text_of(t, "task_id"), .prompt = text_of(t, "prompt"), .entry_point = text_of(t, "entry_point"), .test = text_of(t, "test"),
                        .canonical_solution = text_of(t, "canonical_solution")};
}

static const json_t *find_task(const lines *tasks, const char *id)
{
    for (size_t i = 0; i < tasks->n; i++) {
        if (strcmp(json_string_value(json_object_get(tasks->items[i], "task_id")), id) == 0) return tasks->items[i];
    }
    fprintf(stderr, "grade_bench: no task %s\n", id);
    exit(3);
}

int main(int argc, char **argv)
{
    static lines tasks, samples;
    size_t repeat = 1, n_samples, limit = SIZE_MAX, counts[GRADE_N_VERDICTS] = {0}, n_in_process = 0;
    int show = 0;
    grader_options options = {.limits = grade_limits_default()};
    if (argc < 2) { fprintf(stderr, "usage: grade_bench TASKS.jsonl[.gz] [--samples FILE] [--slots N] [--repeat N] [--limit N] [--show]\n"); return 2; }
    read_lines(&tasks, argv[1]);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--show") == 0) show = 1;
        else if (i + 1 < argc && strcmp(argv[i], "--samples") == 0) read_lines(&samples, argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--slots") == 0) options.n_slots = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--repeat") == 0) repeat = (size_t)atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--limit") == 0) limit = (size_t)atoi(argv[++i]);
        else { fprintf(stderr, "grade_bench: unknown argument %s\n", argv[i]); return 2; }
    }
    n_samples = samples.n ? samples.n : tasks.n;
    if (n_samples > limit) n_samples = limit;
    grader *g;
    fl_err err;
    if (grader_open(&g, &options, &err) != FL_OK) { fprintf(stderr, "%s\n", err.text); return 3; }
    double begun = fl_awake_s();
    size_t total = n_samples * repeat, sent = 0, done = 0;
    while (done < total) {
        for (; sent < total && grader_room(g) > 0; sent++) {
            const json_t *s = samples.n ? samples.items[sent % n_samples] : tasks.items[sent % n_samples];
            grade_task task = task_of(samples.n ? find_task(&tasks, json_string_value(json_object_get(s, "task_id"))) : s);
            grade_sample sample = {.completion = text_of(s, samples.n ? "completion" : "canonical_solution"), .tag = sent};
            if (grader_submit(g, &task, &sample, &err) != FL_OK) { fprintf(stderr, "%s\n", err.text); return 3; }
        }
        struct pollfd p = {.fd = grader_fd(g), .events = POLLIN};
        poll(&p, 1, 1000);
        if (grader_step(g, &err) != FL_OK) fprintf(stderr, "%s\n", err.text);
        for (grade_result r; grader_next(g, &r); done++) {
            counts[r.verdict]++;
            n_in_process += r.in_process;
            if (show && r.verdict != GRADE_PASSED) {
                const json_t *s = samples.n ? samples.items[r.tag % n_samples] : tasks.items[r.tag % n_samples];
                printf("%s %s: %s (cpu %u ms, wall %u ms)\n", json_string_value(json_object_get(s, "task_id")), grade_verdict_name(r.verdict), r.detail, r.cpu_ms, r.wall_ms);
            }
        }
    }
    double took = fl_awake_s() - begun;
    struct rusage own, children;
    grader_close(g);
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    printf("%zu samples in %.2f s: %.1f/s; own CPU %.2f s, children's as far as it is passed up %.2f s; in one interpreter %zu;", total, took, (double)total / took,
           (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) + 1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec),
           (double)(children.ru_utime.tv_sec + children.ru_stime.tv_sec) + 1e-6 * (double)(children.ru_utime.tv_usec + children.ru_stime.tv_usec), n_in_process);
    for (int v = 0; v < GRADE_N_VERDICTS; v++) printf(" %s %zu", grade_verdict_name((grade_verdict)v), counts[v]);
    printf("\n");
    for (size_t i = 0; i < tasks.n; i++) json_decref(tasks.items[i]);
    for (size_t i = 0; i < samples.n; i++) json_decref(samples.items[i]);
    return 0;
}
