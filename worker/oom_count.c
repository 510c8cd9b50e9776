#include "worker/oom_count.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int64_t read_field(const char *path)
{
    char line[256];
    long long count = -1, n;
    FILE *file = fopen(path, "re");
    while (file && count < 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "oom_kill %lld", &n) == 1) count = n;
    }
    if (file) fclose(file);
    return count;
}

/* A line is NUMBER:CONTROLLERS:PATH; v2's is 0::PATH. A path that is not there is that of a namespace we are outside of: its root is tried instead. */
int64_t oom_count_read_at(const char *membership, const char *root)
{
    char line[PATH_MAX], path[2 * PATH_MAX];
    int64_t count = -1;
    FILE *file = fopen(membership, "re");
    while (file && count < 0 && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        bool is_v1 = strcmp(controllers + 1, "memory") == 0;
        if (!is_v1 && controllers[1] != '\0') continue;
        for (int i = 0; i < 2 && count < 0; i++) {
            snprintf(path, sizeof path, "%s%s%s/%s", root, is_v1 ? "/memory" : "", i == 0 ? group : "", is_v1 ? "memory.oom_control" : "memory.events");
            count = read_field(path);
        }
    }
    if (file) fclose(file);
    return count;
}

int64_t oom_count_read(void)
{
    return oom_count_read_at("/proc/self/cgroup", "/sys/fs/cgroup");
}
