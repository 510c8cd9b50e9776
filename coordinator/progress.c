#include "coordinator/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "coordinator/printable.h"

#define TERMINAL_EVERY_MS 250
#define PLAIN_EVERY_MS 5000
#define PACE_EVERY_MS 500
#define INGEST_FIRST_MS 1000
#define INGEST_PLAIN_EVERY_MS 10000

void progress_init(progress *p, int64_t now_ms, bool terminal)
{
    memset(p, 0, sizeof *p);
    p->terminal = terminal;
    p->first_ms = now_ms;
    p->next_ms = now_ms + (terminal ? 0 : PLAIN_EVERY_MS);
}

void progress_duration(char *out, size_t n_bytes, int64_t seconds)
{
    if (seconds < 60) snprintf(out, n_bytes, "%" PRId64 "s", seconds);
    else if (seconds < 3600) snprintf(out, n_bytes, "%" PRId64 "m%02" PRId64 "s", seconds / 60, seconds % 60);
    else snprintf(out, n_bytes, "%" PRId64 "h%02" PRId64 "m", seconds / 3600, seconds / 60 % 60);
}

/* Note the numbers of now; *tokens_per_s over the last seconds and the seconds left at the pace since the start (-1 = not known yet). */
static int64_t take_pace(progress *p, int64_t now_ms, const progress_numbers *n, double *tokens_per_s)
{
    double rows_per_s;
    pace_rates(&p->pace, now_ms, n->tokens, n->done, tokens_per_s, &rows_per_s);
    pace_note(&p->pace, now_ms, PACE_EVERY_MS, n->tokens, n->done);
    uint64_t finished = n->done - p->first_done;
    if (finished == 0 || n->done >= n->rows) return -1;
    return (int64_t)((double)(now_ms - p->first_ms) / 1000.0 * (double)(n->rows - n->done) / (double)finished + 0.5);
}

void progress_show(progress *p, int64_t now_ms, const progress_numbers *n)
{
    if (!p->pace.n) {                                    /* what was there before counts for no pace */
        p->first_done = n->done;
        pace_note(&p->pace, now_ms, PACE_EVERY_MS, n->tokens, n->done);
    }
    if (now_ms < p->next_ms) return;
    p->next_ms = now_ms + (p->terminal ? TERMINAL_EVERY_MS : PLAIN_EVERY_MS);
    double tokens_per_s = 0;
    char eta[24] = "", line[512];
    int64_t left_s = take_pace(p, now_ms, n, &tokens_per_s);
    if (left_s >= 0) progress_duration(eta, sizeof eta, left_s);
    snprintf(line, sizeof line, "%" PRIu64 "/%" PRIu64 " rows, %.0f tokens/s, %" PRIu64 " failed, %d worker%s%s%s%s%s", n->done, n->rows, tokens_per_s,
             n->failed, n->workers, n->workers == 1 ? "" : "s", eta[0] ? ", ETA " : "", eta, n->note ? ", " : "", n->note ? n->note : "");
    fprintf(stderr, p->terminal ? "\r%s\033[K" : "%s\n", printable(line));
    fflush(stderr);
    p->shown = p->terminal;
}

void progress_clear(progress *p)
{
    if (!p->shown) return;
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
    p->shown = false;
}

void progress_ingest_show(progress_ingest *p, int64_t now_ms, bool terminal, uint64_t rows, uint64_t bytes)
{
    if (p->first_ms == 0) {
        p->first_ms = now_ms;
        p->next_ms = now_ms + INGEST_FIRST_MS;
    }
    if (now_ms < p->next_ms) return;
    p->next_ms = now_ms + (terminal ? TERMINAL_EVERY_MS : INGEST_PLAIN_EVERY_MS);
    fprintf(stderr, terminal ? "\r%s: %" PRIu64 " rows, %" PRIu64 " MB, %.0f MB/s\033[K" : "%s: %" PRIu64 " rows, %" PRIu64 " MB, %.0f MB/s\n", p->what, rows, bytes / 1000000,
            (double)bytes / 1000.0 / (double)(now_ms - p->first_ms));
    fflush(stderr);
    p->shown = terminal;
}

void progress_ingest_clear(progress_ingest *p)
{
    if (!p->shown) return;
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
    p->shown = false;
}
