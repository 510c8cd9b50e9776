/* What transformers renders of 100 chats with every template: our own (chats/NAME.jinja), and public ones that ops/get-tokenizers fetches. chats/vectors.json is made by
 * make_chat_vectors.py, whose --show prints the reference's text of the request that a failure names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "engine/chat_template.h"

enum { N_REQUESTS = 100 };
#define FOLDER TESTS_DIR "/golden/chats"

static char model[] = "/tmp/chat_parity_test.XXXXXX";
static json_t *vectors;
static char *requests[N_REQUESTS];

static void put_file(const char *name, const char *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", model, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", model, name);
    unlink(path);
}

static int load(void **state)
{
    static const char config[] = "{\"bos_token\":\"<bos>\",\"eos_token\":{\"content\":\"<eos>\",\"__type\":\"AddedToken\"},\"pad_token\":null}";
    (void)state;
    if (!mkdtemp(model)) return -1;
    put_file("tokenizer_config.json", config, sizeof config - 1);
    vectors = json_load_file(FOLDER "/vectors.json", 0, NULL);
    FILE *f = fopen(FOLDER "/requests.jsonl", "rb");
    if (!vectors || !f) return -1;
    int n = 0;
    size_t capacity = 0;
    while (n < N_REQUESTS && getline(&requests[n], &capacity, f) > 0) { n++; capacity = 0; }
    fclose(f);
    return n == N_REQUESTS ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    for (int i = 0; i < N_REQUESTS; i++) free(requests[i]);
    json_decref(vectors);
    remove_file("tokenizer_config.json");
    remove_file("chat_template.jinja");
    return rmdir(model);
}

static bool take_template(const char *folder, const char *name)
{
    char path[4096], source[1 << 16];
    snprintf(path, sizeof path, "%s/%s.jinja", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    size_t n = fread(source, 1, sizeof source, f);
    fclose(f);
    assert_true(n < sizeof source);
    put_file("chat_template.jinja", source, n);
    return true;
}

static void check_request(chat_template *t, const char *name, int i, const json_t *want)
{
    char *text = NULL;
    size_t n = 0;
    fl_err err = { 0 };
    fl_status st = chat_template_render(t, requests[i], strlen(requests[i]), (uint32_t)json_integer_value(json_object_get(vectors, "now")), &text, &n, &err);
    if (json_is_null(want)) {
        if (st != FL_INVALID) fail_msg("%s, request %d: rendered to \"%s\", and the reference fails", name, i, st == FL_OK ? text : err.text);
        return;
    }
    if (st != FL_OK) fail_msg("%s, request %d: %s", name, i, err.text);
    if ((uint32_t)crc32_z(crc32_z(0, NULL, 0), (const uint8_t *)text, n) != (uint32_t)json_integer_value(want)) fail_msg("%s, request %d: rendered to \"%s\"", name, i, text);
    free(text);
}

/* Returns how many templates of the vectors lie in `folder`; each renders every request as the reference. */
static int check_folder(const char *folder)
{
    const char *name;
    json_t *want;
    int n = 0;
    json_object_foreach(json_object_get(vectors, "templates"), name, want) {
        chat_template *t = NULL;
        fl_err err = { 0 };
        if (!take_template(folder, name)) continue;
        if (chat_template_open(&t, model, &err) != FL_OK) {
            if (strstr(err.text, "TOKENFLEET_PYTHON")) { print_message("skipped: %s\n", err.text); skip(); }
            fail_msg("%s: %s", name, err.text);
        }
        for (int i = 0; i < N_REQUESTS; i++) check_request(t, name, i, json_array_get(want, (size_t)i));
        chat_template_close(t);
        n++;
    }
    return n;
}

static void our_templates_render_as_in_the_reference(void **state)
{
    (void)state;
    assert_true(check_folder(FOLDER) >= 5);
}

static void public_templates_render_as_in_the_reference(void **state)
{
    (void)state;
    char folder[4096];
    const char *cache = getenv("TOKENFLEET_PYPI_CACHE");
    if (system(OPS_DIR "/get-tokenizers") != 0) { print_message("skipped: the public templates cannot be fetched\n"); skip(); }
    snprintf(folder, sizeof folder, "%s/templates", cache && cache[0] ? cache : OPS_DIR "/../build/pypi");
    assert_true(check_folder(folder) >= 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_templates_render_as_in_the_reference),
        cmocka_unit_test(public_templates_render_as_in_the_reference),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
