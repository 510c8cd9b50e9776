/* All canonical HumanEval solutions pass; a copy of each that returns something else does not (tests/e2e/data/HumanEval.jsonl.gz: github.com/openai/human-eval, MIT). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "worker/grader.h"

enum { N_TASKS = 164 };

/* Appended to a solution: the same function with another answer. */
#define ALTERED \
    "\n\n_right = %s\ndef %s(*args):\n    answer = _right(*args)\n    if isinstance(answer, bool) or answer is None:\n        return not answer\n" \
    "    if isinstance(answer, (int, float)):\n        return answer + 1\n    if isinstance(answer, str):\n        return answer + '~'\n" \
    "    if isinstance(answer, (list, tuple)):\n        return answer + type(answer)([None])\n    return 1\n"

static grade_text text_of(const json_t *object, const char *key)
{
    const json_t *s = json_object_get(object, key);
    return (grade_text){json_string_value(s), json_string_length(s)};
}

static grader *g;

static void wait_for(grade_result results[], size_t n)
{
    fl_err err;
    for (size_t done = 0; done < n;) {
        struct pollfd p = {.fd = grader_fd(g), .events = POLLIN};
        poll(&p, 1, 1000);
        if (grader_step(g, &err) != FL_OK) fail_msg("%s", err.text);
        for (grade_result r; grader_next(g, &r); done++) results[r.tag] = r;
    }
}

static void canonical_solutions_pass_and_altered_ones_do_not(void **state)
{
    (void)state;
    static char line[1 << 16];
    static grade_result results[2 * N_TASKS];
    json_t *tasks[N_TASKS];
    size_t n = 0;
    fl_err err = {.text = ""};
    gzFile file = gzopen(TESTS_DIR "/e2e/data/HumanEval.jsonl.gz", "rb");
    assert_non_null(file);
    grader_options options = {.limits = grade_limits_default()};
    if (grader_open(&g, &options, &err) != FL_OK) fail_msg("%s", err.text);
    while (n < N_TASKS && gzgets(file, line, sizeof line)) {
        json_t *t = tasks[n] = json_loads(line, 0, NULL);
        char altered[1 << 13];
        const char *entry = json_string_value(json_object_get(t, "entry_point"));
        grade_task task = {.mode = GRADE_CHECK, .task_id = text_of(t, "task_id"), .prompt = text_of(t, "prompt"), .entry_point = text_of(t, "entry_point"), .test = text_of(t, "test"),
                           .canonical_solution = text_of(t, "canonical_solution")};
        grade_sample right = {.completion = task.canonical_solution, .tag = 2 * n};
        snprintf(altered, sizeof altered, "%s" ALTERED, task.canonical_solution.bytes, entry, entry);
        grade_sample wrong = {.completion = {altered, strlen(altered)}, .tag = 2 * n + 1};
        assert_int_equal(grader_submit(g, &task, &right, &err), FL_OK);
        assert_int_equal(grader_submit(g, &task, &wrong, &err), FL_OK);
        n++;
    }
    gzclose(file);
    assert_int_equal(n, N_TASKS);
    wait_for(results, 2 * n);
    grader_close(g);
    for (size_t i = 0; i < n; i++) {
        const char *id = json_string_value(json_object_get(tasks[i], "task_id"));
        if (results[2 * i].verdict != GRADE_PASSED || results[2 * i].in_process) fail_msg("%s: %s: %s", id, grade_verdict_name(results[2 * i].verdict), results[2 * i].detail);
        if (results[2 * i + 1].verdict != GRADE_WRONG && results[2 * i + 1].verdict != GRADE_ERROR)
            fail_msg("altered %s: %s: %s", id, grade_verdict_name(results[2 * i + 1].verdict), results[2 * i + 1].detail);
        json_decref(tasks[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(canonical_solutions_pass_and_altered_ones_do_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
