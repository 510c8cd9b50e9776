/* Rows made to cost memory: what a worker takes for a line of 64 MB is bounded by the bytes of the line (row_request.h, Memory), and a prompt that cannot fit is refused before it is tokenized. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "tests/heap_watch.h"
#include "worker/row_request.h"

#define MB ((size_t)1 << 20)

/* {"prompt": "PIECE PIECE ..."} of about n_bytes; `random` letters instead of a piece when that is NULL. */
static char *make_line(const char *piece, size_t n_bytes, size_t *n)
{
    static const char head[] = "{\"prompt\": \"", tail[] = "\"}";
    char *line = malloc(n_bytes + 1);
    assert_non_null(line);
    size_t at = sizeof head - 1, n_piece = piece ? strlen(piece) : 1;
    uint32_t random = 1;
    memcpy(line, head, at);
    for (; at + n_piece + sizeof tail <= n_bytes; at += n_piece) {
        random = random * 1664525u + 1013904223u;
        if (piece) memcpy(line + at, piece, n_piece);
        else line[at] = (char)('a' + (random >> 24) % 26);
    }
    memcpy(line + at, tail, sizeof tail);
    *n = at + sizeof tail - 1;
    return line;
}

/* The demo model's tokenizer with NFC before it, in a folder of its own. */
static char nfc_dir[] = "/tmp/hostile_rows_test.XXXXXX";

static int make_nfc_model(void **state)
{
    (void)state;
    static const char from[] = "\"normalizer\": null", to[] = "\"normalizer\":{\"type\":\"NFC\"}";
    char path[64], *text = calloc(1, 8 * MB), *at;
    FILE *in = fopen(OPS_DIR "/demo_model/tokenizer.json", "rb");
    if (!text || !in || fread(text, 1, 8 * MB - 1, in) == 0 || !(at = strstr(text, from)) || !mkdtemp(nfc_dir)) return -1;
    fclose(in);
    snprintf(path, sizeof path, "%s/tokenizer.json", nfc_dir);
    FILE *out = fopen(path, "wb");
    if (!out || fprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + sizeof from - 1) < 0 || fclose(out) != 0) return -1;
    free(text);
    return 0;
}

static int remove_nfc_model(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/tokenizer.json", nfc_dir);
    unlink(path);
    return rmdir(nfc_dir);
}

/* The line makes a request or is refused with `code`; it takes at most `most` bytes of heap a byte of the line beside itself. */
static void costs(const char *what, const char *piece, size_t n_bytes, int32_t context, fl_row_error code, double most)
{
    engine_info info = { .name = "m", .n_vocab = 1024, .context_model = context, .context_max = context, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .has_tokenizer = true };
    job_settings job = { .job = 1 };
    row_maker *maker = NULL;
    row_request request = { 0 };
    row_refusal refusal = { 0 };
    fl_err err = { 0 };
    size_t n;
    char *line = make_line(piece, n_bytes, &n);
    if (row_maker_open(&maker, nfc_dir, &info, &err) != FL_OK) fail_msg("%s", err.text);
    clock_t start = clock();
    heap_watch_begin();
    fl_status st = row_request_make(maker, &job, line, n, 1, &request, &refusal, &err);
    double ratio = (double)heap_watch_peak() / (double)n;
    print_message("%s, %zu MB in a context of %d: %.1f bytes of memory a byte, %.1f s, %s\n", what, n / MB, context, ratio, (double)(clock() - start) / CLOCKS_PER_SEC,
                  st == FL_OK ? "accepted" : refusal.text);
    if (st != FL_OK && st != FL_INVALID) fail_msg("%s", err.text);
    assert_int_equal(st == FL_OK ? ROW_OK : refusal.code, code);
    if (ratio > most) fail_msg("%s takes %.1f bytes of memory a byte, above %.1f", what, ratio, most);
    row_request_free(&request);
    row_maker_close(maker);
    free(line);
}

static void a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(void **state)
{
    (void)state;
    costs("one word of letters", NULL, 64 * MB, 2048, ROW_CONTEXT_OVERFLOW, 4);
    costs("one word of letters", NULL, 64 * MB, 262144, ROW_CONTEXT_OVERFLOW, 4);
    costs("one letter", "a", 64 * MB, 262144, ROW_CONTEXT_OVERFLOW, 4);
    costs("one sign", "=", 64 * MB, 262144, ROW_CONTEXT_OVERFLOW, 4);
    costs("short words", "the ", 64 * MB, 2048, ROW_CONTEXT_OVERFLOW, 8);
    costs("letters to be composed", "e\xcc\x81", 64 * MB, 2048, ROW_CONTEXT_OVERFLOW, 12);
    costs("added tokens", "<|im_start|>", 64 * MB, 2048, ROW_CONTEXT_OVERFLOW, 8);
}

static void what_fits_costs_a_multiple_of_its_bytes(void **state)
{
    (void)state;
    int32_t all = 1 << 30;
    costs("one word of letters", NULL, 4 * MB, all, ROW_OK, 40);
    costs("one letter", "a", 4 * MB, all, ROW_OK, 40);
    costs("short words", "the ", 4 * MB, all, ROW_OK, 40);
    costs("words of a letter", "a\\n", 4 * MB, all, ROW_OK, 40);
    costs("letters to be composed", "e\xcc\x81 ", 4 * MB, all, ROW_OK, 40);
    costs("a letter and its marks", "\xcc\x81", 4 * MB, all, ROW_OK, 60);
    costs("added tokens", "<|im_start|>", 4 * MB, all, ROW_OK, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized),
        cmocka_unit_test(what_fits_costs_a_multiple_of_its_bytes),
    };
    return cmocka_run_group_tests_name("hostile rows", tests, make_nfc_model, remove_nfc_model);
}
