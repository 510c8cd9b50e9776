#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/code_extract.h"

static void expect(const char *text, const char *entry_point, bool is_program, const char *completion)
{
    char *out = NULL;
    size_t n = 0;
    fl_err err;
    assert_int_equal(fl_code_from_chat(text, strlen(text), entry_point, is_program, &out, &n, &err), FL_OK);
    assert_string_equal(out, completion);
    assert_int_equal(n, strlen(completion));
    free(out);
}

#define SCRIPT FL_SCRIPT_MARKER "\n"

static void a_block_that_defines_the_entry_point_is_a_program(void **state)
{
    (void)state;
    expect("Sure:\n```python\nimport math\ndef f(x):\n    return x\n```\nDone.", "f", false, SCRIPT "import math\ndef f(x):\n    return x\n");
    expect("```python\nf = lambda x: x\n```", "f", false, SCRIPT "f = lambda x: x\n");
    expect("```py\nasync def f(x): pass\n```", "f", false, SCRIPT "async def f(x): pass\n");
    expect("```Python3\nclass f(object):\n    pass\n```", "f", false, SCRIPT "class f(object):\n    pass\n");
    expect("def f(x):\n    return 1\n", "f", false, SCRIPT "def f(x):\n    return 1\n");
}

static void the_last_python_block_counts(void **state)
{
    (void)state;
    expect("```python\ndef f(): return 1\n```\n```python\ndef f(): return 2\n```\n```\nf() == 2\n```\n", "f", false, SCRIPT "def f(): return 2\n");
    expect("```\ndef f(): return 1\n```\nthen\n~~~\ndef f(): return 2\n~~~\n", "f", false, SCRIPT "def f(): return 2\n");
    expect("```bash\npip install x\n```\n```python\ndef f(): return 3", "f", false, SCRIPT "def f(): return 3");       /* not closed */
    expect("````python\ndef f():\n    s = '''\n```\n'''\n````\n", "f", false, SCRIPT "def f():\n    s = '''\n```\n'''\n");
    expect("use ```def f(): return 9``` so\n```python\r\ndef f(): return 1\r\n```\r\n", "f", false, SCRIPT "def f(): return 1\r\n");
}

static void another_functions_body_is_the_completion(void **state)
{
    (void)state;
    expect("```python\nimport os\ndef g(a,\n      b):\n    x = 1\n\n    return x\nprint(g(1, 2))\n```", "f", false, "    x = 1\n\n    return x\n");
    expect("```python\n    return 7\n```", "f", false, "    return 7\n");
    expect("```python\nx = 1\n```", "f", false, "    pass\n");
    expect("I cannot do that.", "f", false, "    pass\n");
    expect("", "f", false, "    pass\n");
    expect("```python\nf == 1\nff = 2\ndef fg(): pass\n```", "f", false, "    pass\n");
}

static void a_task_without_a_prompt_takes_the_block_as_it_is(void **state)
{
    (void)state;
    expect("```python\ndef g(): pass\n```", "f", true, SCRIPT "def g(): pass\n");
}

static void the_marker_makes_a_program(void **state)
{
    (void)state;
    const char *code;
    size_t n;
    bool is_script;
    static const char whole[] = SCRIPT "x = 1", crlf[] = FL_SCRIPT_MARKER "\r\nx", longer[] = FL_SCRIPT_MARKER "#\nx", only[] = FL_SCRIPT_MARKER;
    fl_code_of(whole, strlen(whole), &code, &n, &is_script);
    assert_true(is_script && n == 5 && memcmp(code, "x = 1", 5) == 0);
    fl_code_of(crlf, strlen(crlf), &code, &n, &is_script);
    assert_true(is_script && n == 1 && *code == 'x');
    fl_code_of(longer, strlen(longer), &code, &n, &is_script);
    assert_true(!is_script && code == longer && n == strlen(longer));
    fl_code_of(only, strlen(only), &code, &n, &is_script);
    assert_true(is_script && n == 0);
    fl_code_of("", 0, &code, &n, &is_script);
    assert_true(!is_script && n == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_defines_the_entry_point_is_a_program),
        cmocka_unit_test(the_last_python_block_counts),
        cmocka_unit_test(another_functions_body_is_the_completion),
        cmocka_unit_test(a_task_without_a_prompt_takes_the_block_as_it_is),
        cmocka_unit_test(the_marker_makes_a_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
