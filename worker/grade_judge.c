/* grade_judge.c - how a run ended becomes a verdict: the checker's line, unless a limit or the end of the completion's process says otherwise. */
#include "worker/grader_state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static grade_verdict verdict_of(const char *name)
{
    for (int v = 0; v < GRADE_N_VERDICTS; v++) {
        if (strcmp(name, grade_verdict_name((grade_verdict)v)) == 0) return (grade_verdict)v;
    }
    return GRADE_SANDBOX_FAULT;
}

static void set_result(grade_result *r, grade_verdict verdict, const char *detail)
{
    r->verdict = r->base = r->plus = verdict;
    r->base_failed = r->plus_failed = -1;
    snprintf(r->detail, sizeof r->detail, "%s", detail);
}

#define OWN_LIMIT_MS 500                     /* a limit of CPU time that a completion sets itself (setrlimit) ends it after a whole second of it at least. A canonical solution sets none: what ends it is measured again */

/* How a completion ended that closed its channel before the check was over. SIGKILL comes from outside, since nothing inside may kill pid 1, or from the kernel at a limit of CPU time. */
static void set_gone(const grader *g, grade_result *r, const candidate *c)
{
    char text[120];
    int code = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 128 + SIGKILL;
    if (!c->we_killed && code == 128 + SIGKILL && (c->end_ms - c->run_ms >= grader_cpu_limit_ms(g, c->job) || (c->job->kind == JOB_SAMPLE && r->cpu_ms >= OWN_LIMIT_MS))) { set_result(r, GRADE_TIMEOUT, "its CPU time ran out"); return; }
    if (!c->we_killed && code == 128 + SIGKILL) { set_result(r, GRADE_SANDBOX_FAULT, "it was killed from outside, or the machine's memory ran out"); return; }
    if (c->we_killed) snprintf(text, sizeof text, "the completion closed its channel");
    else if (code > 128 && code < 128 + NSIG) snprintf(text, sizeof text, "the completion's process was ended by SIG%s", sigabbrev_np(code - 128) ? sigabbrev_np(code - 128) : "?");
    else snprintf(text, sizeof text, "the completion ended its process with exit status %d", code);
    set_result(r, GRADE_ERROR, text);
}

/* Read the checker's line into the result. "gone" and "not_plain" are not verdicts for users. Returns false when the line is not one. */
static bool read_verdict(grade_result *r, char *line, bool *is_gone, bool *needs_more)
{
    char *field[8];
    size_t n = 0;
    for (char *at = line; n < 8; n++) {
        field[n] = at;
        char *tab = n < 7 ? strchr(at, '\t') : NULL;
        if (!tab) { n++; break; }
        *tab = '\0';
        at = tab + 1;
    }
    if (n != 8) return false;
    *is_gone = strcmp(field[0], "gone") == 0;
    *needs_more = strcmp(field[0], "not_plain") == 0 || strcmp(field[2], "not_plain") == 0 || strcmp(field[5], "1") == 0;
    set_result(r, verdict_of(field[0]), field[7]);
    r->base = verdict_of(field[1]);
    r->plus = verdict_of(field[2]);
    r->base_failed = (int32_t)strtol(field[3], NULL, 10);
    r->plus_failed = (int32_t)strtol(field[4], NULL, 10);
    r->cpu_ms = (uint32_t)strtoul(field[6], NULL, 10);
    return true;
}

void grader_judge(const grader *g, candidate *c, bool *needs_more)
{
    grade_result *r = &c->job->result;
    bool is_gone = false;
    char text[160];
    *needs_more = false;
    r->cpu_ms = 0;
    bool has_line = c->has_verdict && read_verdict(r, c->verdict, &is_gone, needs_more);
    int64_t oom_kills = sandbox_group_oom_kills(&c->cell.group);
    uint64_t group_ms;
    if (sandbox_group_cpu_ms(&c->cell.group, &group_ms)) r->cpu_ms = (uint32_t)(group_ms - c->group_cpu_ms);
    else if (c->cpu_ms > r->cpu_ms) r->cpu_ms = (uint32_t)c->cpu_ms;
    if (c->cell.output_bytes > g->limits.output_bytes || c->stop == STOP_OUTPUT) {
        snprintf(text, sizeof text, "it printed more than %llu bytes", (unsigned long long)g->limits.output_bytes);
        set_result(r, GRADE_OUTPUT_LIMIT, text);
    } else if (c->stop == STOP_MEMORY || (oom_kills > c->group_oom_kills && c->group_oom_kills >= 0)) {
        set_result(r, GRADE_MEMORY, "its processes together took more memory than its limit");
    } else if (c->stop == STOP_CPU || c->stop == STOP_IDLE) {
        set_result(r, GRADE_TIMEOUT, c->stop == STOP_CPU ? "its CPU time ran out" : "it waited for something that did not come");
    } else if (is_gone) {
        set_gone(g, r, c);
    } else if (!has_line && WIFSIGNALED(c->checker_status) && (WTERMSIG(c->checker_status) == SIGXCPU || WTERMSIG(c->checker_status) == SIGKILL)) {
        set_result(r, GRADE_TIMEOUT, "the test's CPU time ran out with what the completion returned");
    } else if (!has_line) {
        set_result(r, GRADE_SANDBOX_FAULT, "the check ended without a verdict");
    }
    r->wall_ms = (uint32_t)(c->end_ms - c->run_ms);
}
