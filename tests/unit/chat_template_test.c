/* The chat template helper: what transformers renders, and what happens to rows that hang, hunger, raise or lose their helper. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/chat_template.h"

static char folder[] = "/tmp/chat_template_test.XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static int make_folder(void **state) { (void)state; return mkdtemp(folder) ? 0 : -1; }
static int remove_folder(void **state)
{
    (void)state;
    remove_file("chat_template.jinja");
    remove_file("tokenizer_config.json");
    return rmdir(folder);
}

static chat_template *open_folder(void)
{
    chat_template *t = NULL;
    fl_err err = { 0 };
    if (chat_template_open(&t, folder, &err) != FL_OK) {
        if (strstr(err.text, "TOKENFLEET_PYTHON")) { print_message("skipped: %s\n", err.text); skip(); }
        fail_msg("%s", err.text);
    }
    return t;
}

static chat_template *open_source(const char *source)
{
    write_file("chat_template.jinja", source);
    return open_folder();
}

/* Render and compare; the sentence of a failure is the text after "!". */
static void expect_at(chat_template *t, const char *request, uint32_t now_s, const char *want)
{
    char *text = NULL;
    size_t n = 0;
    fl_err err = { 0 };
    fl_status st = chat_template_render(t, request, strlen(request), now_s, &text, &n, &err);
    if (want[0] == '!') {
        assert_int_equal(st, FL_INVALID);
        assert_string_equal(err.text, want + 1);
        return;
    }
    if (st != FL_OK) fail_msg("%s", err.text);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(text));
    free(text);
}
static void expect(chat_template *t, const char *request, const char *want) { expect_at(t, request, 0, want); }

static void expect_source(const char *source, const char *request, const char *want)
{
    chat_template *t = open_source(source);
    expect(t, request, want);
    chat_template_close(t);
}

#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"

static void demo_template_is_rendered(void **state)
{
    (void)state;
    chat_template *t = NULL;
    fl_err err = { 0 };
    if (chat_template_open(&t, OPS_DIR "/demo_model", &err) != FL_OK) {
        if (strstr(err.text, "TOKENFLEET_PYTHON")) { print_message("skipped: %s\n", err.text); skip(); }
        fail_msg("%s", err.text);
    }
    expect(t, HELLO, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
    expect(t, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"\\u00e9\\ud83d\\ude00\"}],\"add_generation_prompt\":false}",
           "<|im_start|>system\na<|im_end|>\n<|im_start|>user\n\xC3\xA9\xF0\x9F\x98\x80<|im_end|>\n");
    chat_template_close(t);
}

static void model_without_a_template_is_not_found(void **state)
{
    (void)state;
    chat_template *t = NULL;
    fl_err err = { 0 };
    remove_file("chat_template.jinja");
    remove_file("tokenizer_config.json");
    assert_int_equal(chat_template_open(&t, folder, &err), FL_NOT_FOUND);
    write_file("tokenizer_config.json", "{\"eos_token\":\"x\"}");
    assert_int_equal(chat_template_open(&t, folder, &err), FL_NOT_FOUND);
    write_file("tokenizer_config.json", "{\"chat_template\":");
    assert_int_equal(chat_template_open(&t, folder, &err), FL_CORRUPT);
    write_file("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}");
    assert_int_equal(chat_template_open(&t, folder, &err), FL_UNSUPPORTED);
    assert_null(t);
    remove_file("tokenizer_config.json");
}

static void missing_python_or_jinja_is_said(void **state)
{
    (void)state;
    chat_template *t = NULL;
    fl_err err = { 0 };
    write_file("chat_template.jinja", "x");
    setenv("TOKENFLEET_PYTHON", "/nowhere/python3", 1);
    assert_int_equal(chat_template_open(&t, folder, &err), FL_IO);
    assert_non_null(strstr(err.text, "/nowhere/python3"));
    assert_non_null(strstr(err.text, "python3-jinja2"));
    setenv("TOKENFLEET_PYTHON", "/bin/true", 1);
    assert_int_equal(chat_template_open(&t, folder, &err), FL_IO);
    assert_non_null(strstr(err.text, "ended at once"));
    char script[128];                                    /* what answers with nonsense is the machine's fault, too, never the row's */
    snprintf(script, sizeof script, "%s/nonsense", folder);
    write_file("nonsense", "#!/bin/sh\nprintf '\\0\\0\\0\\0' >&0\n");
    chmod(script, 0700);
    setenv("TOKENFLEET_PYTHON", script, 1);
    assert_int_equal(chat_template_open(&t, folder, &err), FL_IO);
    remove_file("nonsense");
    unsetenv("TOKENFLEET_PYTHON");
    assert_null(t);
}

static void special_tokens_and_named_templates_come_from_the_config(void **state)
{
    (void)state;
    remove_file("chat_template.jinja");
    write_file("tokenizer_config.json", "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"chat_template\":["
               "{\"name\":\"default\",\"template\":\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}\"},"
               "{\"name\":\"tool_use\",\"template\":\"{{ tools | tojson }}\"}]}");
    chat_template *t = open_folder();
    expect(t, HELLO, "<s>hello</s>");
    expect(t, "{\"messages\":[],\"tools\":[{\"n\":\"<\\u00e9>\"}]}", "[{\"n\": \"<\xC3\xA9>\"}]");
    chat_template_close(t);
    remove_file("tokenizer_config.json");
}

static void templates_in_files_replace_those_of_the_config(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"config\"}]}");
    write_file("additional_chat_templates/tool_use.jinja", "tools {{ tools | length }}");
    write_file("additional_chat_templates/README.md", "no template");
    chat_template *t = NULL;
    fl_err err = { 0 };
    remove_file("chat_template.jinja");
    assert_int_equal(chat_template_open(&t, folder, &err), FL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "`default`"));
    t = open_source("default {{ chat_template }}");
    expect(t, HELLO, "default ");
    expect(t, "{\"messages\":[],\"tools\":[{\"n\":1}]}", "tools 1");
    expect(t, "{\"messages\":[],\"tools\":[{\"n\":1}],\"chat_template_kwargs\":{\"chat_template\":\"default\"}}", "default ");
    expect(t, "{\"messages\":[],\"chat_template_kwargs\":{\"chat_template\":\"rag\"}}",
           "!chat template: LookupError: chat_template_kwargs.chat_template names none of the model's templates: default, tool_use");
    chat_template_close(t);
    remove_file("additional_chat_templates/tool_use.jinja");
    remove_file("additional_chat_templates/README.md");
    remove_file("tokenizer_config.json");
    assert_int_equal(rmdir(path), 0);
}

static void environment_is_that_of_transformers(void **state)
{
    (void)state;
    expect_source("{% if true %}\n  {% set x = 1 %}\nA\n{% endif %}\nB\n", HELLO, "A\nB");
    expect_source("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", HELLO, "013");
    expect_source("{% generation %}a{{ messages[0].role }}{% endgeneration %}", HELLO, "auser");
    expect_source("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ missing }}|", HELLO, "True True True |");
    expect_source("{{ enable_thinking }} {{ add_generation_prompt }}", "{\"messages\":[],\"chat_template_kwargs\":{\"enable_thinking\":false,\"add_generation_prompt\":false}}", "False False");
    expect_source("{{ {'b':1,'a':'<'} | tojson }} {{ '<&>' }}", HELLO, "{\"b\": 1, \"a\": \"<\"} <&>");
    expect_source("{{ messages.append(1) }}", HELLO, "!chat template: SecurityError: access to attribute 'append' of 'list' object is unsafe.");
    expect_source("{{ ''.__class__.__mro__ }}", HELLO, "!chat template: SecurityError: access to attribute '__class__' of 'str' object is unsafe.");
    chat_template *t = open_source("{{ strftime_now('%d %b %Y %H:%M') }}");
    expect_at(t, HELLO, 1700000000, "14 Nov 2023 22:13");
    expect_at(t, HELLO, 0, "01 Jan 1970 00:00");
    chat_template_close(t);
}

#define PARTS "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}"

/* The promise of equal bytes holds for a template that picks a greeting, too: a row's text depends on no other row and no other process. */
static void random_choices_are_the_same_for_every_row_and_process(void **state)
{
    (void)state;
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    char *first = NULL;
    for (int process = 0; process < 2; process++) {
        chat_template *t = open_source("{{ range(90000) | random }} {{ lipsum(n=1, html=False) }}");
        for (int row = 0; row < 2; row++) {
            char *text = NULL;
            size_t n = 0;
            fl_err err = { 0 };
            if (chat_template_render(t, request, strlen(request), 0, &text, &n, &err) != FL_OK) fail_msg("%s", err.text);
            if (first) { assert_string_equal(text, first); free(text); }
            else first = text;
        }
        chat_template_close(t);
    }
    free(first);
}

static void text_parts_stay_a_list_where_the_template_iterates_them(void **state)
{
    (void)state;
    expect_source("{% for m in messages %}[{{ m.content }}]{% endfor %}", PARTS, "[a\nb]");
    expect_source("{% for m in messages %}{% for line in m.content.split('\\n') %}<{{ line }}>{% endfor %}{% endfor %}", PARTS, "<a><b>");
    expect_source("{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}", PARTS, "(a)(b)");
    expect_source("{% for m in messages %}{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}({{ p.text }}){% endfor %}{% endfor %}", PARTS, "(a)(b)");
    expect_source("{% for m in messages %}{% set c = m['content'] %}{% if c is string %}{{ c }}{% else %}{% for p in c %}({{ p['text'] }}){% endfor %}{% endif %}{% endfor %}", PARTS, "(a)(b)");
    expect_source("{% macro show(c, x) %}{% for p in c %}({{ p.text }}{{ x }}){% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content, 1) }}{% endfor %}", PARTS, "(a1)(b1)");
    expect_source("{% for m in messages %}{% for p in m.content %}{{ p }}.{% endfor %}{% endfor %}", HELLO, "h.e.l.l.o.");
}

/* OpenAI's rows carry the arguments of a tool call as a JSON string. A template that takes it gets it; one that walks over an object gets the object. */
static void arguments_of_tool_calls_are_objects_for_templates_that_need_them(void **state)
{
    (void)state;
#define CALL(arguments) "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]}]}"
    static const char walks[] = "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}";
    expect_source(walks, CALL("{\"a\":1,\"b\":\"x\"}"), "a=1;b=x;");
    expect_source(walks, CALL("\"{\\\"a\\\":1,\\\"b\\\":\\\"x\\\"}\""), "a=1;b=x;");
    expect_source("{{ messages[0].tool_calls[0].function.arguments }}", CALL("\"{\\\"a\\\": 1}\""), "{\"a\": 1}");
    chat_template *t = open_source("{{ raise_exception('no') if messages[0].tool_calls[0].function.arguments is string else raise_exception('object') }}");
    expect(t, CALL("\"{}\""), "!chat template: TemplateError: no");      /* the sentence is about what the row says */
    expect(t, CALL("\"[1]\""), "!chat template: TemplateError: no");
    chat_template_close(t);
#undef CALL
}

static void raising_template_is_a_row_error_and_the_next_row_works(void **state)
{
    (void)state;
    chat_template *t = open_source("{% if messages[0].role != 'user' %}{{ raise_exception('roles must\nalternate') }}{% endif %}ok");
    const char *bad = "{\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}";
    expect(t, HELLO, "ok");
    expect(t, bad, "!chat template: TemplateError: roles must alternate");
    expect(t, HELLO, "ok");
    expect(t, bad, "!chat template: TemplateError: roles must alternate");
    chat_template_close(t);
    expect_source("{{ messages[0].content.nothing.more }}", HELLO, "!chat template: UndefinedError: 'str object' has no attribute 'nothing'");
    expect_source("{{ raise_exception(namespace) }}", HELLO, "!chat template: TemplateError: <class 'jinja2.utils.Namespace'>");
    expect_source("{% for x in %}", HELLO, "!chat template: TemplateSyntaxError: Expected an expression, got 'end of statement block'");
}

/* Three renders of 5 s each; under a sanitizer, which does not see the helper, one. */
static void hanging_template_is_killed_with_one_sentence(void **state)
{
    (void)state;
    chat_template *t = open_source("{% if messages[0].content == 'hang' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok");
    const char *hang = "{\"messages\":[{\"role\":\"user\",\"content\":\"hang\"}]}";
    expect(t, HELLO, "ok");
    expect(t, hang, "!chat template: rendering took more than 5 s");
    expect(t, HELLO, "ok");
    chat_template_close(t);
#ifndef __SANITIZE_ADDRESS__
    expect_source("{{ (messages | length + 8) ** (9 ** 9) }}", HELLO, "!chat template: rendering took more than 5 s");     /* one operation that never returns to Python */
    expect_source("{{ 9 ** (9 ** 9) }}", HELLO, "!chat template: rendering took more than 5 s");     /* computed while the template is compiled */
#endif
}

static void hungry_template_is_stopped_with_one_sentence(void **state)
{
    (void)state;
    chat_template *t = open_source("{% if messages[0].content == 'eat' %}{{ ('x' * 100000000) * 10 }}{% endif %}ok");
    const char *eat = "{\"messages\":[{\"role\":\"user\",\"content\":\"eat\"}]}";
    expect(t, HELLO, "ok");
    expect(t, eat, "!chat template: rendering took more than 512 MB");
    expect(t, HELLO, "ok");
    expect(t, eat, "!chat template: rendering took more than 512 MB");
    chat_template_close(t);
    expect_source("{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = ns.a + [ns.a, 'y' * 9999 * i] %}{% endfor %}", HELLO, "!chat template: rendering took more than 512 MB");
}

static void endless_recursion_is_a_row_error(void **state)
{
    (void)state;
    chat_template *t = open_source("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    expect(t, HELLO, "!chat template: RecursionError: it calls itself without end");
    chat_template_close(t);
}

/* The pids of our children, from /proc. */
static int children(pid_t *out, int capacity)
{
    int n = 0;
    DIR *d = opendir("/proc");
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        int pid = atoi(e->d_name), parent = 0;
        if (pid <= 0) continue;
        char path[64], line[512];
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        size_t got = fread(line, 1, sizeof line - 1, f);
        fclose(f);
        line[got] = '\0';
        const char *after = strrchr(line, ')');
        if (after && sscanf(after + 2, "%*c %d", &parent) == 1 && parent == (int)getpid() && n < capacity) out[n++] = pid;
    }
    if (d) closedir(d);
    return n;
}

static void killed_helper_is_replaced(void **state)
{
    (void)state;
    chat_template *t = open_source("ok");
    pid_t pids[4];
    expect(t, HELLO, "ok");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(children(pids, 4), 1);
        kill(pids[0], SIGKILL);
        expect(t, HELLO, "ok");
    }
    chat_template_close(t);
    assert_int_equal(children(pids, 4), 0);
}

static int open_descriptors(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void helper_holds_no_descriptor_but_its_own(void **state)
{
    (void)state;
    int leak = dup(0);                                   /* not close-on-exec */
    int before = open_descriptors(getpid());
    chat_template *t = open_source("ok");
    pid_t pids[4];
    assert_int_equal(children(pids, 4), 1);
    assert_int_equal(open_descriptors(pids[0]), 3);
    assert_int_equal(open_descriptors(getpid()), before + 1);
    chat_template_close(t);
    assert_int_equal(open_descriptors(getpid()), before);
    close(leak);
}

static void large_chats_pass(void **state)
{
    (void)state;
    static const char head[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]}";
    const size_t n = 3000000;
    char *request = malloc(n + sizeof head + sizeof tail);
    assert_non_null(request);
    memcpy(request, head, sizeof head - 1);
    memset(request + sizeof head - 1, 'x', n);
    memcpy(request + sizeof head - 1 + n, tail, sizeof tail);
    chat_template *t = open_source("{{ messages[0].content }}!");
    char *text = NULL;
    size_t got = 0;
    fl_err err = { 0 };
    if (chat_template_render(t, request, strlen(request), 0, &text, &got, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(got, n + 1);
    free(text);
    free(request);
    chat_template_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_template_is_rendered),
        cmocka_unit_test(model_without_a_template_is_not_found),
        cmocka_unit_test(missing_python_or_jinja_is_said),
        cmocka_unit_test(special_tokens_and_named_templates_come_from_the_config),
        cmocka_unit_test(templates_in_files_replace_those_of_the_config),
        cmocka_unit_test(environment_is_that_of_transformers),
        cmocka_unit_test(random_choices_are_the_same_for_every_row_and_process),
        cmocka_unit_test(text_parts_stay_a_list_where_the_template_iterates_them),
        cmocka_unit_test(arguments_of_tool_calls_are_objects_for_templates_that_need_them),
        cmocka_unit_test(raising_template_is_a_row_error_and_the_next_row_works),
        cmocka_unit_test(hanging_template_is_killed_with_one_sentence),
        cmocka_unit_test(hungry_template_is_stopped_with_one_sentence),
        cmocka_unit_test(endless_recursion_is_a_row_error),
        cmocka_unit_test(killed_helper_is_replaced),
        cmocka_unit_test(helper_holds_no_descriptor_but_its_own),
        cmocka_unit_test(large_chats_pass),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
