/* The grader's kinds of tasks, its refusals and its limits, on real sandboxes. Hostile completions: fault/attack_test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/grader.h"

#define TEXT(s) ((grade_text){(s), strlen(s)})

static grader *g;
static size_t room_when_empty;

static int open_grader(void **state)
{
    (void)state;
    fl_err err = {.text = ""};
    grader_options options = {.n_slots = 2, .limits = grade_limits_default()};
    options.limits.cpu_ms_min = 1000;
    if (grader_open(&g, &options, &err) != FL_OK) fail_msg("%s", err.text);
    room_when_empty = grader_room(g);
    return 0;
}

static size_t pending(void) { return room_when_empty - grader_room(g); }

static int close_grader(void **state)
{
    (void)state;
    grader_close(g);
    return 0;
}

/* Step until something is there; false after some minutes without. */
static bool next(grade_result *r)
{
    fl_err err;
    for (int i = 0; i < 240; i++) {
        if (grader_next(g, r)) return true;
        struct pollfd p = {.fd = grader_fd(g), .events = POLLIN};
        for (int j = 0; j < 20 && pending() > 0; j++) {
            poll(&p, 1, 50);
            if (grader_step(g, &err) != FL_OK) fail_msg("%s", err.text);
            if (grader_next(g, r)) return true;
        }
    }
    return false;
}

static grade_result grade(const grade_task *task, const char *completion, bool full_script)
{
    fl_err err = {.text = ""};
    grade_result r = {.tag = 0};
    grade_sample sample = {.completion = TEXT(completion), .full_script = full_script, .tag = 77};
    if (grader_submit(g, task, &sample, &err) != FL_OK) fail_msg("%s", err.text);
    if (!next(&r)) fail_msg("no result came");
    assert_int_equal(r.tag, 77);
    assert_int_equal(pending(), 0);
    return r;
}

static void expect(grade_result r, grade_verdict verdict, const char *detail)
{
    if (r.verdict != verdict || !strstr(r.detail, detail)) fail_msg("%s: %s; expected %s: ...%s...", grade_verdict_name(r.verdict), r.detail, grade_verdict_name(verdict), detail);
}

static const grade_task half = {.mode = GRADE_CHECK, .task_id = {"half", 4}, .entry_point = {"half", 4}, .prompt = {"def half(x):\n", 13}, .canonical_solution = {"    return x / 2\n", 17},
                                .test = {"def check(f):\n    assert f(4) == 2\n    assert f(0) == 0\n", 56}};

static void a_check_passes_or_says_which_line_failed(void **state)
{
    (void)state;
    expect(grade(&half, "    return x * 0.5\n", false), GRADE_PASSED, "");
    expect(grade(&half, "def half(x):\n    return x / 2\n", true), GRADE_PASSED, "");
    expect(grade(&half, "    return x\n", false), GRADE_WRONG, "line 2 of the test: assert f(4) == 2");
    expect(grade(&half, "    return x / 0\n", false), GRADE_ERROR, "the completion raised ZeroDivisionError: division by zero");
    expect(grade(&half, "    return (\n", false), GRADE_SYNTAX, "never closed (line 2)");
    expect(grade(&half, "x = 3\n", true), GRADE_ERROR, "does not define half");
    expect(grade(&half, "", false), GRADE_SYNTAX, "");
    expect(grade(&half, "    import numpy_that_is_not_there\n", false), GRADE_ERROR, "ModuleNotFoundError");
}

static void asserts_call_the_entry_point_by_name(void **state)
{
    (void)state;
    grade_task task = {.mode = GRADE_ASSERTS, .task_id = TEXT("11"), .entry_point = TEXT("area"), .canonical_solution = TEXT("import math\ndef area(r):\n    return math.pi * r * r\n"),
                       .test = TEXT("import math\nassert math.isclose(area(2), 12.566370614359172)\nassert area(0) == 0\n")};
    expect(grade(&task, "def area(r):\n    return 3.141592653589793 * r ** 2\n", true), GRADE_PASSED, "");
    expect(grade(&task, "def area(r):\n    return 3.14 * r ** 2\n", true), GRADE_WRONG, "line 2 of the test");
}

static void inputs_are_held_against_the_canonical_solution(void **state)
{
    (void)state;
    grade_task task = {.mode = GRADE_INPUTS, .task_id = TEXT("HumanEval/0"), .entry_point = TEXT("scale"), .prompt = TEXT("def scale(values, by):\n"),
                       .canonical_solution = TEXT("    return [v * by for v in values]\n"), .base_inputs = TEXT("[[[1, 2], 3], [[], 1]]"), .plus_inputs = TEXT("[[[0.1], 3], [[-1], 2], [[1e300], 10]]")};
    grade_result r = grade(&task, "    return [by * v for v in values]\n", false);
    expect(r, GRADE_PASSED, "");
    assert_int_equal(r.base_failed, -1);
    expect(grade(&task, "    return [v * by + 1e-9 for v in values]\n", false), GRADE_WRONG, "base input 0");       /* integers are compared exactly */
    r = grade(&task, "    return [sum([v] * by) for v in values]\n", false);                /* -1 + -1 is right; 0.1 + 0.1 + 0.1 is close enough */
    expect(r, GRADE_PASSED, "");
    r = grade(&task, "    return [abs(v) * by for v in values]\n", false);
    expect(r, GRADE_WRONG, "plus input 1");
    assert_int_equal(r.base, GRADE_PASSED);
    assert_int_equal(r.plus, GRADE_WRONG);
    assert_int_equal(r.plus_failed, 1);
    r = grade(&task, "    if not values:\n        raise ValueError('empty')\n    return [v * by for v in values]\n", false);
    expect(r, GRADE_ERROR, "ValueError: empty");
    assert_int_equal(r.base_failed, 1);
    assert_int_equal(r.plus, GRADE_PASSED);
}

static void mbpp_inputs_get_the_types_that_json_lacks(void **state)
{
    (void)state;
    grade_task task = {.mode = GRADE_INPUTS, .task_id = TEXT("Mbpp/2"), .entry_point = TEXT("similar_elements"), .prompt = TEXT("\"\"\"Shared elements.\"\"\"\n"),
                       .canonical_solution = TEXT("def similar_elements(a, b):\n    return tuple(set(a) & set(b))\n"), .base_inputs = TEXT("[[[3, 4, 5, 6], [5, 7, 4, 10]]]"), .plus_inputs = TEXT("[]")};
    expect(grade(&task, "def similar_elements(a, b):\n    assert type(a) is tuple\n    return [x for x in reversed(a) if x in b]\n", true), GRADE_PASSED, "");
}

static void a_task_without_what_its_mode_needs_is_refused(void **state)
{
    (void)state;
    fl_err err;
    grade_sample sample = {.completion = TEXT("")};
    grade_task task = half;
    task.entry_point = (grade_text){NULL, 0};
    assert_int_equal(grader_submit(g, &task, &sample, &err), FL_INVALID);
    assert_string_equal(err.text, "grading: task half has no entry_point");
    task = half;
    task.test = (grade_text){NULL, 0};
    assert_int_equal(grader_submit(g, &task, &sample, &err), FL_INVALID);
    task.mode = GRADE_INPUTS;
    task.canonical_solution = (grade_text){NULL, 0};
    assert_int_equal(grader_submit(g, &task, &sample, &err), FL_INVALID);
    assert_int_equal(pending(), 0);
}

static void a_task_without_a_canonical_solution_or_with_a_wrong_one_is_graded(void **state)
{
    (void)state;
    grade_task task = half;
    task.canonical_solution = (grade_text){NULL, 0};
    expect(grade(&task, "    return x / 2\n", false), GRADE_PASSED, "");
    task.canonical_solution = TEXT("    return x * 3\n");
    expect(grade(&task, "    return x / 2\n", false), GRADE_PASSED, "");
    task.canonical_solution = TEXT("    return (\n");
    expect(grade(&task, "    return x / 2\n", false), GRADE_PASSED, "");
    grade_result r = grade(&task, "    return x\n", false);
    expect(r, GRADE_WRONG, "line 2");
    assert_true(r.canonical_failed);
    assert_false(grade(&half, "    return x\n", false).canonical_failed);
}

static void the_canonical_solution_sets_the_time_that_samples_get(void **state)
{
    (void)state;
    grade_task task = {.mode = GRADE_CHECK, .task_id = TEXT("slow"), .entry_point = TEXT("slow"), .prompt = TEXT("def slow(n):\n"), .canonical_solution = TEXT("    t = __import__('time').process_time\n    end = t() + 0.6\n    while t() < end:\n        pass\n    return n\n"),
                       .test = TEXT("def check(f):\n    assert f(1) == 1\n")};
    expect(grade(&task, "    t = __import__('time').process_time\n    end = t() + 1.5\n    while t() < end:\n        pass\n    return n\n", false), GRADE_PASSED, "");      /* above cpu_ms_min, below 5 x 0.6 s */
    expect(grade(&half, "    while True:\n        pass\n", false), GRADE_TIMEOUT, "its CPU time ran out");
}

static void a_cancelled_sample_has_no_result(void **state)
{
    (void)state;
    fl_err err;
    grade_result r;
    for (uint64_t i = 0; i < 6; i++) {
        grade_sample sample = {.completion = TEXT(i % 2 ? "    return x / 2\n" : "    while True:\n        pass\n"), .tag = i};
        assert_int_equal(grader_submit(g, &half, &sample, &err), FL_OK);
    }
    for (int i = 0; i < 40; i++) {
        struct pollfd p = {.fd = grader_fd(g), .events = POLLIN};
        poll(&p, 1, 10);
        assert_int_equal(grader_step(g, &err), FL_OK);
    }
    for (uint64_t i = 0; i < 6; i += 2) assert_true(grader_cancel(g, i));
    assert_false(grader_cancel(g, 0));
    for (int i = 0; i < 3; i++) {
        assert_true(next(&r));
        assert_int_equal(r.tag % 2, 1);
        assert_int_equal(r.verdict, GRADE_PASSED);
    }
    assert_int_equal(pending(), 0);
    assert_false(grader_next(g, &r));
}

static void a_full_grader_says_so(void **state)
{
    (void)state;
    fl_err err;
    size_t room = grader_room(g);
    grade_sample sample = {.completion = TEXT("    return x / 2\n")};
    for (sample.tag = 0; sample.tag < room; sample.tag++) assert_int_equal(grader_submit(g, &half, &sample, &err), FL_OK);
    assert_int_equal(grader_room(g), 0);
    assert_int_equal(grader_submit(g, &half, &sample, &err), FL_FULL);
    for (sample.tag = 0; sample.tag < room; sample.tag++) assert_true(grader_cancel(g, sample.tag));
    assert_int_equal(grader_room(g), room);
}

static void without_bubblewrap_it_says_what_to_install(void **state)
{
    (void)state;
    fl_err err;
    grader *none = NULL;
    grader_options options = {.limits = grade_limits_default()};
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    fl_status st = grader_open(&none, &options, &err);
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(st, FL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "apt-get install bubblewrap"));
    assert_null(none);
}

/* The kernel's SIGKILL at a limit that the completion has set itself is no fault of the sandbox. */
static void a_completion_that_lowers_its_own_cpu_limit_times_out(void **state)
{
    (void)state;
    grader *usual = g;
    fl_err err = {.text = ""};
    grader_options options = {.n_slots = 1, .limits = grade_limits_default()};
    options.limits.cpu_ms_min = 30000;
    if (grader_open(&g, &options, &err) != FL_OK) fail_msg("%s", err.text);
    grade_result r = grade(&half, "    import resource\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while True:\n        pass\n", false);
    grader_close(g);
    g = usual;
    expect(r, GRADE_TIMEOUT, "its CPU time ran out");
    assert_true(r.cpu_ms < 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_check_passes_or_says_which_line_failed),
        cmocka_unit_test(asserts_call_the_entry_point_by_name),
        cmocka_unit_test(inputs_are_held_against_the_canonical_solution),
        cmocka_unit_test(mbpp_inputs_get_the_types_that_json_lacks),
        cmocka_unit_test(a_task_without_what_its_mode_needs_is_refused),
        cmocka_unit_test(a_task_without_a_canonical_solution_or_with_a_wrong_one_is_graded),
        cmocka_unit_test(the_canonical_solution_sets_the_time_that_samples_get),
        cmocka_unit_test(a_completion_that_lowers_its_own_cpu_limit_times_out),
        cmocka_unit_test(a_cancelled_sample_has_no_result),
        cmocka_unit_test(a_full_grader_says_so),
        cmocka_unit_test(without_bubblewrap_it_says_what_to_install),
    };
    return cmocka_run_group_tests(tests, open_grader, close_grader);
}
