#include "coordinator/eval_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/job_store.h"
#include "proto/job_row.h"

fl_status pass_ks_parse(pass_ks *out, const char *text, fl_err *err)
{
    pass_ks ks = { 0 };
    for (const char *at = text; ; at++) {
        char *end;
        unsigned long k = strtoul(at, &end, 10);
        if (end == at || *at < '0' || *at > '9' || (*end && *end != ',') || k == 0 || k > FL_SAMPLES_MAX) return fl_fail(err, FL_INVALID, "-k takes numbers from 1 to %d with commas, as in 1,10, not '%.40s'", FL_SAMPLES_MAX, text);
        if (ks.n == PASS_KS_MAX) return fl_fail(err, FL_INVALID, "-k takes at most %d numbers", PASS_KS_MAX);
        size_t i = ks.n++;
        for (; i > 0 && ks.v[i - 1] > k; i--) ks.v[i] = ks.v[i - 1];
        ks.v[i] = (uint32_t)k;
        if (i > 0 && ks.v[i - 1] == k) return fl_fail(err, FL_INVALID, "-k has %lu twice", k);
        if (!*end) break;
        at = end;
    }
    *out = ks;
    return FL_OK;
}

/* ---- one outcome ---- */

static fl_status check_ks(const eval_outcome *o, fl_err *err)
{
    for (size_t i = 0; i < o->set->n_tasks && o->ks.n > 0; i++) {
        uint32_t n = o->counts[i].n, most = o->ks.v[o->ks.n - 1];
        if (n < most) return fl_fail(err, FL_INVALID, "pass@%u needs %u samples of each task, and %.80s has %u; ask for a smaller -k", most, most, o->set->tasks[i].id, n);
    }
    return FL_OK;
}

static void note_unsound(eval_outcome *o, const char *id)
{
    size_t used = strlen(o->unsound);
    o->n_unsound++;
    if (used + strlen(id) + sizeof ", , ..." > sizeof o->unsound || o->n_unsound > 4) id = "...";
    if (strcmp(id, "...") != 0 || used < 3 || strcmp(o->unsound + used - 3, id) != 0) snprintf(o->unsound + used, sizeof o->unsound - used, "%s%s", used ? ", " : "", id);
}

static void count_verdicts(eval_outcome *o, const eval_samples *s)
{
    for (size_t i = 0; i < s->set->n_tasks; i++) {
        o->has_base |= eval_kind_is_plus(s->set->tasks[i].kind);
        bool is_unsound = false;
        for (uint32_t k = 0; k < s->of[i].n; k++) {
            const eval_sample *sample = &s->of[i].v[k];
            is_unsound |= sample->verdict.canonical_failed;
            o->n_samples++;
            o->n_missing += sample->completion == NULL;
            o->n_in_process += sample->verdict.in_process;
            o->verdicts[sample->verdict.verdict]++;
        }
        if (is_unsound) note_unsound(o, s->set->tasks[i].id);
    }
}

static fl_status estimate(eval_outcome *o, const pass_count *counts, pass_interval *into, fl_err *err)
{
    fl_status st = FL_OK;
    for (size_t i = 0; st == FL_OK && i < o->ks.n; i++) st = pass_at_k_mean(counts, o->set->n_tasks, o->ks.v[i], &into[i], err);
    return st;
}

fl_status eval_outcome_make(eval_outcome *out, const eval_samples *s, uint32_t n_asked, const pass_ks *ks, const char *model, const char *setting, fl_err *err)
{
    eval_outcome o = { .set = s->set, .ks = *ks, .n = n_asked };
    size_t n = s->set->n_tasks;
    pass_count *base = malloc(n * sizeof *base);
    o.counts = malloc(n * sizeof *o.counts);
    fl_status st = base && o.counts ? FL_OK : fl_fail(err, FL_FULL, "no memory for %zu tasks", n);
    if (st != FL_OK) goto done;
    snprintf(o.model, sizeof o.model, "%s", model);
    snprintf(o.setting, sizeof o.setting, "%s", setting);
    eval_samples_count(s, false, o.counts);
    eval_samples_count(s, true, base);
    for (size_t i = 0; i < n && n_asked; i++) {          /* ended early: what was left could not have changed an estimate, whatever it gave */
        o.n_early += o.counts[i].n < n_asked;
        o.counts[i].n = base[i].n = n_asked;
    }
    count_verdicts(&o, s);
    if ((st = check_ks(&o, err)) != FL_OK) goto done;
    if ((st = estimate(&o, o.counts, o.all, err)) != FL_OK) goto done;
    if (o.has_base && (st = estimate(&o, base, o.base, err)) != FL_OK) goto done;
    *out = o;
    o.counts = NULL;
done:
    free(base);
    free(o.counts);
    return st;
}

void eval_outcome_free(eval_outcome *o)
{
    free(o->counts);
    memset(o, 0, sizeof *o);
}

static void print_interval(FILE *file, const char *name, const pass_interval *v)
{
    fprintf(file, "%-14s %.4f  (95%%: %.4f to %.4f)\n", name, v->mean, v->low, v->high);
}

void eval_outcome_print(FILE *file, const eval_outcome *o)
{
    char name[40];
    fprintf(file, "%s: %zu tasks, %llu samples", o->set->name, o->set->n_tasks, (unsigned long long)o->n_samples);
    if (o->model[0]) fprintf(file, ", %s%s%s", o->model, o->setting[0] ? ", " : "", o->setting);
    fputc('\n', file);
    for (size_t i = 0; i < o->ks.n; i++) {
        snprintf(name, sizeof name, "pass@%u", o->ks.v[i]);
        print_interval(file, name, &o->all[i]);
        if (!o->has_base) continue;
        snprintf(name, sizeof name, "  base only");
        print_interval(file, name, &o->base[i]);
    }
    const char *between = "verdicts      ";
    for (int i = 1; i < FL_VERDICT_END; i++) {
        if (!o->verdicts[i]) continue;
        fprintf(file, "%s %llu %s", between, (unsigned long long)o->verdicts[i], fl_verdict_name((fl_verdict_kind)i));
        between = ",";
    }
    fputc('\n', file);
    if (o->n_early) fprintf(file, "ended early    %llu tasks, once no further sample could change their part of these numbers\n", (unsigned long long)o->n_early);
    if (o->n_missing) fprintf(file, "not generated  %llu samples, which count as not passed; the error file says why\n", (unsigned long long)o->n_missing);
    if (o->n_in_process) fprintf(file, "in process     %llu samples were judged in one interpreter with their check\n", (unsigned long long)o->n_in_process);
    if (o->n_unsound) fprintf(file, "unsound        canonical solutions that do not pass their own tests: %llu (%s); the verdicts there say nothing of the samples\n", (unsigned long long)o->n_unsound, o->unsound);
}

void eval_outcome_print_tasks(FILE *file, const eval_outcome *o)
{
    int width = 4;
    for (size_t i = 0; i < o->set->n_tasks; i++)
        if ((int)strlen(o->set->tasks[i].id) > width) width = (int)strlen(o->set->tasks[i].id);
    fprintf(file, "%-*s  passed", width, "task");
    for (size_t k = 0; k < o->ks.n; k++) {
        char head[24];
        snprintf(head, sizeof head, "pass@%u", o->ks.v[k]);
        fprintf(file, "  %9s", head);
    }
    fputc('\n', file);
    for (size_t i = 0; i < o->set->n_tasks; i++) {
        char passed[24];
        snprintf(passed, sizeof passed, "%u/%u", o->counts[i].c, o->counts[i].n);
        fprintf(file, "%-*s  %6s", width, o->set->tasks[i].id, passed);
        for (size_t k = 0; k < o->ks.n; k++) fprintf(file, "  %9.4f", pass_at_k(o->counts[i], o->ks.v[k]));
        fputc('\n', file);
    }
}

static json_t *intervals_json(const eval_outcome *o, const pass_interval *values)
{
    json_t *out = json_object();
    for (size_t i = 0; i < o->ks.n; i++) {
        char key[24];
        snprintf(key, sizeof key, "%u", o->ks.v[i]);
        json_object_set_new(out, key, json_pack("{s:f, s:f, s:f}", "mean", values[i].mean, "low", values[i].low, "high", values[i].high));
    }
    return out;
}

json_t *eval_outcome_json(const eval_outcome *o)
{
    json_t *verdicts = json_object(), *tasks = json_array();
    for (int i = 1; i < FL_VERDICT_END; i++) json_object_set_new(verdicts, fl_verdict_name((fl_verdict_kind)i), json_integer((json_int_t)o->verdicts[i]));
    for (size_t i = 0; i < o->set->n_tasks; i++)
        json_array_append_new(tasks, json_pack("{s:s, s:I, s:I}", "task_id", o->set->tasks[i].id, "n", (json_int_t)o->counts[i].n, "passed", (json_int_t)o->counts[i].c));
    json_t *out = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "tasks_file", o->set->name, "model", o->model, "setting", o->setting, "n", (json_int_t)o->n,
                            "samples", (json_int_t)o->n_samples, "not_generated", (json_int_t)o->n_missing, "in_process", (json_int_t)o->n_in_process, "ended_early", (json_int_t)o->n_early, "canonical_failed", (json_int_t)o->n_unsound,
                            "pass_at_k", intervals_json(o, o->all), "verdicts", verdicts, "tasks", tasks);
    if (out && o->has_base) json_object_set_new(out, "pass_at_k_base", intervals_json(o, o->base));
    return out;
}

/* ---- several ---- */

static void name_outcome(const eval_outcome *o, char out[400])
{
    snprintf(out, 400, "%s%s%s", o->model, o->setting[0] ? " " : "", o->setting);
}

void eval_compare_print(FILE *file, const eval_outcome *all, size_t n)
{
    char name[400];
    int width = 0;
    for (size_t i = 0; i < n; i++) {
        name_outcome(&all[i], name);
        if ((int)strlen(name) > width) width = (int)strlen(name);
    }
    fprintf(file, "%-*s", width, "");
    for (size_t k = 0; k < all[0].ks.n; k++) {
        char head[24];
        snprintf(head, sizeof head, "pass@%u", all[0].ks.v[k]);
        fprintf(file, "  %-24s", head);
    }
    fputc('\n', file);
    for (size_t i = 0; i < n; i++) {
        name_outcome(&all[i], name);
        fprintf(file, "%-*s", width, name);
        for (size_t k = 0; k < all[i].ks.n; k++) fprintf(file, "  %.4f (%.4f to %.4f)", all[i].all[k].mean, all[i].all[k].low, all[i].all[k].high);
        fputc('\n', file);
    }
}

/* The plot: k on a logarithmic axis, a line with its interval for each outcome. */
enum { PLOT_W = 720, PLOT_H = 440, LEFT = 60, RIGHT = 20, TOP = 24, BOTTOM = 48, LEGEND = 18 };

static void svg_text(FILE *file, double x, double y, const char *anchor, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", file);
        else if (*text == '>') fputs("&gt;", file);
        else if (*text == '&') fputs("&amp;", file);
        else if ((unsigned char)*text >= 0x20) fputc(*text, file);
    }
    fputs("</text>\n", file);
}

static double x_of(const pass_ks *ks, uint32_t k)
{
    double span = log(ks->v[ks->n - 1]) - log(ks->v[0]);
    return LEFT + (span > 0 ? (log(k) - log(ks->v[0])) / span : 0.5) * (PLOT_W - LEFT - RIGHT);
}

static double y_of(double value) { return TOP + (1 - value) * (PLOT_H - TOP - BOTTOM); }

static void svg_axes(FILE *file, const pass_ks *ks)
{
    char label[24];
    for (int i = 0; i <= 5; i++) {
        double y = y_of(i / 5.0);
        fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, y, PLOT_W - RIGHT, y);
        snprintf(label, sizeof label, "%.1f", i / 5.0);
        svg_text(file, LEFT - 8, y + 4, "end", label);
    }
    for (size_t i = 0; i < ks->n; i++) {
        snprintf(label, sizeof label, "%u", ks->v[i]);
        svg_text(file, x_of(ks, ks->v[i]), PLOT_H - BOTTOM + 18, "middle", label);
    }
    svg_text(file, PLOT_W / 2.0, PLOT_H - 8, "middle", "k");
    svg_text(file, LEFT, TOP - 8, "middle", "pass@k");
}

static void svg_outcome(FILE *file, const eval_outcome *o, size_t at)
{
    static const char *const colors[] = { "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf" };
    const char *color = colors[at % (sizeof colors / sizeof *colors)];
    char name[400];
    fprintf(file, "<g stroke=\"%s\" fill=\"none\" stroke-width=\"2\">\n<polyline points=\"", color);
    for (size_t k = 0; k < o->ks.n; k++) fprintf(file, "%.1f,%.1f ", x_of(&o->ks, o->ks.v[k]), y_of(o->all[k].mean));
    fputs("\"/>\n", file);
    for (size_t k = 0; k < o->ks.n; k++) {
        double x = x_of(&o->ks, o->ks.v[k]) + (double)at * 2 - 3;        /* intervals beside each other */
        fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke-width=\"1\"/>\n", x, y_of(o->all[k].low), x, y_of(o->all[k].high));
        fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_of(&o->ks, o->ks.v[k]), y_of(o->all[k].mean), color);
    }
    fputs("</g>\n", file);
    double y = PLOT_H + LEGEND * (double)at + 8;
    fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>\n", LEFT, y, LEFT + 24, y, color);
    name_outcome(o, name);
    svg_text(file, LEFT + 32, y + 4, "start", name);
}

fl_status eval_compare_svg(const eval_outcome *all, size_t n, const char *path, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *file = open_memstream(&text, &n_bytes);
    if (!file) return fl_fail(err, FL_FULL, "no memory for a plot");
    int height = PLOT_H + LEGEND * (int)n + 8;
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", PLOT_W, height, PLOT_W, height);
    svg_axes(file, &all[0].ks);
    for (size_t i = 0; i < n; i++) svg_outcome(file, &all[i], i);
    fputs("</svg>\n", file);
    fl_status st = fclose(file) == 0 ? job_store_write_file(path, text, n_bytes, err) : fl_fail(err, FL_FULL, "no memory for a plot");
    free(text);
    return st;
}
