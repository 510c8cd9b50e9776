#include "worker/sandbox_group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY, PIDS, CPU };

/* Write `text` to FOLDER/FILE; true when the kernel took it. */
static bool put(const char *folder, const char *file, const char *text)
{
    char path[300];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return false;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

static bool put_number(const char *folder, const char *file, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return put(folder, file, text);
}

/* The number that follows `key` (or stands alone, key "") in FOLDER/FILE. */
static bool get_number(const char *folder, const char *file, const char *key, uint64_t *number)
{
    char path[300], text[2048];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, length) == 0 && (length == 0 || line[length] == ' ')) { *number = strtoull(line + length, NULL, 10); return true; }
    }
    return false;
}

/* Our group of one controller ("" is version 2), as a folder below `root`; false when there is none. */
static bool own_folder(const char *root, const char *controller, char *folder, size_t n)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !found && fgets(line, sizeof line, file)) {       /* NUMBER:CONTROLLERS:PATH */
        char *listed = strchr(line, ':'), *path = listed ? strchr(listed + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        listed++;
        bool is_ours = *controller == '\0' && *listed == '\0';
        for (char *one = strtok(listed, ","); *controller && one; one = strtok(NULL, ",")) is_ours |= strcmp(one, controller) == 0;
        if (!is_ours) continue;
        struct stat info;
        found = snprintf(folder, n, "%s%s", root, path) < (int)n && stat(folder, &info) == 0;
        if (!found) found = snprintf(folder, n, "%s", root) < (int)n && stat(folder, &info) == 0;    /* inside a group namespace */
    }
    if (file) fclose(file);
    return found;
}

static bool make_part(char part[200], const char *own, const char *name)
{
    size_t n = strlen(own);
    while (n > 1 && own[n - 1] == '/') n--;
    if (snprintf(part, 200, "%.*s/%s", (int)n, own, name) < 200 && (mkdir(part, 0755) == 0 || errno == EEXIST)) return true;
    part[0] = '\0';
    return false;
}

static const char *const controllers[] = {[MEMORY] = "memory", [PIDS] = "pids", [CPU] = "cpuacct"};

static void open_version_1(sandbox_group *group, const char *name, uint64_t memory_bytes, uint32_t n_processes)
{
    for (int i = 0; i < SANDBOX_GROUP_PARTS; i++) {
        char root[64], own[200], file[300];
        snprintf(root, sizeof root, "/sys/fs/cgroup/%s", controllers[i]);
        if (!own_folder(root, controllers[i], own, sizeof own) || !make_part(group->path[i], own, name)) continue;
        snprintf(file, sizeof file, "%s/cgroup.procs", group->path[i]);
        bool is_usable = access(file, W_OK) == 0;
        if (i == MEMORY) is_usable = is_usable && put_number(group->path[i], "memory.limit_in_bytes", memory_bytes);
        if (i == PIDS) is_usable = is_usable && put_number(group->path[i], "pids.max", n_processes);
        if (!is_usable) {
            rmdir(group->path[i]);
            group->path[i][0] = '\0';
        } else {
            group->version = 1;
        }
    }
}

/* Version 2 lets a group hold either processes or groups with controllers: we go into one of our own first. That is done only where nobody else is in our group. */
static bool give_controllers(const char *own)
{
    char text[64], leaf[240];
    uint64_t first = 0;
    if (put(own, "cgroup.subtree_control", "+memory +pids")) return true;
    if (!get_number(own, "cgroup.procs", "", &first) || first != (uint64_t)getpid()) return false;
    if (snprintf(leaf, sizeof leaf, "%s/tokenfleet-worker", own) >= (int)sizeof leaf || (mkdir(leaf, 0755) != 0 && errno != EEXIST)) return false;
    snprintf(text, sizeof text, "%d", (int)getpid());
    if (put(leaf, "cgroup.procs", text) && put(own, "cgroup.subtree_control", "+memory +pids")) return true;
    put(own, "cgroup.procs", text);
    rmdir(leaf);
    return false;
}

static bool own_version_2(char own[200])
{
    if (!own_folder("/sys/fs/cgroup", "", own, 200) || access(own, W_OK) != 0) return false;
    char *leaf = strstr(own, "/tokenfleet-worker");
    if (leaf && leaf[strlen("/tokenfleet-worker")] == '\0') *leaf = '\0';        /* we went there with the first one */
    return true;
}

static void open_version_2(sandbox_group *group, const char *name, uint64_t memory_bytes, uint32_t n_processes)
{
    char own[200];
    if (!own_version_2(own)) return;
    if (!give_controllers(own) || !make_part(group->path[MEMORY], own, name)) return;
    const char *part = group->path[MEMORY];
    if (!put_number(part, "memory.max", memory_bytes) || !put_number(part, "pids.max", n_processes)) {
        rmdir(part);
        group->path[MEMORY][0] = '\0';
        return;
    }
    put(part, "memory.swap.max", "0");
    memcpy(group->path[PIDS], part, sizeof group->path[PIDS]);
    memcpy(group->path[CPU], part, sizeof group->path[CPU]);
    group->version = 2;
}

void sandbox_group_open(sandbox_group *group, const char *name, uint64_t memory_bytes, uint32_t n_processes)
{
    struct stat info;
    *group = (sandbox_group){.version = 0};
    if (stat("/sys/fs/cgroup/cgroup.controllers", &info) == 0) open_version_2(group, name, memory_bytes, n_processes);
    else open_version_1(group, name, memory_bytes, n_processes);
}

static void sweep_folder(const char *own)
{
    DIR *folder = opendir(own);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strncmp(entry->d_name, SANDBOX_GROUP_PREFIX, strlen(SANDBOX_GROUP_PREFIX)) != 0) continue;
        int pid = atoi(entry->d_name + strlen(SANDBOX_GROUP_PREFIX));
        if (pid > 1 && kill(pid, 0) != 0 && errno == ESRCH) unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR);      /* fails while something runs in it */
    }
    if (folder) closedir(folder);
}

void sandbox_group_sweep(void)
{
    char own[200], root[64];
    struct stat info;
    if (stat("/sys/fs/cgroup/cgroup.controllers", &info) == 0) {
        if (own_version_2(own)) sweep_folder(own);
        return;
    }
    for (int i = 0; i < SANDBOX_GROUP_PARTS; i++) {
        snprintf(root, sizeof root, "/sys/fs/cgroup/%s", controllers[i]);
        if (own_folder(root, controllers[i], own, sizeof own)) sweep_folder(own);
    }
}

void sandbox_group_close(sandbox_group *group)
{
    if (group->version == 1) put(group->path[MEMORY], "memory.force_empty", "0");     /* pages that are charged to it would keep it in the kernel, nameless */
    if (group->version == 2) put(group->path[MEMORY], "memory.reclaim", "1G");
    for (int i = 0; i < SANDBOX_GROUP_PARTS; i++) {
        if (group->path[i][0]) rmdir(group->path[i]);
    }
    *group = (sandbox_group){.version = 0};
}

void sandbox_group_enter(const sandbox_group *group)
{
    for (int i = 0; i < SANDBOX_GROUP_PARTS; i++) {
        if (group->path[i][0] && !(group->version == 2 && i > 0)) put(group->path[i], "cgroup.procs", "0");
    }
}

bool sandbox_group_cpu_ms(const sandbox_group *group, uint64_t *cpu_ms)
{
    uint64_t number;
    if (!group->path[CPU][0]) return false;
    if (!(group->version == 2 ? get_number(group->path[CPU], "cpu.stat", "usage_usec", &number) : get_number(group->path[CPU], "cpuacct.usage", "", &number))) return false;
    *cpu_ms = group->version == 2 ? number / 1000u : number / 1000000u;
    return true;
}

int64_t sandbox_group_oom_kills(const sandbox_group *group)
{
    uint64_t number;
    if (!group->path[MEMORY][0] || !get_number(group->path[MEMORY], group->version == 2 ? "memory.events" : "memory.oom_control", "oom_kill", &number)) return -1;
    return (int64_t)number;
}
