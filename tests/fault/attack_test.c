/* Hostile completions (fault/attacks/NAME.py: the first or second line says which verdict is expected, `!` for any but passed) and honest ones that look odd (fault/honest/NAME.py, in
 * parts) are graded side by side: no hostile one passes, every honest one does, the samples between them keep their verdict, and nothing is left: no process, no group, no file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "worker/grader.h"
#include "worker/sandbox.h"

#define ATTACKS TESTS_DIR "/fault/attacks"
#define HONEST TESTS_DIR "/fault/honest"
#define SANE "def add(a, b):\n    return a + b\n"

enum { FILES_MAX = 200 };

typedef struct { char name[256]; char *text; size_t n; } sample_file;
typedef struct { sample_file files[FILES_MAX]; size_t n; } folder;

static int by_name(const void *a, const void *b) { return strcmp(((const sample_file *)a)->name, ((const sample_file *)b)->name); }

static void read_folder(folder *out, const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char full[600];
        if (entry->d_name[0] == '.') continue;
        assert_true(out->n < FILES_MAX);
        sample_file *f = &out->files[out->n++];
        snprintf(f->name, sizeof f->name, "%s", entry->d_name);
        snprintf(full, sizeof full, "%s/%s", path, entry->d_name);
        FILE *file = fopen(full, "rb");
        assert_non_null(file);
        f->text = calloc(1, 1 << 17);
        f->n = fread(f->text, 1, (1 << 17) - 1, file);
        fclose(file);
    }
    closedir(dir);
    qsort(out->files, out->n, sizeof *out->files, by_name);
}

static void free_folder(folder *f)
{
    for (size_t i = 0; i < f->n; i++) free(f->files[i].text);
}

#define TEXT(s) ((grade_text){(s), strlen(s)})

static grade_task add_task(void)
{
    return (grade_task){.mode = GRADE_CHECK, .task_id = TEXT("add"), .prompt = TEXT("def add(a, b):\n    \"\"\"The sum.\"\"\"\n"), .entry_point = TEXT("add"),
                        .canonical_solution = TEXT("    return a + b\n"),
                        .test = TEXT("def check(candidate):\n    cases = [(1, 2, 3), (2, 2, 4), (-1, 1, 0)]\n    assert all(map(lambda case: candidate(case[0], case[1]) == case[2], cases))\n")};
}

/* The part of an honest file that follows `# ---- NAME`; the add task's own when there is none. */
static grade_text part(const sample_file *f, const char *name, grade_text otherwise)
{
    char mark[40];
    snprintf(mark, sizeof mark, "# ---- %s\n", name);
    const char *begin = strstr(f->text, mark);
    if (!begin) return otherwise;
    begin += strlen(mark);
    const char *end = strstr(begin, "# ---- ");
    return (grade_text){begin, end ? (size_t)(end - begin) : strlen(begin)};
}

static grader *open_grader(void)
{
    grader *g = NULL;
    fl_err err = {.text = ""};
    grader_options options = {.n_slots = 2, .limits = {.cpu_ms_min = 700, .cpu_factor = 5, .idle_ms = 1500, .memory_bytes = 256u << 20, .output_bytes = 1 << 20, .n_processes = 16}};
    if (grader_open(&g, &options, &err) != FL_OK) fail_msg("%s", err.text);
    return g;
}

static void take_results(grader *g, grade_result results[], size_t n)
{
    fl_err err;
    for (size_t done = 0; done < n;) {
        struct pollfd p = {.fd = grader_fd(g), .events = POLLIN};
        poll(&p, 1, 1000);
        if (grader_step(g, &err) != FL_OK) fail_msg("%s", err.text);
        for (grade_result r; grader_next(g, &r); done++) {
            assert_true(r.tag < n);
            results[r.tag] = r;
        }
    }
}

/* Processes whose parent is this one. What runs in a sandbox ends with it: worker/sandbox.h. */
static size_t count_children(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], text[600];
        int pid, parent;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (file && fgets(text, sizeof text, file) && sscanf(text, "%d", &pid) == 1) {
            const char *rest = strrchr(text, ')');
            if (rest && sscanf(rest + 1, " %*c %d", &parent) == 1 && parent == (int)getpid()) n++;
        }
        if (file) fclose(file);
    }
    closedir(dir);
    return n;
}

/* Groups of this process's graders, in the folder where a new one is made. */
static void check_no_group_is_left(void)
{
    sandbox_group probe;
    char prefix[60], name[80];
    snprintf(prefix, sizeof prefix, SANDBOX_GROUP_PREFIX "%d-", (int)getpid());
    snprintf(name, sizeof name, "%sprobe", prefix);
    sandbox_group_open(&probe, name, 1 << 20, 1);
    for (int i = 0; i < SANDBOX_GROUP_PARTS; i++) {
        char path[sizeof probe.path[i]];
        snprintf(path, sizeof path, "%s", probe.path[i]);
        char *slash = strrchr(path, '/');
        if (!slash) continue;
        *slash = '\0';
        DIR *dir = opendir(path);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(entry->d_name, name) != 0) fail_msg("the group %s is left", entry->d_name);
        }
        if (dir) closedir(dir);
    }
    sandbox_group_close(&probe);
}

static void check_nothing_is_left(void)
{
    assert_int_equal(count_children(), 0);
    assert_int_not_equal(access("/tmp/fifo", F_OK), 0);              /* what some of them make in their /tmp */
    assert_int_not_equal(access("/tmp/scratch", F_OK), 0);
    check_no_group_is_left();
}

static void no_attack_passes_and_its_neighbours_keep_their_verdict(void **state)
{
    (void)state;
    static folder attacks;
    static grade_result results[2 * FILES_MAX];
    size_t n_bad = 0;
    fl_err err;
    read_folder(&attacks, ATTACKS);
    assert_true(attacks.n >= 40);
    grader *g = open_grader();
    grade_task task = add_task();
    for (size_t i = 0; i < attacks.n; i++) {
        grade_sample hostile = {.completion = {attacks.files[i].text, attacks.files[i].n}, .full_script = true, .tag = 2 * i};
        grade_sample sane = {.completion = TEXT(SANE), .full_script = true, .tag = 2 * i + 1};
        assert_int_equal(grader_submit(g, &task, &hostile, &err), FL_OK);
        assert_int_equal(grader_submit(g, &task, &sane, &err), FL_OK);
    }
    take_results(g, results, 2 * attacks.n);
    grader_close(g);
    for (size_t i = 0; i < attacks.n; i++) {
        char wanted[40] = "";
        const char *line = strstr(attacks.files[i].text, "# expect: ");
        if (!line || sscanf(line, "# expect: %39s", wanted) != 1) fail_msg("%s does not say what is expected", attacks.files[i].name);
        const grade_result *r = &results[2 * i];
        bool is_right = strcmp(wanted, "!") == 0 ? r->verdict != GRADE_PASSED && r->verdict != GRADE_SANDBOX_FAULT : strcmp(grade_verdict_name(r->verdict), wanted) == 0;
        if (!is_right) {
            print_error("%s: %s, expected %s: %s\n", attacks.files[i].name, grade_verdict_name(r->verdict), wanted, r->detail);
            n_bad++;
        }
        if (results[2 * i + 1].verdict != GRADE_PASSED) {
            print_error("the sane sample beside %s: %s: %s\n", attacks.files[i].name, grade_verdict_name(results[2 * i + 1].verdict), results[2 * i + 1].detail);
            n_bad++;
        }
    }
    free_folder(&attacks);
    assert_int_equal(n_bad, 0);
    check_nothing_is_left();
}

static void honest_completions_that_look_odd_pass(void **state)
{
    (void)state;
    static folder honest;
    static grade_result results[FILES_MAX];
    size_t n_bad = 0;
    fl_err err;
    read_folder(&honest, HONEST);
    grader *g = open_grader();
    for (size_t i = 0; i < honest.n; i++) {
        const sample_file *f = &honest.files[i];
        grade_task task = add_task();
        bool has_task = strstr(f->text, "# ---- prompt\n") != NULL;
        task.prompt = part(f, "prompt", task.prompt);
        task.canonical_solution = part(f, "canonical", task.canonical_solution);
        task.test = part(f, "test", task.test);
        char entry[80] = "add";
        const char *def = has_task ? task.prompt.bytes : NULL;
        for (const char *at = def; at && at < task.prompt.bytes + task.prompt.n; at = strchr(at, '\n') + 1) {      /* the last def or class at the left edge */
            if (sscanf(at, "def %79[a-z_]", entry) != 1) sscanf(at, "class %79[A-Za-z_]", entry);
        }
        task.entry_point = TEXT(entry);
        task.task_id = TEXT(f->name);
        grade_sample sample = {.completion = part(f, "completion", TEXT("")), .full_script = !has_task, .tag = i};
        assert_int_equal(grader_submit(g, &task, &sample, &err), FL_OK);
    }
    take_results(g, results, honest.n);
    grader_close(g);
    for (size_t i = 0; i < honest.n; i++) {
        bool in_process = strncmp(honest.files[i].name, "in_process", 10) == 0;
        if (results[i].verdict == GRADE_PASSED && results[i].in_process == in_process) continue;
        print_error("%s: %s%s: %s\n", honest.files[i].name, grade_verdict_name(results[i].verdict), results[i].in_process ? " (in one interpreter)" : "", results[i].detail);
        n_bad++;
    }
    free_folder(&honest);
    assert_int_equal(n_bad, 0);
    check_nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(honest_completions_that_look_odd_pass),
        cmocka_unit_test(no_attack_passes_and_its_neighbours_keep_their_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
