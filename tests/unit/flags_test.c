#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "coordinator/flags.h"

typedef struct { const char *out, *device; uint64_t workers, expires; bool force; flag_list set; const char *operands[FLAGS_OPERANDS_MAX]; int n_operands; } parsed;

static int parse(parsed *p, int argc, const char **argv)
{
    *p = (parsed){ .device = "auto", .workers = 1 };
    const flag table[] = {
        { "--out", FLAG_TEXT, "PATH", "where", &p->out, 0, 0, false },
        { "--device", FLAG_CHOICE, "auto|cpu|cuda", "what", &p->device, 0, 0, false },
        { "--workers", FLAG_NUMBER, "N|auto", "how many", &p->workers, 1, 256, false },
        { "--force", FLAG_SWITCH, "", "yes", &p->force, 0, 0, false },
        { "--expires", FLAG_DURATION, "TIME", "when", &p->expires, 1, 864000, false },
        { "--set", FLAG_LIST, "KEY=VALUE", "fields", &p->set, 0, 0, false },
    };
    const flag_command command = { "try", "JOB", "Try.", "tokenfleet try job", 1, 1 };
    return flags_parse(&command, table, 6, argc, (char **)argv, p->operands, &p->n_operands);
}
#define PARSE(p, ...) parse(p, (int)(sizeof (const char *[]){ __VA_ARGS__ } / sizeof(char *)), (const char *[]){ __VA_ARGS__ })

static void values_come_behind_a_space_or_an_equals_sign(void **unused)
{
    (void)unused;
    parsed p;
    assert_int_equal(PARSE(&p, "--out", "a", "job", "--workers=3", "--force", "--set", "x=1", "--set=y=2", "--device", "cpu"), -1);
    assert_string_equal(p.out, "a");
    assert_string_equal(p.operands[0], "job");
    assert_string_equal(p.device, "cpu");
    assert_int_equal(p.workers, 3);
    assert_true(p.force);
    assert_int_equal(p.set.n, 2);
    assert_string_equal(p.set.v[1], "y=2");
}

static void a_word_may_stand_for_a_number(void **unused)
{
    (void)unused;
    parsed p;
    assert_int_equal(PARSE(&p, "job", "--workers", "auto"), -1);
    assert_int_equal(p.workers, 0);
    assert_int_equal(PARSE(&p, "job", "--workers", "N"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "N|auto"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "auto "), ENDED_USAGE);
}

static void a_duration_is_seconds_or_has_a_unit(void **unused)
{
    (void)unused;
    parsed p;
    static const struct { const char *text; uint64_t seconds; } good[] = { { "90", 90 }, { "1s", 1 }, { "15m", 900 }, { "2h", 7200 }, { "10d", 864000 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(PARSE(&p, "job", "--expires", good[i].text), -1);
        assert_int_equal(p.expires, good[i].seconds);
    }
    static const char *const bad[] = { "0", "11d", "m", "1.5h", "-1", "1h30m", "1 h", "2w", "99999999999999999999d", "18446744073709551615d" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(PARSE(&p, "job", "--expires", bad[i]), ENDED_USAGE);
}

static void operands_may_look_like_flags_behind_two_dashes(void **unused)
{
    (void)unused;
    parsed p;
    assert_int_equal(PARSE(&p, "--", "--help"), -1);
    assert_string_equal(p.operands[0], "--help");
    assert_int_equal(PARSE(&p, "-"), -1);
    assert_string_equal(p.operands[0], "-");
}

static void mistakes_are_usage_errors(void **unused)
{
    (void)unused;
    parsed p;
    assert_int_equal(PARSE(&p, "job", "--nonsense", "1"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "-n", "1"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "many"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "0"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "257"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "-1"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--workers", "18446744073709551616"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--device", "tpu"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--device", "auto|cpu"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--out"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--out", "--force"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--out", ""), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--out", "a", "--out", "b"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "--force=yes"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "job", "other"), ENDED_USAGE);
    assert_int_equal(PARSE(&p, "--force"), ENDED_USAGE);
}

static void help_ends_well_whatever_else_is_missing(void **unused)
{
    (void)unused;
    parsed p;
    assert_int_equal(PARSE(&p, "--help"), ENDED_WELL);
    assert_int_equal(PARSE(&p, "--nonsense", "--help"), ENDED_WELL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_behind_a_space_or_an_equals_sign),
        cmocka_unit_test(a_word_may_stand_for_a_number),
        cmocka_unit_test(a_duration_is_seconds_or_has_a_unit),
        cmocka_unit_test(operands_may_look_like_flags_behind_two_dashes),
        cmocka_unit_test(mistakes_are_usage_errors),
        cmocka_unit_test(help_ends_well_whatever_else_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
