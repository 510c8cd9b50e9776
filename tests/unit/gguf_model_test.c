/* GGUF files with something odd in their metadata or tensors, looked at as `inspect` and a worker do: each is a model that is read rightly, or a sentence that says what to do.
 * The files are fuzz_gguf's seeds with keys renamed (so that they are absent), patched, or added in front of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/gguf.h"
#include "engine/inspect.h"
#include "tests/temp_folder.h"

#define SEEDS TESTS_DIR "/fuzz/corpus/gguf/"
enum { HEAD_BYTES = 24, ALIGNMENT = 32 };

static char folder[] = "/tmp/gguf_model_test.XXXXXX";

/* ---- making files ---- */

typedef struct { _Alignas(8) uint8_t bytes[1 << 17]; size_t n; } file;

static void put(file *f, const void *data, size_t n) { assert_true(f->n + n <= sizeof f->bytes); memcpy(f->bytes + f->n, data, n); f->n += n; }
static void put_u32(file *f, uint32_t v) { put(f, &v, sizeof v); }
static void put_u64(file *f, uint64_t v) { put(f, &v, sizeof v); }
static void put_text(file *f, const char *text) { put_u64(f, strlen(text)); put(f, text, strlen(text)); }

static void load(file *f, const char *seed)
{
    char path[512];
    snprintf(path, sizeof path, SEEDS "%s.gguf", seed);
    FILE *in = fopen(path, "rbe");
    assert_non_null(in);
    f->n = fread(f->bytes, 1, sizeof f->bytes, in);
    fclose(in);
}

static gguf *open_bytes(const file *f)
{
    gguf *g = NULL;
    fl_err err;
    if (gguf_open_bytes(&g, "x.gguf", f->bytes, f->n, &err) != FL_OK) fail_msg("%s", err.text);
    return g;
}

/* Where a field of the file lies. */
static size_t place_of(const file *f, const char *key, bool is_value)
{
    gguf *g = open_bytes(f);
    const gguf_field *field = gguf_find(g, key);
    assert_non_null(field);
    const size_t at = (size_t)((is_value ? field->data : (const uint8_t *)field->key) - f->bytes);
    gguf_close(g);
    return at;
}

static void hide(file *f, const char *key) { f->bytes[place_of(f, key, false)] ^= 0x20; }

/* Put a block at `at` and grow one of the head's counts; a key of the right length keeps what lies behind aligned. */
static void insert(file *f, size_t at, const file *block, size_t count_at)
{
    uint64_t count;
    assert_true(block->n % ALIGNMENT == 0 && f->n + block->n <= sizeof f->bytes);
    memmove(f->bytes + at + block->n, f->bytes + at, f->n - at);
    memcpy(f->bytes + at, block->bytes, block->n);
    f->n += block->n;
    memcpy(&count, f->bytes + count_at, sizeof count);
    count++;
    memcpy(f->bytes + count_at, &count, sizeof count);
}

/* A key without meaning behind the block's fields, so that both are whole alignments long. */
static void add(file *f, const file *field)
{
    static file block;
    block = *field;
    size_t n_name = (ALIGNMENT - (block.n + 8 + 4 + 1) % ALIGNMENT) % ALIGNMENT;
    if (n_name == 0) n_name = ALIGNMENT;
    char name[ALIGNMENT + 1];
    snprintf(name, sizeof name, "%.*s", (int)n_name, "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz");
    put_text(&block, name);
    put_u32(&block, GGUF_U8);
    put(&block, "", 1);
    gguf *g = open_bytes(f);
    const bool has = gguf_find(g, name) != NULL;
    gguf_close(g);
    if (has) block.bytes[field->n + 8] = 'y';            /* the second key that is added */
    insert(f, HEAD_BYTES, &block, 16);
    uint64_t count;
    memcpy(&count, f->bytes + 16, sizeof count);
    count++;
    memcpy(f->bytes + 16, &count, sizeof count);
}

static void add_scalar(file *f, const char *key, gguf_kind kind, const void *value, size_t n)
{
    static file field;
    field.n = 0;
    put_text(&field, key);
    put_u32(&field, kind);
    put(&field, value, n);
    add(f, &field);
}

static void add_u32(file *f, const char *key, uint32_t v) { add_scalar(f, key, GGUF_U32, &v, sizeof v); }
static void add_f32(file *f, const char *key, float v) { add_scalar(f, key, GGUF_F32, &v, sizeof v); }

static void add_string(file *f, const char *key, const char *text)
{
    static file field;
    field.n = 0;
    put_text(&field, key);
    put_u32(&field, GGUF_STRING);
    put_text(&field, text);
    add(f, &field);
}

static void put_empty_tensor(file *block, const char *name)
{
    put_text(block, name);
    put_u32(block, 1);
    put_u64(block, 0);
    put_u32(block, 0);
    put_u64(block, 0);
}

/* A tensor of no values in front of the others: its name says what it would be. One that nobody looks at makes the two whole alignments long. */
static void add_tensor(file *f, const char *name)
{
    static file block;
    char filler[ALIGNMENT + 3] = "v.";
    uint64_t count;
    gguf *g = open_bytes(f);
    const gguf_field *last = gguf_field_at(g, 0);
    for (size_t i = 1; i < gguf_field_count(g); i++) if (gguf_field_at(g, i)->data > last->data) last = gguf_field_at(g, i);
    const size_t at = (size_t)(last->data + last->n_bytes - f->bytes);
    gguf_close(g);
    block.n = 0;
    put_empty_tensor(&block, name);
    while ((block.n + 8 + strlen(filler) + 4 + 8 + 4 + 8) % ALIGNMENT) strcat(filler, "_");
    put_empty_tensor(&block, filler);
    insert(f, at, &block, 8);
    memcpy(&count, f->bytes + 8, sizeof count);
    count++;
    memcpy(f->bytes + 8, &count, sizeof count);
}

/* ---- looking ---- */

static json_t *look(const file *f)
{
    char path[64];
    json_t *report = NULL;
    fl_err err;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    FILE *out = fopen(path, "wbe");
    assert_non_null(out);
    assert_int_equal(fwrite(f->bytes, 1, f->n, out), f->n);
    assert_int_equal(fclose(out), 0);
    if (inspect_model(&report, path, 1, 0, &err) != FL_OK) fail_msg("%s", err.text);
    return report;
}

static bool has_sentence(const json_t *list, const char *part)
{
    for (size_t i = 0; i < json_array_size(list); i++) if (strstr(json_string_value(json_array_get(list, i)), part)) return true;
    return false;
}

static void refuse(const file *f, const char *part)
{
    json_t *report = look(f), *problems = json_object_get(report, "problems");
    assert_false(json_is_true(json_object_get(report, "supported")));
    if (!has_sentence(problems, part)) fail_msg("no \"%s\" in %s", part, json_dumps(problems, 0));
    json_decref(report);
}

/* The report of a file that is served; the caller's. */
static json_t *accept(const file *f)
{
    json_t *report = look(f);
    if (!json_is_true(json_object_get(report, "supported"))) fail_msg("%s", json_dumps(json_object_get(report, "problems"), 0));
    return report;
}

static void note(const file *f, const char *part)
{
    json_t *report = accept(f), *notes = json_object_get(report, "notes");
    if (!has_sentence(notes, part)) fail_msg("no \"%s\" in %s", part, json_dumps(notes, 0));
    json_decref(report);
}

static void check_ends(const file *f, const int *wanted, size_t n)
{
    json_t *report = accept(f), *ids = json_object_get(json_object_get(report, "generation"), "end_ids");
    assert_int_equal(json_array_size(ids), n);
    for (size_t i = 0; i < n; i++) assert_int_equal(json_integer_value(json_array_get(ids, i)), wanted[i]);
    json_decref(report);
}

/* ---- what files are ---- */

static void what_goes_with_a_model_is_told_from_one(void **state)
{
    static file f;
    (void)state;
    load(&f, "llama");
    add_string(&f, "general.type", "adapter");
    refuse(&f, "a LoRA adapter, which is not supported by itself: merge it into its model");
    load(&f, "llama");
    hide(&f, "general.architecture");
    add_string(&f, "general.architecture", "clip");
    refuse(&f, "sees or hears (mmproj); name the file of its language model");
    load(&f, "llama");
    add_string(&f, "general.type", "imatrix");
    refuse(&f, "an importance matrix");
    load(&f, "llama");
    memset(f.bytes + 8, 0, 8);                           /* as the vocabularies that come with llama.cpp */
    refuse(&f, "a vocabulary and no weights; name the file of a whole model");
}

static void a_file_that_nobody_can_read_has_one_problem(void **state)
{
    static file f;
    (void)state;
    load(&f, "llama");
    f.n = 5000;
    json_t *report = look(&f);
    assert_int_equal(json_array_size(json_object_get(report, "problems")), 1);
    assert_true(has_sentence(json_object_get(report, "problems"), "truncated or damaged: copy it again"));
    assert_int_equal(json_array_size(json_object_get(report, "notes")), 0);
    json_decref(report);
}

static void a_missing_part_is_the_problem(void **state)
{
    static file f;
    const uint16_t two = 2;
    char whole[64], part[64];
    json_t *report = NULL;
    fl_err err;
    (void)state;
    load(&f, "llama");
    add_scalar(&f, "split.count", GGUF_U16, &two, sizeof two);
    json_decref(look(&f));
    snprintf(whole, sizeof whole, "%s/x.gguf", folder);
    snprintf(part, sizeof part, "%s/x-00001-of-00002.gguf", folder);
    assert_int_equal(rename(whole, part), 0);
    if (inspect_model(&report, part, 1, 0, &err) != FL_OK) fail_msg("%s", err.text);
    assert_true(has_sentence(json_object_get(report, "problems"), "x-00002-of-00002.gguf"));
    json_decref(report);
}

/* ---- tensors ---- */

static void a_tensor_that_nothing_computes_with_is_refused(void **state)
{
    static const char *const names[] = { "blk.0.attn_output.bias", "blk.0.ffn_down.bias", "blk.1.attn_q_norm.weight", "blk.0.attn_sub_norm.weight", "position_embd.weight", "blk.2.attn_q.weight", "odd" };
    static const char *const beside[] = { "cls.output.weight", "v.blk.0.ln1.weight", "mm.input_projection.weight", "a.conv1d.0.bias", "blk.0.attn_q.input_scale", "blk.0.attn_rot_embd.weight" };
    static file f;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        load(&f, "llama");
        add_tensor(&f, names[i]);
        refuse(&f, names[i]);
        refuse(&f, "nothing here computes with tensor");
    }
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        load(&f, "llama");
        add_tensor(&f, beside[i]);
        json_decref(accept(&f));
    }
}

static void layers_that_guess_further_are_left_out(void **state)
{
    static file f, heads;
    (void)state;
    load(&f, "llama");
    add_u32(&f, "llama.nextn_predict_layers", 1);
    hide(&f, "llama.attention.head_count");
    heads.n = 0;
    put_text(&heads, "llama.attention.head_count");      /* one a block, the one that is left out too */
    put_u32(&heads, GGUF_ARRAY);
    put_u32(&heads, GGUF_U32);
    put_u64(&heads, 2);
    put_u32(&heads, 2);
    put_u32(&heads, 2);
    add(&f, &heads);
    json_t *report = accept(&f);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "layers"), "count")), 1);
    json_decref(report);
}

/* ---- rotation ---- */

static void a_factor_without_a_type_stretches_linearly(void **state)
{
    static const struct { const char *type, *key; float factor; const char *wanted; } cases[] = {
        { NULL, "llama.rope.scaling.factor", 4.0f, "linear" }, { NULL, "llama.rope.scale_linear", 4.0f, "linear" }, { "linear", "llama.rope.scale_linear", 4.0f, "linear" },
        { "yarn", "llama.rope.scale_linear", 4.0f, "yarn" },   { "none", "llama.rope.scaling.factor", 4.0f, "default" }, { NULL, "llama.rope.scaling.factor", 1.0f, "default" },
        { "linear", "llama.rope.scaling.factor", 0.0f, "default" }, { "linear", "llama.unused", 4.0f, "default" },
    };
    static file f;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load(&f, "llama");
        add_f32(&f, cases[i].key, cases[i].factor);
        if (cases[i].type) add_string(&f, "llama.rope.scaling.type", cases[i].type);
        json_t *report = accept(&f), *rope = json_object_get(json_object_get(report, "rope"), "full_attention");
        assert_string_equal(json_string_value(json_object_get(rope, "type")), cases[i].wanted);
        if (strcmp(cases[i].wanted, "default") != 0) assert_true(json_number_value(json_object_get(rope, "factor")) == 4.0);
        json_decref(report);
    }
}

/* ---- the tokenizer ---- */

static void an_eos_that_is_no_token_is_refused(void **state)
{
    static file f;
    (void)state;
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.eos_token_id");
    add_u32(&f, "tokenizer.ggml.eos_token_id", 64);
    refuse(&f, "and there are 64 tokens, so no completion would end");
}

static void another_end_that_is_no_token_ends_nothing(void **state)
{
    static const char *const keys[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    static file f;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        load(&f, "llama");
        json_t *before = accept(&f);
        add_u32(&f, keys[i], 32010);
        json_t *after = accept(&f);
        assert_true(json_equal(json_object_get(before, "generation"), json_object_get(after, "generation")));
        json_decref(before);
        json_decref(after);
        note(&f, "names no token, so it ends no completion");
    }
}

static void minus_one_stands_for_no_token(void **state)
{
    static file f;
    const int32_t none = -1;
    (void)state;
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.eos_token_id");
    add_scalar(&f, "tokenizer.ggml.eos_token_id", GGUF_I32, &none, sizeof none);
    check_ends(&f, (const int[]){ 0, 2 }, 2);            /* by their names */
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.bos_token_id");
    add_u32(&f, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    json_decref(accept(&f));
}

static void an_end_by_its_name_may_be_user_defined(void **state)
{
    static file f;
    const int32_t user_defined = 4;
    (void)state;
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.eos_token_id");
    memcpy(f.bytes + place_of(&f, "tokenizer.ggml.token_type", true) + 4 * 2, &user_defined, sizeof user_defined);
    check_ends(&f, (const int[]){ 0, 2 }, 2);
}

static void a_padding_token_that_is_not_there_leaves_chats_alone(void **state)
{
    static file f;
    (void)state;
    load(&f, "llama");
    add_u32(&f, "tokenizer.ggml.padding_token_id", 64);
    json_t *report = accept(&f);
    assert_int_equal(json_array_size(json_object_get(report, "chat_templates")), 2);
    json_decref(report);
}

static void what_a_vocabulary_leaves_open_is_noted(void **state)
{
    static file f;
    (void)state;
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.pre");
    note(&f, "tokenizer.ggml.pre is missing");
    add_string(&f, "tokenizer.ggml.pre", "");
    note(&f, "tokenizer.ggml.pre is missing");
    load(&f, "gemma3");
    hide(&f, "tokenizer.ggml.token_type");
    note(&f, "tokenizer.ggml.token_type is missing");
    load(&f, "llama");
    hide(&f, "tokenizer.ggml.model");
    add_string(&f, "tokenizer.ggml.model", "no_vocab");
    note(&f, "there is no tokenizer: only rows of token ids run");
}

/* Looking at all ways in which a megabyte falls into two would take an hour. */
static void a_piece_of_a_vocabulary_is_short(void **state)
{
    enum { LONG = 1025 };
    static file f, list;
    char word[LONG];
    const char *text;
    size_t n;
    gguf_strings tokens;
    (void)state;
    load(&f, "gemma3");
    memset(word, 'a', sizeof word);
    gguf *g = open_bytes(&f);
    assert_int_equal(gguf_strings_begin(&tokens, g, "tokenizer.ggml.tokens", NULL), FL_OK);
    list.n = 0;
    put_text(&list, "tokenizer.ggml.tokens");
    put_u32(&list, GGUF_ARRAY);
    put_u32(&list, GGUF_STRING);
    put_u64(&list, tokens.left);
    for (bool is_more = gguf_strings_next(&tokens, &text, &n); is_more; is_more = gguf_strings_next(&tokens, &text, &n)) {
        const bool is_last = tokens.left == 0;
        put_u64(&list, is_last ? LONG : n);
        put(&list, is_last ? word : text, is_last ? LONG : n);
    }
    gguf_close(g);
    hide(&f, "tokenizer.ggml.tokens");
    add(&f, &list);
    refuse(&f, "token 275 of tokenizer.ggml.tokens has 1025 bytes; normal ones of up to 1024 are supported");
}

static void all_tokens_are_two_numbers_of_top_k(void **state)
{
    static file f;
    (void)state;
    for (int32_t top_k = -1; top_k <= 1; top_k++) {
        load(&f, "llama");
        add_scalar(&f, "general.sampling.top_k", GGUF_I32, &top_k, sizeof top_k);
        json_t *report = accept(&f);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "generation"), "top_k")), top_k < 0 ? 0 : top_k);
        json_decref(report);
    }
}

static int make_folder(void **state) { (void)state; return temp_folder_make(folder); }
static int remove_folder(void **state) { (void)state; return temp_folder_remove(folder); }

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(what_goes_with_a_model_is_told_from_one), IN_FOLDER(a_file_that_nobody_can_read_has_one_problem), IN_FOLDER(a_missing_part_is_the_problem),
        IN_FOLDER(a_tensor_that_nothing_computes_with_is_refused), IN_FOLDER(layers_that_guess_further_are_left_out), IN_FOLDER(a_factor_without_a_type_stretches_linearly),
        IN_FOLDER(an_eos_that_is_no_token_is_refused), IN_FOLDER(another_end_that_is_no_token_ends_nothing), IN_FOLDER(minus_one_stands_for_no_token), IN_FOLDER(an_end_by_its_name_may_be_user_defined),
        IN_FOLDER(a_padding_token_that_is_not_there_leaves_chats_alone), IN_FOLDER(what_a_vocabulary_leaves_open_is_noted), IN_FOLDER(a_piece_of_a_vocabulary_is_short), IN_FOLDER(all_tokens_are_two_numbers_of_top_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
