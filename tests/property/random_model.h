/* random_model.h - a model of a few layers with random weights, in a folder of its own that holds its config alone: for sizes that no reference model has. */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct { char dir[40], path[64], model[64]; } random_model;      /* model: what an engine opens */

static random_model random_model_make(const char *config)
{
    random_model m = { .dir = "/tmp/random_model.XXXXXX" };
    assert_non_null(mkdtemp(m.dir));
    snprintf(m.path, sizeof m.path, "%s/config.json", m.dir);
    snprintf(m.model, sizeof m.model, "random:5:%s", m.dir);
    FILE *file = fopen(m.path, "we");
    assert_non_null(file);
    assert_true(fputs(config, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return m;
}

static void random_model_drop(random_model *m)
{
    unlink(m->path);
    rmdir(m->dir);
}

#endif
