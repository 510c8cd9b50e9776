/* cmd_inspect.c - `tokenfleet inspect`: the engine's report on a model directory (engine/inspect.h), as JSON or for people. */
#include "coordinator/commands.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/engine_call.h"
#include "coordinator/flags.h"
#include "coordinator/printable.h"

#define NAME "inspect"

static const char *text_of(const json_t *object, const char *key) { return json_string_value(json_object_get(object, key)); }
static long long int_of(const json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }
static double number_of(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

static void print_label(const char *label) { printf("  %-12s ", label); }

static void print_bytes(double bytes)
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
    int unit = 0;
    while (bytes >= 1000.0 && unit < 4) { bytes /= 1000.0; unit++; }
    printf(unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static void print_count(double n)
{
    static const char *const units[] = { "", " k", " M", " G", " T" };
    int unit = 0;
    while (n >= 1000.0 && unit < 4) { n /= 1000.0; unit++; }
    printf(unit ? "%.2f%s" : "%.0f%s", n, units[unit]);
}

/* "a, b, c" of an array of strings or numbers. */
static void print_list(const json_t *list)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry) {
        if (i) printf(", ");
        if (json_is_string(entry)) printf("%s", json_string_value(entry));
        else printf("%lld", (long long)json_integer_value(entry));
    }
}

static void print_layers(const json_t *report)
{
    static const struct { const char *key, *words; } kinds[] = { { "full_attention", "full attention" }, { "sliding_attention", "sliding attention" }, { "linear_attention", "linear attention" },
                                                                 { "dense", "with an MLP" }, { "mixture", "with experts" } };
    const json_t *layers = json_object_get(report, "layers");
    const char *separator = ": ";
    print_label("layers");
    printf("%lld", int_of(layers, "count"));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!int_of(layers, kinds[i].key)) continue;
        if (i == 3 || (i == 4 && !int_of(layers, "dense"))) separator = "; ";
        printf("%s%lld %s", separator, int_of(layers, kinds[i].key), kinds[i].words);
        separator = ", ";
    }
    printf("\n");
}

static void print_sizes(const json_t *report)
{
    const json_t *experts = json_object_get(report, "experts"), *linear = json_object_get(report, "linear_attention"), *heads = json_object_get(report, "heads_per_layer");
    print_label("sizes");
    printf("hidden %lld", int_of(report, "hidden_size"));
    if (json_object_get(report, "intermediate_size")) printf(", MLP %lld", int_of(report, "intermediate_size"));
    printf("; %lld heads and %lld KV heads of %lld\n", int_of(report, "heads"), int_of(report, "kv_heads"), int_of(report, "head_dim"));
    if (heads) { print_label("heads"); print_list(heads); printf(" (by layer)\n"); }
    if (json_object_get(report, "sliding_window")) { print_label("window"); printf("%lld tokens\n", int_of(report, "sliding_window")); }
    if (linear) {
        print_label("linear");
        printf("%lld key heads of %lld, %lld value heads of %lld, convolution over %lld\n", int_of(linear, "key_heads"), int_of(linear, "key_dim"), int_of(linear, "value_heads"),
               int_of(linear, "value_dim"), int_of(linear, "conv_width"));
    }
    if (experts) {
        print_label("experts");
        printf("%lld of %lld a token, MLP %lld", int_of(experts, "per_token"), int_of(experts, "count"), int_of(experts, "intermediate_size"));
        if (int_of(experts, "shared_intermediate_size")) printf(", shared one %lld", int_of(experts, "shared_intermediate_size"));
        printf("\n");
    }
    print_label("vocabulary");
    printf("%lld, %s head%s\n", int_of(report, "vocabulary"), json_is_true(json_object_get(report, "tied_head")) ? "tied" : "untied",
           json_is_true(json_object_get(report, "attention_bias")) ? ", attention with biases" : "");
    print_label("context");
    printf("%lld tokens\n", int_of(report, "context"));
}

static void print_ropes(json_t *report)
{
    const char *kind;
    json_t *form;
    json_object_foreach(json_object_get(report, "rope"), kind, form) {
        print_label("rope");
        printf("%s layers: %s, theta %.10g, %lld of %lld values of a head", strcmp(kind, "full_attention") == 0 ? "full" : "sliding", text_of(form, "type"), number_of(form, "theta"),
               int_of(form, "rotated"), int_of(report, "head_dim"));
        if (json_object_get(form, "factor")) printf(", factor %.6g", number_of(form, "factor"));
        if (json_object_get(form, "original_context")) printf(" over %.10g tokens", number_of(form, "original_context"));
        if (json_object_get(form, "attention_factor")) printf(", attention times %.6g", number_of(form, "attention_factor"));
        printf("\n");
    }
}

static void print_weights(const json_t *report)
{
    const json_t *weights = json_object_get(report, "weights"), *gguf = json_object_get(report, "gguf");
    const char *name;
    json_t *entry;
    if (!weights) return;
    size_t n_files = json_object_size(json_object_get(weights, "files"));
    print_label("weights");
    print_count(number_of(weights, "parameters"));
    printf(" parameters, ");
    print_bytes(number_of(weights, "bytes"));
    printf(" in %zu file%s, %lld tensors\n", n_files, n_files == 1 ? "" : "s", int_of(weights, "tensors"));
    json_object_foreach(json_object_get(weights, "dtypes"), name, entry) {
        print_label("");
        printf("%-8s ", name);
        print_count(number_of(entry, "parameters"));
        printf(" parameters, ");
        print_bytes(number_of(entry, "bytes"));
        printf(", %lld tensors\n", int_of(entry, "tensors"));
    }
    if (gguf) {
        print_label("GGUF");
        printf("version %lld, %s%s%lld keys\n", int_of(gguf, "version"), text_of(gguf, "file_type") ? text_of(gguf, "file_type") : "", text_of(gguf, "file_type") && *text_of(gguf, "file_type") ? ", " : "", int_of(gguf, "keys"));
    }
    print_label("fingerprint");
    printf("%s\n", text_of(report, "fingerprint") ? text_of(report, "fingerprint") : "none");
}

static void print_tokenizer(const json_t *report)
{
    static const char *const parts[][2] = { { "normalizer", "normalizer" }, { "pre_tokenizer", "pre-tokenizer" }, { "post_processor", "post-processor" } };
    const json_t *t = json_object_get(report, "tokenizer"), *templates = json_object_get(report, "chat_templates");
    json_t *named;
    const char *name, *separator = "";
    print_label("tokenizer");
    if (!json_is_object(t)) printf("none\n");
    else {
        printf("%s%s", text_of(t, "model") ? text_of(t, "model") : "?", json_is_true(json_object_get(t, "byte_fallback")) ? " with byte fallback" : "");
        if (json_object_get(t, "vocabulary")) printf(", %lld ids", int_of(t, "vocabulary"));
        printf(", %lld added tokens, %lld of them special\n", int_of(t, "added_tokens"), int_of(t, "special_tokens"));
        print_label("");
        for (int i = 0; i < 3; i++) printf("%s%s %s", i ? "; " : "", parts[i][1], text_of(t, parts[i][0]) ? text_of(t, parts[i][0]) : "none");
        printf("\n");
        if (json_object_size(json_object_get(t, "named_tokens")) > 0) print_label("");
        json_object_foreach(json_object_get(t, "named_tokens"), name, named) { printf("%s%s %s", separator, name, json_string_value(named)); separator = ", "; }
        if (separator[0]) printf("\n");
    }
    print_label("templates");
    print_list(templates);
    printf("%s\n", json_array_size(templates) ? "" : "none");
}

static void print_generation(const json_t *report)
{
    const json_t *g = json_object_get(report, "generation");
    if (!g) return;
    print_label("generation");
    printf("temperature %.6g, top_p %.6g, top_k %lld, min_p %.6g, repetition_penalty %.6g; end ids ", number_of(g, "temperature"), number_of(g, "top_p"), int_of(g, "top_k"),
           number_of(g, "min_p"), number_of(g, "repetition_penalty"));
    print_list(json_object_get(g, "end_ids"));
    printf("%s\n", json_array_size(json_object_get(g, "end_ids")) ? "" : "none");
}

static void print_memory(const json_t *report)
{
    static const char *const rows[][2] = { { "weights_mapped", "weights, mapped" }, { "weights_expanded", "weights, made" }, { "tables", "tables" }, { "activations", "activations" },
                                           { "logits", "logits" }, { "kv", "KV" }, { "states", "states" }, { "total", "total" } };
    const json_t *memory = json_object_get(report, "memory");
    if (!memory) return;
    print_label("memory");
    printf("of %lld sequences of %lld tokens\n", int_of(memory, "sequences"), int_of(memory, "tokens_each"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double bytes = number_of(memory, rows[i][0]), each = i == 5 ? number_of(memory, "kv_each") : i == 6 ? number_of(memory, "state_each") : 0.0;
        if (bytes == 0.0) continue;
        print_label("");
        printf("%-17s", rows[i][1]);
        print_bytes(bytes);
        if (each > 0.0) { printf(" ("); print_bytes(each); printf(" a sequence)"); }
        printf("\n");
    }
}

/* Every string of the report may be one of the model's files'. */
static void make_printable(json_t *value)
{
    const char *key;
    json_t *child;
    size_t i;
    char *text = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
    if (text) json_string_set(value, printable(text));
    free(text);
    json_object_foreach(value, key, child) make_printable(child);
    json_array_foreach(value, i, child) make_printable(child);
}

/* The fields of a config that the engine does not take, as they stand there. */
static void print_raw_config(const json_t *report)
{
    const char *field;
    json_t *value;
    json_object_foreach(json_object_get(report, "config"), field, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (text) printf("  %-24s %s\n", field, text);
        free(text);
    }
}

static void print_report(const char *path, json_t *report)
{
    size_t i;
    json_t *sentence;
    make_printable(report);
    const char *architecture = text_of(report, "architecture");
    printf("%s: %s, %s\n", path, architecture ? architecture : "unknown architecture", json_is_true(json_object_get(report, "supported")) ? "supported" : "not supported");
    json_array_foreach(json_object_get(report, "problems"), i, sentence) printf("  not supported: %s\n", json_string_value(sentence));
    json_array_foreach(json_object_get(report, "notes"), i, sentence) printf("  note: %s\n", json_string_value(sentence));
    if (architecture) {
        print_layers(report);
        print_sizes(report);
        print_ropes(report);
    } else print_raw_config(report);
    print_weights(report);
    print_tokenizer(report);
    print_generation(report);
    print_memory(report);
}

int cmd_inspect(int argc, char **argv)
{
    uint64_t n_sequences = 64, context = 0;
    bool as_json = false;
    const flag flags[] = {
        { "--sequences", FLAG_NUMBER, "N", "sequences in memory at once (default 64, a worker's batch)", &n_sequences, 1, 4096, false },
        { "--context", FLAG_NUMBER, "L", "tokens of each, prompt and completion (default 4096, or the model's context where that is less)", &context, 1, INT32_MAX, false },
        { "--json", FLAG_SWITCH, "", "print the report as one JSON object", &as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "PATH", "Show what a model directory or .gguf file holds, without loading it: architecture, layers, sizes, dtypes, tokenizer, chat templates, generation defaults, the fingerprint that jobs\n"
        "are pinned to, and the memory of N sequences of L tokens. What this engine does not support is named with the reason, and the command ends with 3.",
        "tokenfleet inspect demo --sequences 16 --context 2048", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;

    char sequences_text[24], context_text[24], *text = NULL;
    fl_err err = { 0 };
    snprintf(sequences_text, sizeof sequences_text, "%llu", (unsigned long long)n_sequences);
    snprintf(context_text, sizeof context_text, "%llu", (unsigned long long)context);
    fl_status st = engine_call((const char *const[]){ NAME, operands[0], sequences_text, context_text, NULL }, &text, &err);
    if (st != FL_OK) return flags_end(st == FL_INVALID ? ENDED_USAGE : ENDED_ENVIRONMENT, NAME, "%s", err.text);
    json_t *report = json_loads(text, JSON_ALLOW_NUL, NULL);
    bool is_supported = json_is_true(json_object_get(report, "supported"));
    if (!report) status = flags_end(ENDED_ENVIRONMENT, NAME, "the engine's answer is not JSON; install tokenfleet and tokenfleet-worker of one release");
    else if (as_json) fputs(text, stdout);
    else print_report(operands[0], report);
    if (report) status = is_supported ? ENDED_WELL : ENDED_ENVIRONMENT;
    json_decref(report);
    free(text);
    return status;
}
