/* What a line of a job file means: every rule of job_row.h and the code and byte of every fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "proto/job_row.h"
#include "proto/json_scan.h"

static fl_row parsed(const char *line, const char *defaults)
{
    fl_row row;
    fl_row_fault fault;
    if (fl_row_parse(&row, line, strlen(line), 7, defaults, &fault) != ROW_OK) fail_msg("%s\n%s", line, fault.text);
    return row;
}

static void refuse_bytes(const char *line, size_t n, fl_row_error code, size_t offset, const char *says)
{
    fl_row row;
    fl_row_fault fault;
    char *exact = malloc(n ? n : 1);                     /* the address sanitizer sees a read past the end */
    memcpy(exact, line, n);
    fl_row_error got = fl_row_parse(&row, exact, n, 1, NULL, &fault);
    free(exact);
    if (got != code || fault.code != code || fault.offset != offset || !strstr(fault.text, says))
        fail_msg("%.200s\n  wanted code %d at %zu: %s\n  got    code %d at %zu: %s", line, code, offset, says, got, fault.offset, fault.text);
    assert_true(fl_utf8_fault(fault.text, strlen(fault.text)) == strlen(fault.text));
    fl_row_free(&row);
}

typedef struct { const char *line; fl_row_error code; size_t offset; const char *says; } hostile;

static void refuse_all(const hostile *lines, size_t n)
{
    for (size_t i = 0; i < n; i++) refuse_bytes(lines[i].line, strlen(lines[i].line), lines[i].code, lines[i].offset, lines[i].says);
}
#define REFUSE_ALL(lines) refuse_all(lines, sizeof lines / sizeof *lines)

static void malformed_json_is_refused_at_its_byte(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { "{", ROW_INVALID_JSON, 1, "ends early" },
        { "{\"prompt\":\"a\"", ROW_INVALID_JSON, 13, "ends early" },
        { "{\"prompt\":\"a", ROW_INVALID_JSON, 10, "string without an end" },
        { "{\"prompt\":\"a\\", ROW_INVALID_JSON, 12, "backslash" },
        { "{\"prompt\":\"a\"}}", ROW_INVALID_JSON, 14, "its end" },
        { "{\"prompt\":\"a\"} {\"prompt\":\"b\"}", ROW_INVALID_JSON, 15, "its end" },
        { "{\"prompt\":\"a\",}", ROW_INVALID_JSON, 14, "key in double quotes" },
        { "{'prompt':\"a\"}", ROW_INVALID_JSON, 1, "key in double quotes" },
        { "{prompt:\"a\"}", ROW_INVALID_JSON, 1, "key" },
        { "{\"prompt\" \"a\"}", ROW_INVALID_JSON, 10, "':'" },
        { "{\"prompt\":[1,2,]}", ROW_INVALID_JSON, 15, "a value" },
        { "{\"prompt\":[1 2]}", ROW_INVALID_JSON, 13, "',' or ']'" },
        { "{\"prompt\":[1}", ROW_INVALID_JSON, 12, "',' or ']'" },
        { "{\"prompt\":\"a\" \"n\":1}", ROW_INVALID_JSON, 14, "',' or '}'" },
        { "{\"n\":01,\"prompt\":\"a\"}", ROW_INVALID_JSON, 5, "leading zero" },
        { "{\"n\":-,\"prompt\":\"a\"}", ROW_INVALID_JSON, 6, "digit" },
        { "{\"n\":+1,\"prompt\":\"a\"}", ROW_INVALID_JSON, 5, "a value" },
        { "{\"top_p\":.5,\"prompt\":\"a\"}", ROW_INVALID_JSON, 9, "a value" },
        { "{\"top_p\":1.,\"prompt\":\"a\"}", ROW_INVALID_JSON, 11, "after the point" },
        { "{\"top_p\":1e,\"prompt\":\"a\"}", ROW_INVALID_JSON, 11, "exponent" },
        { "{\"top_p\":0x1,\"prompt\":\"a\"}", ROW_INVALID_JSON, 10, "',' or '}'" },
        { "{\"temperature\":NaN,\"prompt\":\"a\"}", ROW_INVALID_JSON, 15, "a value" },
        { "{\"temperature\":Infinity,\"prompt\":\"a\"}", ROW_INVALID_JSON, 15, "a value" },
        { "{\"echo\":True,\"prompt\":\"a\"}", ROW_INVALID_JSON, 8, "a value" },
        { "{\"echo\":tru", ROW_INVALID_JSON, 8, "a value" },
        { "{\"prompt\":\"a\\x\"}", ROW_INVALID_JSON, 12, "backslash" },
        { "{\"prompt\":\"\\u12g4\"}", ROW_INVALID_JSON, 11, "four hex digits" },
        { "{\"prompt\":\"\\u12", ROW_INVALID_JSON, 11, "four hex digits" },
        { "{\"prompt\":\"x\\ud83d\"}", ROW_INVALID_JSON, 12, "\\ud83d, half of a surrogate pair" },
        { "{\"prompt\":\"\\ude00\"}", ROW_INVALID_JSON, 11, "half of a surrogate pair" },
        { "{\"prompt\":\"\\ud83d\\ud83d\"}", ROW_INVALID_JSON, 11, "half of a surrogate pair" },
        { "{\"prompt\":\"\\ud83d\\n\"}", ROW_INVALID_JSON, 11, "half of a surrogate pair" },
        { "{\"prompt\":\"a\tb\"}", ROW_INVALID_JSON, 12, "\\u0009" },
        { "{\"prompt\":\"a\nb\"}", ROW_INVALID_JSON, 12, "\\u000a" },
        { "\"prompt", ROW_INVALID_JSON, 0, "string without an end" },
        { "prompt", ROW_INVALID_JSON, 0, "a value" },
        { "# comment", ROW_INVALID_JSON, 0, "a value" },
        { "{\"a\":/* c */1}", ROW_INVALID_JSON, 5, "a value" },
        { "\xEF\xBB\xBF{\"prompt\":\"a\"}", ROW_INVALID_JSON, 0, "byte 0xEF" },
        { "", ROW_INVALID_JSON, 0, "ends early" },
        { "{\"prompt\":\"a\",\"prompt\":\"b\"}", ROW_INVALID_JSON, 14, "the key \"prompt\" twice" },
        { "{\"prompt\":\"a\",\"pr\\u006fmpt\":\"b\"}", ROW_INVALID_JSON, 14, "twice" },
        { "{\"prompt\":\"a\",\"metadata\":{\"k\":[{\"x\":1,\"y\":2,\"x\":3}]}}", ROW_INVALID_JSON, 44, "\"x\" twice" },
    };
    REFUSE_ALL(lines);
}

static void invalid_utf8_is_found_before_invalid_json(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { "{\"prompt\":\"\xFF\"}", ROW_INVALID_UTF8, 11, "0xFF" },
        { "{\"prompt\":\"\x80\"}", ROW_INVALID_UTF8, 11, "0x80" },
        { "{\"prompt\":\"\xC3\"}", ROW_INVALID_UTF8, 11, "0xC3" },
        { "{\"prompt\":\"\xC0\x80\"}", ROW_INVALID_UTF8, 11, "0xC0" },
        { "{\"prompt\":\"\xED\xA0\x80\"}", ROW_INVALID_UTF8, 11, "0xED" },
        { "{\"prompt\":\"\xF4\x90\x80\x80\"}", ROW_INVALID_UTF8, 11, "0xF4" },
        { "{\"prompt\":\"\xE2\x82", ROW_INVALID_UTF8, 11, "0xE2" },
        { "{\"prompt\":\"\xF0\x80\x80\x80\"}", ROW_INVALID_UTF8, 11, "0xF0" },
        { "{{{{ nothing here is JSON \xFE", ROW_INVALID_UTF8, 26, "0xFE" },
        { "\xFF\xFE{\0", ROW_INVALID_UTF8, 0, "0xFF" },
    };
    REFUSE_ALL(lines);
}

static void raw_nul_bytes_are_invalid_json(void **state)
{
    (void)state;
    refuse_bytes("{\"prompt\":\"a\0b\"}", 16, ROW_INVALID_JSON, 12, "0x00");
    refuse_bytes("\0\0\0\0", 4, ROW_INVALID_JSON, 0, "0x00");
    refuse_bytes("{\"prompt\":\"a\"}\0", 15, ROW_INVALID_JSON, 14, "0x00");
}

static void deep_nesting_is_refused_and_the_limit_itself_is_not(void **state)
{
    (void)state;
    char line[2 * FL_JSON_DEPTH_MAX + 64];
    for (int over = 0; over < 2; over++) {
        int n = FL_JSON_DEPTH_MAX - 1 + over;            /* the line's object is a level too */
        size_t used = (size_t)sprintf(line, "{\"prompt\":\"a\",\"user\":");
        size_t first = used;
        for (int i = 0; i < n; i++) line[used++] = '[';
        for (int i = 0; i < n; i++) line[used++] = ']';
        line[used++] = '}';
        line[used] = '\0';
        if (over) { refuse_bytes(line, used, ROW_INVALID_JSON, first + (size_t)n - 1, "nested more than 128"); continue; }
        fl_row row = parsed(line, NULL);
        fl_row_free(&row);
    }
}

static void what_is_json_but_no_request_is_refused(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { "[]", ROW_INVALID_REQUEST, 0, "must be a JSON object" },
        { " \"prompt\"", ROW_INVALID_REQUEST, 1, "must be a JSON object" },
        { "null", ROW_INVALID_REQUEST, 0, "must be a JSON object" },
        { "{}", ROW_INVALID_REQUEST, 0, "neither prompt nor messages" },
        { "{\"prompt\":null}", ROW_INVALID_REQUEST, 0, "neither prompt nor messages" },
        { "{\"prompt\":\"a\",\"messages\":[]}", ROW_INVALID_REQUEST, 25, "both prompt and messages" },
        { "{\"prompt\":1}", ROW_INVALID_REQUEST, 10, "a string or a list of token ids, not 1" },
        { "{\"prompt\":{}}", ROW_INVALID_REQUEST, 10, "a string or a list" },
        { "{\"prompt\":[]}", ROW_INVALID_REQUEST, 10, "at least one token id" },
        { "{\"prompt\":[1,-1]}", ROW_INVALID_REQUEST, 13, "prompt[1] must be a token id from 0 to 2147483647, not -1" },
        { "{\"prompt\":[2147483648]}", ROW_INVALID_REQUEST, 11, "prompt[0]" },
        { "{\"prompt\":[7,1.0]}", ROW_INVALID_REQUEST, 13, "prompt[1] must be a token id from 0 to 2147483647, not 1.0" },
        { "{\"prompt\":[7,\"1,2,3\"]}", ROW_UNSUPPORTED_FIELD, 13, "prompt[1] must be an integer" },
        { "{\"prompt\":[7,true,8]}", ROW_INVALID_REQUEST, 13, "prompt[1]" },
        { "{\"prompt\":[1.0]}", ROW_INVALID_REQUEST, 11, "not 1.0" },
        { "{\"prompt\":[null]}", ROW_INVALID_REQUEST, 11, "not null" },
        { "{\"prompt\":[1,2,99999999999999999999999]}", ROW_INVALID_REQUEST, 15, "prompt[2]" },
        { "{\"prompt\":[\"a\",\"b\"]}", ROW_UNSUPPORTED_FIELD, 11, "one text or one list of token ids a line" },
        { "{\"prompt\":[[1,2],[3]]}", ROW_UNSUPPORTED_FIELD, 11, "one list" },
    };
    REFUSE_ALL(lines);
}

#define CHAT(content) "{\"messages\":[{\"role\":\"user\",\"content\":" content "}]}"

static void bad_messages_are_refused(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { "{\"messages\":[]}", ROW_INVALID_REQUEST, 12, "at least one message" },
        { "{\"messages\":\"hi\"}", ROW_INVALID_REQUEST, 12, "a list of messages" },
        { "{\"messages\":[\"hi\"]}", ROW_INVALID_REQUEST, 13, "messages[0] must be an object" },
        { "{\"messages\":[{}]}", ROW_INVALID_REQUEST, 13, "messages[0].role" },
        { "{\"messages\":[{\"role\":\"\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 13, "messages[0].role" },
        { "{\"messages\":[{\"role\":5,\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 13, "messages[0].role" },
        { "{\"messages\":[{\"role\":\"user\"}]}", ROW_INVALID_REQUEST, 13, "messages[0].content is missing" },
        { CHAT("null"), ROW_INVALID_REQUEST, 13, "content is missing" },
        { CHAT("5"), ROW_INVALID_REQUEST, 38, "a string or a list of text parts, not 5" },
        { CHAT("[]"), ROW_INVALID_REQUEST, 38, "at least one part" },
        { CHAT("[\"a\"]"), ROW_INVALID_REQUEST, 39, "content[0] must be an object" },
        { CHAT("[{\"text\":\"a\"}]"), ROW_INVALID_REQUEST, 39, "content[0].type" },
        { CHAT("[{\"type\":\"text\"}]"), ROW_INVALID_REQUEST, 39, "content[0].text" },
        { CHAT("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{}}]"), ROW_UNSUPPORTED_FIELD, 74, "content[1].type must be text, not \"image_url\"" },
        { CHAT("[{\"type\":\"input_audio\"}]"), ROW_UNSUPPORTED_FIELD, 47, "input_audio" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", ROW_INVALID_REQUEST, 46, "tool_calls must be a list" },
        { "{\"tools\":{},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 9, "tools must be a list" },
        { "{\"tool_choice\":\"required\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_UNSUPPORTED_FIELD, 15, "tool_choice" },
        { "{\"chat_template_kwargs\":[],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 24, "an object" },
        { "{\"add_generation_prompt\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 25, "true or false" },
        { "{\"echo\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_UNSUPPORTED_FIELD, 8, "echo" },
        { "{\"logprobs\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 12, "logprobs must be true or false, not 3" },
        { "{\"top_logprobs\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 16, "needs logprobs: true" },
        { "{\"logprobs\":true,\"top_logprobs\":21,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", ROW_INVALID_REQUEST, 32, "from 0 to 20, not 21" },
    };
    REFUSE_ALL(lines);
}

#define WITH(field) "{\"prompt\":\"a\"," field "}"      /* the field starts at byte 14 */

static void fields_out_of_range_are_refused(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { WITH("\"temperature\":-0.1"), ROW_INVALID_REQUEST, 28, "temperature must be a number from 0 to 100, not -0.1" },
        { WITH("\"temperature\":100.5"), ROW_INVALID_REQUEST, 28, "not 100.5" },
        { WITH("\"temperature\":1e999"), ROW_INVALID_REQUEST, 28, "not 1e999" },
        { WITH("\"temperature\":\"0.7\""), ROW_INVALID_REQUEST, 28, "not \"0.7\"" },
        { WITH("\"temperature\":true"), ROW_INVALID_REQUEST, 28, "not true" },
        { WITH("\"top_p\":0"), ROW_INVALID_REQUEST, 22, "top_p must be a number above 0" },
        { WITH("\"top_p\":1e-60"), ROW_INVALID_REQUEST, 22, "top_p" },
        { WITH("\"top_p\":1.01"), ROW_INVALID_REQUEST, 22, "top_p" },
        { WITH("\"top_k\":-2"), ROW_INVALID_REQUEST, 22, "from -1" },
        { WITH("\"top_k\":1.5"), ROW_INVALID_REQUEST, 22, "an integer" },
        { WITH("\"min_p\":-1"), ROW_INVALID_REQUEST, 22, "min_p" },
        { WITH("\"min_p\":2"), ROW_INVALID_REQUEST, 22, "min_p" },
        { WITH("\"repetition_penalty\":0"), ROW_INVALID_REQUEST, 35, "repetition_penalty" },
        { WITH("\"presence_penalty\":2.1"), ROW_INVALID_REQUEST, 33, "from -2 to 2" },
        { WITH("\"frequency_penalty\":-3"), ROW_INVALID_REQUEST, 34, "from -2 to 2" },
        { WITH("\"n\":0"), ROW_INVALID_REQUEST, 18, "n must be an integer from 1 to 1024, not 0" },
        { WITH("\"n\":1025"), ROW_INVALID_REQUEST, 18, "not 1025" },
        { WITH("\"n\":2e0"), ROW_INVALID_REQUEST, 18, "not 2e0" },
        { WITH("\"n\":99999999999999999999"), ROW_INVALID_REQUEST, 18, "n must be" },
        { WITH("\"max_tokens\":0"), ROW_INVALID_REQUEST, 27, "from 1" },
        { WITH("\"max_tokens\":-1"), ROW_INVALID_REQUEST, 27, "from 1" },
        { WITH("\"max_tokens\":2147483648"), ROW_INVALID_REQUEST, 27, "from 1 to 2147483647" },
        { WITH("\"max_tokens\":\"16\""), ROW_INVALID_REQUEST, 27, "an integer" },
        { WITH("\"min_tokens\":17"), ROW_INVALID_REQUEST, 27, "at most max_tokens, which is 16, not 17" },
        { WITH("\"seed\":1.5"), ROW_INVALID_REQUEST, 21, "64 bits" },
        { WITH("\"seed\":18446744073709551616"), ROW_INVALID_REQUEST, 21, "64 bits" },
        { WITH("\"seed\":-9223372036854775809"), ROW_INVALID_REQUEST, 21, "64 bits" },
        { WITH("\"stop\":\"\""), ROW_INVALID_REQUEST, 21, "1 to 1024 bytes" },
        { WITH("\"stop\":[\"a\",\"\"]"), ROW_INVALID_REQUEST, 26, "1 to 1024 bytes" },
        { WITH("\"stop\":[1]"), ROW_INVALID_REQUEST, 22, "strings" },
        { WITH("\"stop\":7"), ROW_INVALID_REQUEST, 21, "a string or a list of strings" },
        { WITH("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]"), ROW_INVALID_REQUEST, 21, "at most 16" },
        { WITH("\"stop_token_ids\":5"), ROW_INVALID_REQUEST, 31, "a list of token ids" },
        { WITH("\"stop_token_ids\":[5,-5]"), ROW_INVALID_REQUEST, 34, "not -5" },
        { WITH("\"ignore_eos\":1"), ROW_INVALID_REQUEST, 27, "true or false" },
        { WITH("\"echo\":\"yes\""), ROW_INVALID_REQUEST, 21, "true or false" },
        { WITH("\"logprobs\":true"), ROW_INVALID_REQUEST, 25, "from 0 to 20, not true" },
        { WITH("\"logprobs\":21"), ROW_INVALID_REQUEST, 25, "from 0 to 20" },
        { WITH("\"logprobs\":-1"), ROW_INVALID_REQUEST, 25, "from 0 to 20" },
        { WITH("\"top_logprobs\":2"), ROW_INVALID_REQUEST, 29, "no meaning for a prompt" },
        { WITH("\"prompt_logprobs\":-1"), ROW_INVALID_REQUEST, 32, "prompt_logprobs" },
        { WITH("\"tools\":[]"), ROW_INVALID_REQUEST, 22, "no meaning for a prompt" },
        { WITH("\"model\":5"), ROW_INVALID_REQUEST, 22, "model must be a string" },
        { WITH("\"model\":\"a\\u0000b\""), ROW_INVALID_REQUEST, 22, "U+0000" },
        { WITH("\"best_of\":0"), ROW_INVALID_REQUEST, 24, "best_of" },
        { WITH("\"n\":3,\"best_of\":2"), ROW_INVALID_REQUEST, 30, "not be below n" },
        { WITH("\"stream\":0"), ROW_INVALID_REQUEST, 23, "true or false" },
        { WITH("\"custom_id\":\"\""), ROW_INVALID_REQUEST, 26, "1 to 512 bytes" },
        { WITH("\"custom_id\":5"), ROW_INVALID_REQUEST, 26, "must be a string, not 5" },
    };
    REFUSE_ALL(lines);
}

static void what_cannot_be_served_is_unsupported_field(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { WITH("\"stream\":true"), ROW_UNSUPPORTED_FIELD, 23, "stream must be false" },
        { WITH("\"best_of\":2"), ROW_UNSUPPORTED_FIELD, 24, "best_of must be equal to n" },
        { WITH("\"suffix\":\"x\""), ROW_UNSUPPORTED_FIELD, 23, "suffix" },
        { WITH("\"logit_bias\":{\"5\":1}"), ROW_UNSUPPORTED_FIELD, 27, "logit_bias" },
        { WITH("\"response_format\":{\"type\":\"json_object\"}"), ROW_UNSUPPORTED_FIELD, 32, "type text" },
        { WITH("\"response_format\":{}"), ROW_INVALID_REQUEST, 32, "with a type" },
        { WITH("\"response_format\":\"text\""), ROW_INVALID_REQUEST, 32, "with a type" },
    };
    REFUSE_ALL(lines);
}

#define BATCH(method, url, body) "{\"custom_id\":\"c\",\"method\":" method ",\"url\":" url ",\"body\":" body "}"

static void batch_envelopes_are_checked(void **state)
{
    (void)state;
    static const hostile lines[] = {
        { BATCH("\"GET\"", "\"/v1/completions\"", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 26, "method must be \"POST\", not \"GET\"" },
        { BATCH("\"post\"", "\"/v1/completions\"", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 26, "POST" },
        { BATCH("\"POST\"", "\"/v1/embeddings\"", "{\"prompt\":\"a\"}"), ROW_URL_MISMATCH, 39, "not \"/v1/embeddings\"" },
        { BATCH("\"POST\"", "\"https://api.openai.com/v1/completions\"", "{\"prompt\":\"a\"}"), ROW_URL_MISMATCH, 39, "url must be" },
        { BATCH("\"POST\"", "5", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 39, "url must be a string" },
        { BATCH("null", "\"/v1/completions\"", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 0, "method is missing" },
        { BATCH("\"POST\"", "null", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 0, "url is missing" },
        { BATCH("\"POST\"", "\"/v1/completions\"", "null"), ROW_INVALID_REQUEST, 0, "body is missing" },
        { BATCH("\"POST\"", "\"/v1/completions\"", "[]"), ROW_INVALID_REQUEST, 64, "body must be an object" },
        { BATCH("\"POST\"", "\"/v1/completions\"", "{}"), ROW_INVALID_REQUEST, 64, "prompt is missing" },
        { BATCH("\"POST\"", "\"/v1/completions\"", "{\"messages\":[]}"), ROW_INVALID_REQUEST, 76, "messages does not belong" },
        { BATCH("\"POST\"", "\"/v1/chat/completions\"", "{}"), ROW_INVALID_REQUEST, 69, "messages is missing" },
        { BATCH("\"POST\"", "\"/v1/chat/completions\"", "{\"prompt\":\"a\"}"), ROW_INVALID_REQUEST, 79, "prompt does not belong" },
        { "{\"prompt\":\"x\",\"body\":{\"prompt\":\"y\"},\"method\":\"POST\",\"url\":\"/v1/completions\"}", ROW_INVALID_REQUEST, 1, "beside its body" },
        { "{\"prompt\":\"x\",\"url\":\"/v1/completions\"}", ROW_INVALID_REQUEST, 0, "body is missing" },
    };
    REFUSE_ALL(lines);
}

static void a_fault_keeps_the_custom_id_that_could_be_read(void **state)
{
    (void)state;
    fl_row row;
    fl_row_fault fault;
    const char *line = "{\"n\":0,\"prompt\":\"a\",\"custom_id\":\"x\\u0000y\"}";
    assert_int_equal(fl_row_parse(&row, line, strlen(line), 1, NULL, &fault), ROW_INVALID_REQUEST);
    assert_int_equal(row.custom_id_bytes, 3);
    assert_memory_equal(row.custom_id, "x\0y", 4);
    fl_row_free(&row);
    line = "{\"n\":0,\"prompt\":\"a\",\"custom_id\":\"x\"";
    assert_int_equal(fl_row_parse(&row, line, strlen(line), 1, NULL, &fault), ROW_INVALID_JSON);
    assert_null(row.custom_id);
    fl_row_free(&row);
}

static void custom_ids_of_512_bytes_fit_and_of_513_do_not(void **state)
{
    (void)state;
    char line[700];
    for (int n = 512; n <= 513; n++) {
        int used = sprintf(line, "{\"prompt\":\"a\",\"custom_id\":\"");
        memset(line + used, 'x', (size_t)n);
        strcpy(line + used + n, "\"}");
        if (n == 513) { refuse_bytes(line, strlen(line), ROW_INVALID_REQUEST, 26, "1 to 512 bytes"); continue; }
        fl_row row = parsed(line, NULL);
        assert_int_equal(row.custom_id_bytes, 512);
        fl_row_free(&row);
    }
}

static void plain_prompts_get_the_defaults(void **state)
{
    (void)state;
    fl_row row = parsed(" {\"prompt\": \"a\\u00e9\\ud83d\\ude00\\n\\/\\\"\\u0000z\", \"seed\": null, \"stop\": []}\r", NULL);
    assert_string_equal(row.custom_id, "row-7");
    assert_int_equal(row.endpoint, ROW_COMPLETION);
    assert_int_equal(row.prompt_kind, ROW_PROMPT_TEXT);
    assert_int_equal(row.text_bytes, 12);
    assert_memory_equal(row.text, "a\xC3\xA9\xF0\x9F\x98\x80\n/\"\0z", 13);
    assert_int_equal(row.given, 0);
    assert_int_equal(row.max_tokens, 16);
    assert_int_equal(row.n, 1);
    assert_int_equal(row.logprobs, -1);
    assert_int_equal(row.prompt_logprobs, -1);
    assert_int_equal(row.n_stop, 0);
    assert_null(row.model);
    assert_null(row.unknown_fields);
    fl_row_free(&row);
}

static void every_sampling_field_is_read(void **state)
{
    (void)state;
    fl_row row = parsed("{\"custom_id\":\"c1\",\"prompt\":[0, 2147483647 ,5],\"model\":\"m\",\"temperature\":0.7,\"top_p\":1.0,\"top_k\":-1,\"min_p\":0.05,"
                        "\"repetition_penalty\":1.1,\"presence_penalty\":-2,\"frequency_penalty\":2,\"max_tokens\":9,\"max_completion_tokens\":7,\"min_tokens\":7,"
                        "\"n\":1024,\"seed\":18446744073709551615,\"stop\":[\"\\n\\n\",\"end\"],\"stop_token_ids\":[3,0],\"ignore_eos\":true,\"echo\":true,"
                        "\"logprobs\":20,\"prompt_logprobs\":0,\"return_token_ids\":true,\"best_of\":1024,\"suffix\":\"\",\"logit_bias\":{},"
                        "\"response_format\":{\"type\":\"text\"},\"stream\":false,\"user\":{},\"metadata\":[1e999],\"store\":1,\"service_tier\":2}", NULL);
    assert_int_equal(row.prompt_kind, ROW_PROMPT_IDS);
    assert_int_equal(row.n_ids, 3);
    assert_int_equal(row.ids[0], 0);
    assert_int_equal(row.ids[1], 2147483647);
    assert_int_equal(row.ids[2], 5);
    assert_string_equal(row.model, "m");
    assert_true(row.temperature == 0.7f && row.top_p == 1.0f && row.top_k == -1 && row.min_p == 0.05f && row.repetition_penalty == 1.1f);
    assert_true(row.presence_penalty == -2.0f && row.frequency_penalty == 2.0f);
    assert_int_equal(row.max_tokens, 7);
    assert_int_equal(row.min_tokens, 7);
    assert_int_equal(row.n, 1024);
    assert_true(row.seed == UINT64_MAX);
    assert_int_equal(row.n_stop, 2);
    assert_string_equal(row.stop[0], "\n\n");
    assert_int_equal(row.stop_bytes[1], 3);
    assert_int_equal(row.n_stop_ids, 2);
    assert_int_equal(row.stop_ids[0], 3);
    assert_true(row.ignore_eos && row.echo && row.return_token_ids);
    assert_int_equal(row.logprobs, 20);
    assert_int_equal(row.prompt_logprobs, 0);
    assert_int_equal(row.given, ROW_GIVEN_TEMPERATURE | ROW_GIVEN_TOP_P | ROW_GIVEN_TOP_K | ROW_GIVEN_MIN_P | ROW_GIVEN_REPETITION | ROW_GIVEN_MAX_TOKENS | ROW_GIVEN_SEED);
    assert_null(row.unknown_fields);
    fl_row_free(&row);

    row = parsed("{\"prompt\":\"\",\"seed\":-1,\"echo\":true,\"max_tokens\":0,\"stop\":\"x\",\"temperature\":-0.0}", NULL);
    assert_true(row.seed == UINT64_MAX);
    assert_int_equal(row.max_tokens, 0);
    assert_int_equal(row.n_stop, 1);
    assert_int_equal(row.text_bytes, 0);
    fl_row_free(&row);
}

static void chats_are_handed_on_as_they_were_written(void **state)
{
    (void)state;
    fl_row row = parsed("{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1\\/chat/completions\",\"body\":{\"add_generation_prompt\":false,\"messages\":"
                        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u00e9\"}]}, {\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"x\":1.50}]}],"
                        "\"tools\":[ {\"big\":123456789012345678901234567890} ],\"chat_template_kwargs\":{\"enable_thinking\":false},\"logprobs\":true,\"top_logprobs\":2,"
                        "\"tool_choice\":\"auto\",\"parallel_tool_calls\":true},\"extra\":1}", NULL);
    assert_int_equal(row.endpoint, ROW_CHAT);
    assert_int_equal(row.prompt_kind, ROW_PROMPT_MESSAGES);
    assert_string_equal(row.text, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u00e9\"}]}, {\"role\":\"assistant\",\"content\":null,"
                        "\"tool_calls\":[{\"x\":1.50}]}],\"tools\":[ {\"big\":123456789012345678901234567890} ],\"chat_template_kwargs\":{\"enable_thinking\":false},"
                        "\"add_generation_prompt\":false}");
    assert_int_equal(row.text_bytes, strlen(row.text));
    assert_int_equal(row.max_tokens, 0);
    assert_int_equal(row.given, 0);
    assert_int_equal(row.logprobs, 2);
    assert_string_equal(row.unknown_fields, "extra,parallel_tool_calls");
    fl_row_free(&row);
}

static void unknown_fields_are_named(void **state)
{
    (void)state;
    fl_row row = parsed("{\"prompt\":\"a\",\"task_id\":1,\"a,b\\n\":2,\"entry_point\":null}", NULL);
    assert_string_equal(row.unknown_fields, "task_id,a_b_,entry_point");
    fl_row_free(&row);
    row = parsed("{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\"},\"temperature\":5,\"id\":1}", NULL);
    assert_string_equal(row.unknown_fields, "temperature,id");
    fl_row_free(&row);
    char line[16384];                                    /* the list of names is bounded, wherever they stand */
    size_t used = (size_t)sprintf(line, "{\"method\":\"POST\",\"url\":\"/v1/completions\"");
    for (int i = 0; i < 40; i++) used += (size_t)sprintf(line + used, ",\"outer%d%0100d\":0", i, 0);
    used += (size_t)sprintf(line + used, ",\"body\":{\"prompt\":\"a\"");
    for (int i = 0; i < 40; i++) used += (size_t)sprintf(line + used, ",\"inner%d%0100d\":0", i, 0);
    sprintf(line + used, "}}");
    row = parsed(line, NULL);
    assert_int_equal(strlen(row.unknown_fields), 32 * 65 - 1);
    fl_row_free(&row);
}

static void set_fields_fill_what_rows_lack(void **state)
{
    (void)state;
    const char *defaults = "{\"temperature\":0.5,\"max_tokens\":40,\"top_logprobs\":0,\"seed\":9,\"stop\":[\"x\"]}";
    fl_row row = parsed("{\"prompt\":\"a\",\"temperature\":0.25,\"seed\":null,\"max_completion_tokens\":3}", defaults);
    assert_true(row.temperature == 0.25f);
    assert_int_equal(row.max_tokens, 3);
    assert_true(row.seed == 9 && (row.given & ROW_GIVEN_SEED));
    assert_string_equal(row.stop[0], "x");
    fl_row_free(&row);

    row = parsed("{\"prompt\":\"a\"}", "");          /* no --set at all */
    assert_int_equal(row.given, 0);
    fl_row_free(&row);

    fl_row_fault fault;
    const char *line = "{\"prompt\":\"a\"}";
    assert_int_equal(fl_row_parse(&row, line, strlen(line), 1, "{\"temperature\":500}", &fault), ROW_INVALID_REQUEST);
    assert_string_equal(fault.text, "temperature must be a number from 0 to 100, not 500 (from --set)");
    fl_row_free(&row);
}

static void set_objects_are_checked_by_themselves(void **state)
{
    (void)state;
    fl_row_fault fault;
    assert_int_equal(fl_row_defaults_check("{\"temperature\":0.5,\"logprobs\":3}", &fault), ROW_OK);
    assert_int_equal(fl_row_defaults_check("{\"logprobs\":true,\"top_logprobs\":3}", &fault), ROW_OK);
    assert_int_equal(fl_row_defaults_check("{}", &fault), ROW_OK);
    assert_int_equal(fl_row_defaults_check("{\"temprature\":0.5}", &fault), ROW_INVALID_REQUEST);
    assert_string_equal(fault.text, "--set knows no field \"temprature\"");
    assert_int_equal(fl_row_defaults_check("{\"prompt\":\"a\"}", &fault), ROW_INVALID_REQUEST);
    assert_int_equal(fl_row_defaults_check("{\"n\":0}", &fault), ROW_INVALID_REQUEST);
    assert_int_equal(fl_row_defaults_check("{\"top_logprobs\":30,\"logprobs\":true}", &fault), ROW_INVALID_REQUEST);
    assert_int_equal(fl_row_defaults_check("{\"tools\":3}", &fault), ROW_INVALID_REQUEST);
    assert_int_equal(fl_row_defaults_check("[]", &fault), ROW_INVALID_REQUEST);
    assert_int_equal(fl_row_defaults_check("{", &fault), ROW_INVALID_JSON);
}

static void too_long_lines_and_too_many_keys_are_line_too_long(void **state)
{
    (void)state;
    size_t n = FL_LINE_BYTES_MAX + 1;
    char *line = malloc(n + 1);
    assert_non_null(line);
    memset(line, ' ', n);
    line[0] = '{';
    line[n - 1] = '}';
    fl_row row;
    fl_row_fault fault;
    assert_int_equal(fl_row_parse(&row, line, n, 1, NULL, &fault), ROW_LINE_TOO_LONG);
    fl_row_free(&row);

    size_t used = (size_t)sprintf(line, "{\"prompt\":\"a\",\"user\":{");
    for (unsigned i = 0; i <= FL_JSON_KEYS_MAX; i++) used += (size_t)sprintf(line + used, "%s\"%x\":0", i ? "," : "", i);
    used += (size_t)sprintf(line + used, "}}");
    assert_int_equal(fl_row_parse(&row, line, used, 1, NULL, &fault), ROW_LINE_TOO_LONG);
    assert_non_null(strstr(fault.text, "more than 1048576 keys"));
    fl_row_free(&row);
    free(line);
}

static void duplicates_are_found_among_many_keys(void **state)
{
    (void)state;
    char *line = malloc(1 << 20);
    assert_non_null(line);
    size_t used = (size_t)sprintf(line, "{\"prompt\":\"a\",\"user\":{"), second = 0;
    for (unsigned i = 0; i < 40000; i++) {
        if (i == 30000) second = used + 1;
        used += (size_t)sprintf(line + used, "%s\"k%u\":0", i ? "," : "", i == 30000 ? 7 : i);
    }
    used += (size_t)sprintf(line + used, "}}");
    refuse_bytes(line, used, ROW_INVALID_JSON, second, "\"k7\" twice");
    free(line);
}

static void a_line_of_many_ids_is_read_whole(void **state)
{
    (void)state;
    size_t n = 2000000, used;
    char *line = malloc(n * 2 + 32);
    assert_non_null(line);
    used = (size_t)sprintf(line, "{\"prompt\":[");
    for (size_t i = 0; i < n; i++) { line[used++] = (char)('0' + i % 10); line[used++] = ','; }
    line[used - 1] = ']';
    line[used++] = '}';
    fl_row row;
    fl_row_fault fault;
    assert_int_equal(fl_row_parse(&row, line, used, 1, NULL, &fault), ROW_OK);
    assert_int_equal(row.n_ids, n);
    for (size_t i = 0; i < n; i++) assert_true(row.ids[i] == (int32_t)(i % 10));
    fl_row_free(&row);
    free(line);
}

#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEMORY_IS_WATCHED 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define MEMORY_IS_WATCHED 1
#endif

#ifndef MEMORY_IS_WATCHED
static long status_kb(const char *field)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) if (strncmp(line, field, strlen(field)) == 0) kb = atol(line + strlen(field));
    if (f) fclose(f);
    return kb;
}

/* In a process of its own: by how many bytes parsing a line of n bytes, `start` + `again` as often as it fits + `end`, raises the peak of resident memory. */
static long peak_of(size_t n, const char *start, const char *again, const char *end)
{
    int fds[2], status;
    long grown = -1;
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0) {
        char *line = malloc(n);
        size_t used = strlen(start), step = strlen(again);
        if (!line) _exit(1);
        memcpy(line, start, used);
        for (; used + step + strlen(end) <= n; used += step) memcpy(line + used, again, step);
        if (line[used - 1] == ',') used--;
        memcpy(line + used, end, strlen(end));
        used += strlen(end);
        long before = status_kb("VmRSS:");
        fl_row row;
        fl_row_fault fault;
        fl_row_parse(&row, line, used, 1, NULL, &fault);
        grown = (status_kb("VmHWM:") - before) * 1024;
        _exit(write(fds[1], &grown, sizeof grown) != sizeof grown);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &grown, sizeof grown), sizeof grown);
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return grown;
}

static void a_line_takes_at_most_four_times_its_size(void **state)
{
    (void)state;
    static const struct { const char *start, *again, *end; } shapes[] = {
        { "{\"prompt\":[", "1,", "]}" }, { "{\"prompt\":\"", "x", "\"}" }, { "{\"prompt\":\"", "\\n", "\"}" }, { "{\"prompt\":\"", "\\u00e9", "\"}" },
        { "{\"prompt\":\"a\",\"user\":[", "{},", "]}" }, { "{\"prompt\":\"a\",\"user\":[", "[[[[[]]]]],", "]}" }, { "{\"prompt\":\"a\",\"user\":[", "{\"a\":1,\"b\":{}},", "]}" },
        { "{\"prompt\":\"a\",\"stop\":[", "\"a\",", "]}" }, { "{\"prompt\":\"a\",\"stop_token_ids\":[", "1,", "]}" },
        { "{\"messages\":[", "{\"role\":\"user\",\"content\":\"a\"},", "]}" }, { "{\"messages\":[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"a\"},", "]}]}" },
        { "{\"custom_id\":\"", "a", "\",\"prompt\":\"a\"}" }, { "{\"model\":\"", "a", "\",\"prompt\":\"a\"}" }, { "{\"prompt\":\"a\",\"n\":1", "0", "}" },
        { "{\"prompt\":\"a\",\"temperature\":0.", "1", "}" }, { "{\"prompt\":\"a\",\"", "k", "\":1}" },
    };
    const size_t n = 24u << 20;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        long grown = peak_of(n, shapes[i].start, shapes[i].again, shapes[i].end);
        if (grown < 0 || (size_t)grown > 4 * n + (33u << 20)) fail_msg("%s%s...: %ld MB for a line of %zu MB", shapes[i].start, shapes[i].again, grown >> 20, n >> 20);
    }
}
#endif

static void ids_are_read_however_they_are_spaced(void **state)
{
    (void)state;
    static const int32_t ids[] = { 0, 7, 2147483647, 0, 12, 1234567890, 3 };
    fl_row row = parsed("{\"prompt\":[ 0,7 ,\t2147483647 , -0,12\t,1234567890, 3 ]}", NULL);
    assert_int_equal(row.n_ids, sizeof ids / sizeof *ids);
    assert_memory_equal(row.ids, ids, sizeof ids);
    fl_row_free(&row);
}

static void blank_lines_are_json_white_space_only(void **state)
{
    (void)state;
    assert_true(fl_line_is_blank("", 0));
    assert_true(fl_line_is_blank(" \t\r", 3));
    assert_false(fl_line_is_blank("\v", 1));
    assert_false(fl_line_is_blank("\xC2\xA0", 2));
    assert_false(fl_line_is_blank("\0", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_json_is_refused_at_its_byte),
        cmocka_unit_test(invalid_utf8_is_found_before_invalid_json),
        cmocka_unit_test(raw_nul_bytes_are_invalid_json),
        cmocka_unit_test(deep_nesting_is_refused_and_the_limit_itself_is_not),
        cmocka_unit_test(what_is_json_but_no_request_is_refused),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(fields_out_of_range_are_refused),
        cmocka_unit_test(what_cannot_be_served_is_unsupported_field),
        cmocka_unit_test(batch_envelopes_are_checked),
        cmocka_unit_test(a_fault_keeps_the_custom_id_that_could_be_read),
        cmocka_unit_test(custom_ids_of_512_bytes_fit_and_of_513_do_not),
        cmocka_unit_test(plain_prompts_get_the_defaults),
        cmocka_unit_test(every_sampling_field_is_read),
        cmocka_unit_test(chats_are_handed_on_as_they_were_written),
        cmocka_unit_test(unknown_fields_are_named),
        cmocka_unit_test(set_fields_fill_what_rows_lack),
        cmocka_unit_test(set_objects_are_checked_by_themselves),
        cmocka_unit_test(too_long_lines_and_too_many_keys_are_line_too_long),
        cmocka_unit_test(duplicates_are_found_among_many_keys),
        cmocka_unit_test(a_line_of_many_ids_is_read_whole),
        cmocka_unit_test(ids_are_read_however_they_are_spaced),
#ifndef MEMORY_IS_WATCHED
        cmocka_unit_test(a_line_takes_at_most_four_times_its_size),
#endif
        cmocka_unit_test(blank_lines_are_json_white_space_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
