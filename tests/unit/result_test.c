#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "proto/result.h"
#include "proto/token_block.h"

enum { N_VOCAB = 1000, N_PROMPT = 4, N_IDS = 3, N_TOP = 2 };

static int32_t ids[] = { 5, 999, 0 };
static float logprobs[] = { -0.5f, 0.0f, -9999.0f };
static int32_t top_ids[] = { 5, 6, 999, 1, 0, -1 };
static float top_logprobs[] = { -0.5f, -1.0f, 0.0f, -3.0f, -2.0f, -9999.0f };
static int32_t prompt_ids[] = { 1, 2, 3, 4 };
static float prompt_logprobs[] = { -1.0f, -2.0f, -3.0f };
static int32_t prompt_top_ids[] = { 2, 3, 4 };
static float prompt_top_logprobs[] = { -1.0f, -2.0f, -3.0f };

static fl_result a_full_result(void)
{
    return (fl_result){ .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_STRING, .stop_index = 2, .n_prompt = N_PROMPT, .ids = ids, .n_ids = N_IDS,
        .text_bytes = 17, .n_top = N_TOP, .logprobs = logprobs, .top_ids = top_ids, .top_logprobs = top_logprobs, .prompt_ids = prompt_ids,
        .n_prompt_top = 1, .prompt_logprobs = prompt_logprobs, .prompt_top_ids = prompt_top_ids, .prompt_top_logprobs = prompt_top_logprobs };
}

static fl_result a_plain_result(void)
{
    return (fl_result){ .finish = FL_FINISH_LENGTH, .stop_kind = FL_STOP_NONE, .stop_index = -1, .n_prompt = N_PROMPT, .ids = ids, .n_ids = N_IDS,
        .text_bytes = -1, .n_top = -1, .n_prompt_top = -1 };
}

#define ASSERT_ARRAY(got, sent, n) do { \
        if (!(sent) || (n) == 0) assert_null(got); \
        else assert_memory_equal(got, sent, (n) * sizeof *(sent)); \
    } while (0)

static void assert_comes_back(const fl_result *sent)
{
    uint8_t *body, *again;
    size_t n_bytes, n_again;
    fl_err err = { .text = "" };
    fl_result got;
    size_t n_scores = sent->n_prompt > 0 ? (size_t)sent->n_prompt - 1 : 0;
    size_t n_top = sent->n_top > 0 ? (size_t)sent->n_top : 0, n_prompt_top = sent->n_prompt_top > 0 ? (size_t)sent->n_prompt_top : 0;
    if (fl_result_encode(sent, &body, &n_bytes, &err) != FL_OK) fail_msg("%s", err.text);
    if (fl_result_decode(&got, body, n_bytes, N_VOCAB, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(got.finish, sent->finish);
    assert_int_equal(got.stop_kind, sent->stop_kind);
    assert_int_equal(got.stop_index, sent->stop_index);
    assert_int_equal(got.n_prompt, sent->n_prompt);
    assert_int_equal(got.n_ids, sent->n_ids);
    assert_int_equal(got.text_bytes, sent->text_bytes);
    assert_int_equal(got.n_top, sent->n_top);
    assert_int_equal(got.n_prompt_top, sent->n_prompt_top);
    ASSERT_ARRAY(got.ids, sent->ids, sent->n_ids);
    ASSERT_ARRAY(got.logprobs, sent->logprobs, sent->n_ids);
    ASSERT_ARRAY(got.top_ids, sent->top_ids, sent->n_ids * n_top);
    ASSERT_ARRAY(got.top_logprobs, sent->top_logprobs, sent->n_ids * n_top);
    ASSERT_ARRAY(got.prompt_ids, sent->prompt_ids, (size_t)sent->n_prompt);
    ASSERT_ARRAY(got.prompt_logprobs, sent->prompt_logprobs, n_scores);
    ASSERT_ARRAY(got.prompt_top_ids, sent->prompt_top_ids, n_scores * n_prompt_top);
    ASSERT_ARRAY(got.prompt_top_logprobs, sent->prompt_top_logprobs, n_scores * n_prompt_top);
    assert_int_equal(fl_result_encode(&got, &again, &n_again, &err), FL_OK);
    assert_int_equal(n_again, n_bytes);
    assert_memory_equal(again, body, n_bytes);
    fl_result_free(&got);
    fl_result_free(&got);                                /* twice is harmless */
    free(body);
    free(again);
}

static void results_of_every_shape_come_back(void **state)
{
    (void)state;
    fl_result r = a_full_result();
    assert_comes_back(&r);
    r = a_plain_result();
    assert_comes_back(&r);
    r.ids = NULL;                                        /* max_tokens 0 with echo */
    r.n_ids = 0;
    r.prompt_ids = prompt_ids;
    assert_comes_back(&r);
    r.n_top = r.n_prompt_top = 0;
    r.prompt_logprobs = prompt_logprobs;
    assert_comes_back(&r);
    r = a_plain_result();
    r.n_top = 0;
    r.logprobs = logprobs;
    r.text_bytes = 0;
    assert_comes_back(&r);
    r = (fl_result){ .stop_index = -1, .text_bytes = -1, .n_top = 20, .n_prompt_top = 20, .n_prompt = 1, .prompt_ids = prompt_ids };
    assert_comes_back(&r);
    r = (fl_result){ .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_EOS, .stop_index = 0, .ids = ids, .n_ids = 1, .n_top = -1, .n_prompt_top = -1,
                     .text_bytes = INT64_MAX - 1 };
    assert_comes_back(&r);
}

static void a_plain_result_is_small(void **state)
{
    (void)state;
    fl_result r = a_plain_result();
    uint8_t *body;
    size_t n_bytes;
    assert_int_equal(fl_result_encode(&r, &body, &n_bytes, NULL), FL_OK);
    assert_memory_equal(body, "\x83\x00\x01\x04\x04\x05\x03TTB1", 11);
    assert_int_equal(n_bytes, 7 + FL_BLOCK_HEADER_BYTES + 4);
    free(body);
}

static void results_that_break_a_rule_are_not_encoded(void **state)
{
    (void)state;
    uint8_t *body;
    size_t n_bytes;
    fl_err err;
    float nan_logprobs[] = { -0.5f, NAN, -1.0f }, low_logprobs[] = { -0.5f, -1e5f, -1.0f };
    int32_t bad_ids[] = { 5, -1, 0 };
#define REFUSED(change) do { fl_result r = a_full_result(); change; \
        assert_int_equal(fl_result_encode(&r, &body, &n_bytes, &err), FL_INVALID); } while (0)
    REFUSED(r.finish = FL_FINISH_LENGTH);
    REFUSED(r.stop_kind = FL_STOP_NONE);
    REFUSED(r.stop_kind = (fl_stop_kind)4);
    REFUSED(r.stop_index = -1);
    REFUSED(r.stop_index = 16);
    REFUSED(r.n_prompt = -1);
    REFUSED(r.n_prompt = FL_RESULT_TOKENS_MAX + 1);
    REFUSED(r.n_ids = (size_t)FL_RESULT_TOKENS_MAX + 1);
    REFUSED(r.text_bytes = -2);
    REFUSED(r.text_bytes = INT64_MAX);
    REFUSED(r.n_top = 21);
    REFUSED(r.n_top = -2);
    REFUSED(r.ids = NULL);
    REFUSED(r.logprobs = NULL);
    REFUSED(r.top_ids = NULL);
    REFUSED(r.prompt_top_logprobs = NULL);
    REFUSED(r.logprobs = nan_logprobs);
    assert_non_null(strstr(err.text, "logprobs[1]"));
    REFUSED(r.logprobs = low_logprobs);
    REFUSED(r.ids = bad_ids);
    assert_non_null(strstr(err.text, "ids[1] is -1"));
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    fl_result r = a_full_result(), got = { .n_prompt = 77 };
    uint8_t *body;
    size_t n_bytes;
    fl_err err;
    assert_int_equal(fl_result_encode(&r, &body, &n_bytes, NULL), FL_OK);
    assert_int_equal(fl_result_decode(&got, body, n_bytes, 999, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "999"));
    assert_int_equal(got.n_prompt, 77);
    free(body);
    r = a_plain_result();
    r.finish = FL_FINISH_STOP;
    r.stop_kind = FL_STOP_ID;
    r.stop_index = 1000;
    assert_int_equal(fl_result_encode(&r, &body, &n_bytes, NULL), FL_OK);
    assert_int_equal(fl_result_decode(&got, body, n_bytes, N_VOCAB, &err), FL_CORRUPT);
    assert_int_equal(fl_result_decode(&got, body, n_bytes, N_VOCAB + 1, &err), FL_OK);
    fl_result_free(&got);
    free(body);
}

static void every_cut_and_every_flipped_bit_is_refused_or_harmless(void **state)
{
    (void)state;
    fl_result r = a_full_result(), got;
    uint8_t *body;
    size_t n_bytes;
    assert_int_equal(fl_result_encode(&r, &body, &n_bytes, NULL), FL_OK);
    for (size_t cut = 0; cut < n_bytes; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact + 1, body, cut);
        assert_int_equal(fl_result_decode(&got, exact + 1, cut, N_VOCAB, NULL), FL_CORRUPT);
        assert_int_equal(fl_result_check(exact + 1, cut, N_VOCAB, NULL), FL_CORRUPT);
        free(exact);
    }
    body = realloc(body, n_bytes + 1);
    body[n_bytes] = 0;
    assert_int_equal(fl_result_decode(&got, body, n_bytes + 1, N_VOCAB, NULL), FL_CORRUPT);
    size_t n_header = (size_t)((uint8_t *)memchr(body, 'T', n_bytes) - body);
    for (size_t i = 0; i < n_bytes * 8; i++) {
        body[i / 8] ^= (uint8_t)(1 << i % 8);
        fl_status st = fl_result_decode(&got, body, n_bytes, N_VOCAB, NULL);
        assert_int_equal(fl_result_check(body, n_bytes, N_VOCAB, NULL), st);
        if (i / 8 >= n_header) assert_int_equal(st, FL_CORRUPT);
        if (st == FL_OK) fl_result_free(&got);           /* text_bytes or a stop index: frames carry the checksum of the header */
        else assert_int_equal(st, FL_CORRUPT);
        body[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    free(body);
}

static void headers_in_another_form_are_refused(void **state)
{
    (void)state;
    fl_result r = a_plain_result(), got;
    uint8_t *body, changed[64];
    size_t n_bytes;
    assert_int_equal(fl_result_encode(&r, &body, &n_bytes, NULL), FL_OK);
    static const struct { const char *header; size_t n; } headers[] = {
        { "\x83\x00\x02\x04\x04\x05\x03", 7 },           /* version 2 */
        { "\x82\x04\x04\x05\x03", 5 },                   /* no version */
        { "\x83\x00\x01\x05\x03\x04\x04", 7 },           /* keys not ascending */
        { "\x84\x00\x01\x04\x04\x05\x03\x05\x03", 9 },   /* a key twice */
        { "\x84\x00\x01\x01\x00\x04\x04\x05\x03", 9 },   /* a zero spelled out */
        { "\x84\x00\x01\x04\x04\x05\x03\x0a\x01", 9 },   /* a key not known */
        { "\x83\x00\x01\x04\x04\x05\x02", 7 },           /* fewer ids than the block */
        { "\x83\x00\x01\x04\x04\x05\xce\x00\xff\xff\xff", 11 },   /* more */
        { "\x83\x00\x01\x04\x04\x05\xff", 7 },           /* a negative count */
        { "\x83\x00\x01\x04\xa1""4\x05\x03", 8 },        /* a str */
        { "\x84\x00\x01\x05\x03\x09\x01", 7 },           /* four pairs announced */
        { "\x83\x00\x01\x05\x03\x09\x01", 7 },           /* ids of an empty prompt */
        { "\x93\x00\x01\x04", 4 },
        { "\x80", 1 },
    };
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        memcpy(changed, headers[i].header, headers[i].n);
        memcpy(changed + headers[i].n, body + 7, n_bytes - 7);
        assert_int_equal(fl_result_decode(&got, changed, headers[i].n + n_bytes - 7, N_VOCAB, NULL), FL_CORRUPT);
    }
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_of_every_shape_come_back),
        cmocka_unit_test(a_plain_result_is_small),
        cmocka_unit_test(results_that_break_a_rule_are_not_encoded),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused_or_harmless),
        cmocka_unit_test(headers_in_another_form_are_refused),
    };
    return cmocka_run_group_tests_name("result", tests, NULL, NULL);
}
