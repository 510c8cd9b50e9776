/* demo_path.c - see demo_path.h. */
#include "proto/demo_path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static fl_status copy_path(const char *path, char *out, size_t capacity, fl_err *err)
{
    size_t n = strlen(path);
    if (n >= capacity) return fl_fail(err, FL_INVALID, "model: the path is longer than %zu bytes: %.200s...", capacity - 1, path);
    memcpy(out, path, n + 1);
    return FL_OK;
}

fl_status fl_model_path(const char *model, char *out, size_t capacity, fl_err *err)
{
    static const char *const below[] = {"/../share/tokenfleet/demo_model", "/../../../ops/demo_model"};
    char exe[PATH_MAX], config[PATH_MAX + 64], real[PATH_MAX];
    if (strcmp(model, FL_DEMO_MODEL) != 0) return copy_path(model, out, capacity, err);
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0) return fl_fail_errno(err, errno, "model: read /proc/self/exe to find the demo model");
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        snprintf(config, sizeof config, "%s%s/config.json", exe, below[i]);
        if (!realpath(config, real)) continue;
        *strrchr(real, '/') = '\0';
        return copy_path(real, out, capacity, err);
    }
    return fl_fail(err, FL_NOT_FOUND, "model: the demo model is in neither %s%s nor %s%s: install tokenfleet whole, or give --model a path",
                   exe, below[0], exe, below[1]);
}
