#include "coordinator/flags.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/printable.h"

int flags_end(int status, const char *command, const char *format, ...)
{
    char text[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "tokenfleet %s: %s\n", command, printable(text));
    return status;
}

static void print_help(const flag_command *command, const flag *flags, int n_flags)
{
    printf("usage: tokenfleet %s%s%s%s\n\n%s\n", command->name, command->operands[0] ? " " : "", command->operands, n_flags ? " [flags]" : "",
           command->summary);
    if (n_flags) printf("\nflags:\n");
    for (int i = 0; i < n_flags; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", flags[i].name, flags[i].kind == FLAG_SWITCH ? "" : " ", flags[i].kind == FLAG_SWITCH ? "" : flags[i].value);
        printf("  %-26s %s%s\n", left, flags[i].help, flags[i].required ? " (required)" : flags[i].kind == FLAG_LIST ? " (may be repeated)" : "");
    }
    printf("  %-26s %s\n", "--help", "show this and end");
    printf("\nexample:\n  %s\n", command->example);
}

static const flag *find_flag(const flag *flags, int n_flags, const char *name, size_t n_bytes)
{
    for (int i = 0; i < n_flags; i++) {
        if (strlen(flags[i].name) == n_bytes && memcmp(flags[i].name, name, n_bytes) == 0) return &flags[i];
    }
    return NULL;
}

/* 1 when `value` is one of the words of "a|b|c". */
static int is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *at = choices; *at; ) {
        size_t word = strcspn(at, "|");
        if (word == n && memcmp(at, value, n) == 0) return 1;
        at += word + (at[word] == '|');
    }
    return 0;
}

static int parse_number(const char *value, uint64_t *out)
{
    char *end = NULL;
    if (value[0] < '0' || value[0] > '9') return 0;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (errno || *end) return 0;
    *out = number;
    return 1;
}

/* "90", "90s", "15m", "2h" or "3d" in seconds. */
static int parse_duration(const char *value, uint64_t *out)
{
    static const struct { char unit; uint64_t seconds; } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
    char digits[24];
    size_t n = strlen(value);
    uint64_t factor = 1, number;
    for (size_t i = 0; n > 0 && i < sizeof units / sizeof *units; i++) {
        if (value[n - 1] != units[i].unit) continue;
        factor = units[i].seconds;
        n--;
        break;
    }
    if (n >= sizeof digits) return 0;
    memcpy(digits, value, n);
    digits[n] = '\0';
    if (!parse_number(digits, &number) || number > UINT64_MAX / factor) return 0;
    *out = number * factor;
    return 1;
}

static int store_value(const char *command, const flag *f, const char *value)
{
    switch (f->kind) {
    case FLAG_TEXT:
        if (!value[0]) return flags_end(ENDED_USAGE, command, "%s needs a value that is not empty: %s %s", f->name, f->name, f->value);
        *(const char **)f->out = value;
        return -1;
    case FLAG_CHOICE:
        if (!is_choice(f->value, value)) return flags_end(ENDED_USAGE, command, "%s takes one of %s, not '%s'", f->name, f->value, value);
        *(const char **)f->out = value;
        return -1;
    case FLAG_NUMBER: {
        uint64_t number = 0;
        const char *word = strchr(f->value, '|');
        const bool is_word = word && strcmp(value, word + 1) == 0;
        if (!is_word && (!parse_number(value, &number) || number < f->min || number > f->max)) {
            return flags_end(ENDED_USAGE, command, "%s takes a whole number from %" PRIu64 " to %" PRIu64 "%s%s, not '%s'", f->name, f->min, f->max, word ? " or " : "", word ? word + 1 : "", value);
        }
        *(uint64_t *)f->out = number;
        return -1;
    }
    case FLAG_DURATION: {
        uint64_t seconds = 0;
        if (!parse_duration(value, &seconds) || seconds < f->min || seconds > f->max) {
            return flags_end(ENDED_USAGE, command, "%s takes a time from %" PRIu64 " to %" PRIu64 " seconds, as in 90, 15m, 2h or 3d, not '%s'", f->name, f->min, f->max, value);
        }
        *(uint64_t *)f->out = seconds;
        return -1;
    }
    case FLAG_LIST: {
        flag_list *list = f->out;
        if (list->n == FLAGS_LIST_MAX) return flags_end(ENDED_USAGE, command, "%s may be given %d times at most", f->name, FLAGS_LIST_MAX);
        list->v[list->n++] = value;
        return -1;
    }
    case FLAG_SWITCH:
        break;
    }
    *(bool *)f->out = true;
    return -1;
}

/* Parse the flag at argv[*at] and its value; *at is moved to the last argument used. */
static int parse_flag(const flag_command *command, const flag *flags, int n_flags, int argc, char **argv, int *at, uint64_t *seen)
{
    const char *word = argv[*at], *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    size_t name_bytes = equals ? (size_t)(equals - word) : strlen(word);
    const flag *f = find_flag(flags, n_flags, word, name_bytes);
    if (!f) {
        return flags_end(ENDED_USAGE, command->name, "there is no flag %.*s; `tokenfleet %s --help` lists them", (int)name_bytes, word, command->name);
    }
    uint64_t bit = 1ull << (f - flags);
    if ((*seen & bit) && f->kind != FLAG_LIST) return flags_end(ENDED_USAGE, command->name, "%s is given twice", f->name);
    *seen |= bit;
    if (f->kind == FLAG_SWITCH) {
        if (equals) return flags_end(ENDED_USAGE, command->name, "%s takes no value", f->name);
        return store_value(command->name, f, "");
    }
    if (equals) return store_value(command->name, f, equals + 1);
    if (*at + 1 >= argc || strncmp(argv[*at + 1], "--", 2) == 0) {
        return flags_end(ENDED_USAGE, command->name, "%s needs a value: %s %s", f->name, f->name, f->value);
    }
    return store_value(command->name, f, argv[++*at]);
}

int flags_parse(const flag_command *command, const flag *flags, int n_flags, int argc, char **argv,
                const char *operands[FLAGS_OPERANDS_MAX], int *n_operands)
{
    uint64_t seen = 0;
    bool flags_over = false;
    *n_operands = 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command, flags, n_flags);
            return ENDED_WELL;
        }
    }
    for (int i = 0; i < argc; i++) {
        if (!flags_over && strcmp(argv[i], "--") == 0) {
            flags_over = true;
            continue;
        }
        if (!flags_over && argv[i][0] == '-' && argv[i][1]) {
            int status = parse_flag(command, flags, n_flags, argc, argv, &i, &seen);
            if (status >= 0) return status;
            continue;
        }
        if (*n_operands >= command->operands_max) {
            return flags_end(ENDED_USAGE, command->name, "'%s' is one argument too many; `tokenfleet %s --help` shows the form", argv[i], command->name);
        }
        operands[(*n_operands)++] = argv[i];
    }
    if (*n_operands < command->operands_min) {
        return flags_end(ENDED_USAGE, command->name, "%s is missing; `tokenfleet %s --help` shows the form", command->operands, command->name);
    }
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].required && !(seen & (1ull << i))) {
            return flags_end(ENDED_USAGE, command->name, "%s %s is missing; `tokenfleet %s --help` shows the form", flags[i].name, flags[i].value, command->name);
        }
    }
    return -1;
}
