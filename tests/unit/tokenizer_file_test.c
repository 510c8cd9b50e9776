/* Foreign tokenizer files: what is refused, with which sentence, and that nothing of a file is trusted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/pattern.h"
#include "engine/tokenizer.h"

static fl_status open_text(tokenizer **out, const char *text, fl_err *err)
{
    char path[] = "/tmp/tokenizer_file_test.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    fl_status st = tokenizer_open(out, path, err);
    unlink(path);
    return st;
}

#define HEAD "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\",[\"ab\",\"c\"]]}"

static void refused(fl_status want, const char *part, const char *text)
{
    tokenizer *t = NULL;
    fl_err err = { 0 };
    fl_status st = open_text(&t, text, &err);
    if (st != want || !strstr(err.text, part)) fail_msg("%s\ngave %s \"%s\" instead of %s \"%s\"", text, fl_status_name(st), err.text, fl_status_name(want), part);
    assert_null(t);
}

static void unknown_parts_are_named(void **state)
{
    (void)state;
    refused(FL_UNSUPPORTED, "normalizer Nmt", "{\"normalizer\":{\"type\":\"Nmt\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "Replace of an empty string", "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"a\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "pre-tokenizer Whitespace", "{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "without a decoder", "{" MODEL "}");
    refused(FL_UNSUPPORTED, "prepend_scheme", "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "behind a normalizer that removes", "{\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
            "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"},\"decoder\":{\"type\":\"Fuse\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "behind ByteLevel", "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}," MODEL "}");
    refused(FL_UNSUPPORTED, "not ByteLevel alone", "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"Fuse\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "decoder WordPiece", "{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "decoder Replace is not served at its place", "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}]}," MODEL "}");
    refused(FL_UNSUPPORTED, "stop 0", "{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}," MODEL "}");
    refused(FL_UNSUPPORTED, "post-processor RobertaProcessing", HEAD "\"post_processor\":{\"type\":\"RobertaProcessing\"}," MODEL "}");
    refused(FL_UNSUPPORTED, "type Unigram", HEAD "\"model\":{\"type\":\"Unigram\"," VOCAB ",\"merges\":[]}}");
    refused(FL_UNSUPPORTED, "end_of_word_suffix", HEAD "\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]}}");
    refused(FL_UNSUPPORTED, "dropout", HEAD "\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB ",\"merges\":[]}}");
    refused(FL_UNSUPPORTED, "byte_fallback", HEAD "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true," VOCAB ",\"merges\":[]}}");
    refused(FL_UNSUPPORTED, "unk_token", HEAD "\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\"," VOCAB ",\"merges\":[]}}");
    refused(FL_UNSUPPORTED, "behavior \"Sideways\"", "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}," MODEL "}");
}

static void damaged_files_are_corrupt(void **state)
{
    (void)state;
    refused(FL_CORRUPT, "not JSON", "");
    refused(FL_CORRUPT, "not JSON", HEAD MODEL);
    refused(FL_CORRUPT, "not JSON", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}");
    refused(FL_CORRUPT, "no `model`", "{}");
    refused(FL_CORRUPT, "no `model`", "[]");
    refused(FL_CORRUPT, "vocab is not an object", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}");
    refused(FL_CORRUPT, "0 tokens", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}");
    refused(FL_CORRUPT, "merges is not an array", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB "}}");
    refused(FL_CORRUPT, "same id 1", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}");
    refused(FL_CORRUPT, "the id of token \"b\"", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":-1},\"merges\":[]}}");
    refused(FL_CORRUPT, "the id of token \"b\"", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":4194304},\"merges\":[]}}");
    refused(FL_CORRUPT, "the id of token \"b\"", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":\"1\"},\"merges\":[]}}");
    refused(FL_CORRUPT, "the largest id is 4194303 in a vocabulary of 2 tokens", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":4194303},\"merges\":[]}}");
    refused(FL_CORRUPT, "merge 0 names \"zz\"", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a zz\"]}}");
    refused(FL_CORRUPT, "merge 0 names \"ba\"", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b a\"]}}");
    refused(FL_CORRUPT, "merge 0 is not two tokens", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b c\"]}}");
    refused(FL_CORRUPT, "merge 1 is not two tokens", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\",[\"a\"]]}}");
    refused(FL_CORRUPT, "merge 0 is not two tokens", HEAD "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[7]}}");
    refused(FL_CORRUPT, "is not one character", "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL "}");
    refused(FL_CORRUPT, "is no token of the vocabulary", "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," VOCAB ",\"merges\":[]}}");
    refused(FL_CORRUPT, "Replace.content is not a string", "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}," MODEL "}");
    refused(FL_CORRUPT, "merge 0 has an empty part", HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\":0,\"a\":1},\"merges\":[[\"a\",\"\"]]}}");
    refused(FL_CORRUPT, "added_tokens is not an array", HEAD "\"added_tokens\":{\"a\":1}," MODEL "}");
    refused(FL_CORRUPT, "added token 0 has no content", HEAD "\"added_tokens\":[3]," MODEL "}");
    refused(FL_CORRUPT, "neither pattern.Regex", "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}," MODEL "}");
    refused(FL_CORRUPT, "has no ids", HEAD "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]}," MODEL "}");
    refused(FL_CORRUPT, "outside the vocabulary of 5", HEAD "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
            "\"special_tokens\":{\"x\":{\"ids\":[5]}}}," MODEL "}");
}

static void missing_file_is_not_found(void **state)
{
    (void)state;
    tokenizer *t = NULL;
    fl_err err = { 0 };
    assert_int_equal(tokenizer_open(&t, "/nowhere/tokenizer.json", &err), FL_NOT_FOUND);
    assert_int_equal(tokenizer_open(&t, "/tmp", &err), FL_CORRUPT);
    assert_null(t);
}

static void encode_is(const tokenizer *t, const char *text, size_t n_want, const int32_t *want)
{
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), true, &ids, &n, NULL), FL_OK);
    assert_non_null(ids);
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], want[i]);
    free(ids);
}

static void small_vocabulary_works_and_unknown_bytes_are_dropped(void **state)
{
    (void)state;
    tokenizer *t = NULL;
    fl_err err = { 0 };
    if (open_text(&t, HEAD "\"added_tokens\":[{\"id\":77,\"content\":\"<x>\",\"special\":true}]," MODEL "}", &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_vocab(t), 6);             /* numbered on from the vocabulary, as the reference does */
    encode_is(t, "", 0, NULL);
    encode_is(t, "zzz", 0, NULL);
    encode_is(t, "abc", 1, (const int32_t[]){ 4 });
    encode_is(t, "abz<x>cab", 4, (const int32_t[]){ 3, 5, 2, 3 });
    tokenizer_close(t);
}

static void invalid_utf8_is_refused(void **state)
{
    (void)state;
    tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(open_text(&t, HEAD MODEL "}", NULL), FL_OK);
    assert_int_equal(tokenizer_encode(t, "a\xFF", 2, false, &ids, &n, NULL), FL_INVALID);
    assert_int_equal(tokenizer_encode(t, "\xE2\x82", 2, false, &ids, &n, NULL), FL_INVALID);
    assert_null(ids);
    tokenizer_close(t);
}

/* A word of a megabyte: the heap merges it as the array would, and in a moment. */
static void words_without_end_are_merged_alike(void **state)
{
    (void)state;
    enum { N = 300000 };
    tokenizer *t = NULL;
    char *text = malloc(N + 1);
    int32_t *ids = NULL, *small = NULL;
    size_t n = 0, n_small = 0;
    for (int i = 0; i < N; i++) text[i] = "abcab"[i % 5];
    assert_int_equal(open_text(&t, HEAD MODEL "}", NULL), FL_OK);
    assert_int_equal(tokenizer_encode(t, text, N, false, &ids, &n, NULL), FL_OK);
    assert_int_equal(tokenizer_encode(t, text, 5, false, &small, &n_small, NULL), FL_OK);
    assert_int_equal(n_small, 2);
    assert_int_equal(n, N / 5 * 2);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], small[i % 2]);
    free(ids);
    free(small);
    free(text);
    tokenizer_close(t);
}

static void unknown_constructs_of_patterns_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a(?<n>b)", "^a", "a$", "\\bword", "(a)\\1", "[[:alpha:]]", "\\p{Foo}", "\\pL", "(", ")", "a)", "[a", "[", "[]a]", "[z-a]", "\\", "\\xZ", "\\xE9", "a{2000}", "a{3,2}", "*a", "a**",
        "(?i:\xC3\xA9)", "(?i:strasse)", "(?=a)*", "(?#c)a", "\\R", "a{3}?", "b(?i)c", "[a-\\d]", "\\x{110000}", "\\ud800", "(?<=a+)b", "[[a]", "\\p{L", "(?i",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pattern *p = NULL;
        fl_err err = { 0 };
        if (pattern_compile(&p, bad[i], strlen(bad[i]), &err) != FL_UNSUPPORTED) fail_msg("\"%s\" was not refused", bad[i]);
        assert_null(p);
        assert_non_null(strstr(err.text, "tokenizer: the "));
    }
    char deep[400];
    memset(deep, '(', 399);
    deep[399] = '\0';
    pattern *p = NULL;
    assert_int_equal(pattern_compile(&p, deep, 399, NULL), FL_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_parts_are_named),
        cmocka_unit_test(damaged_files_are_corrupt),
        cmocka_unit_test(missing_file_is_not_found),
        cmocka_unit_test(small_vocabulary_works_and_unknown_bytes_are_dropped),
        cmocka_unit_test(invalid_utf8_is_refused),
        cmocka_unit_test(words_without_end_are_merged_alike),
        cmocka_unit_test(unknown_constructs_of_patterns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
