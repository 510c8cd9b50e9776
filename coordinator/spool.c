#include "coordinator/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#define LOCK_WAIT_MS 5000
#define LOCK_POLL_MS 50

struct spool {
    char *dir;                           /* owned */
    int lock_fd;                         /* -1: read only */
};

/* File systems whose locks and syncs another machine may not see. Numbers from linux/magic.h and the drivers. */
static const struct { long magic; const char *name; } network[] = {
    { 0x6969, "NFS" }, { 0x517B, "SMB" }, { (long)0xFF534D42, "CIFS" }, { (long)0xFE534D42, "SMB2" }, { 0x65735546, "FUSE" }, { 0x01021997, "9p" },
    { 0x00C36400, "Ceph" }, { 0x0BD00BD0, "Lustre" }, { 0x47504653, "GPFS" }, { 0x19830326, "BeeGFS" }, { 0x5346414F, "AFS" }, { 0x73757245, "Coda" },
    { 0x7461636F, "OCFS2" }, { 0x01161970, "GFS2" }, { 0x564C, "NCP" }
};

static fl_status check_file_system(const char *dir, fl_err *err)
{
    struct statfs info;
    if (statfs(dir, &info) != 0) return fl_fail_errno(err, errno, "spool: examine the file system of %s", dir);
    for (size_t i = 0; i < sizeof network / sizeof *network; i++)
        if ((uint32_t)info.f_type == (uint32_t)network[i].magic)
            return fl_fail(err, FL_UNSUPPORTED, "spool: %s lies on %s, whose locks and syncs cannot be relied on; choose --spool on a local disk, or pass --unsafe-spool",
                           dir, network[i].name);
    return FL_OK;
}

fl_status spool_sync_dir(const char *dir, fl_err *err)
{
    fl_status st = FL_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) st = fl_fail_errno(err, errno, "spool: sync folder %s", dir);
    if (fd >= 0) close(fd);
    return st;
}

/* The folder that holds `path`; malloc'ed. */
static char *parent_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    return n == 0 ? strdup(".") : strndup(path, n);
}

/* Make a folder that may exist already; its name is durable afterwards. *was_there (NULL allowed) says which. */
static fl_status make_dir(const char *dir, bool *was_there, fl_err *err)
{
    if (was_there) *was_there = false;
    if (mkdir(dir, 0700) != 0) {
        struct stat info;
        if (errno != EEXIST) return fl_fail_errno(err, errno, "spool: create folder %s", dir);
        if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode)) return fl_fail(err, FL_CONFLICT, "spool: %s exists and is not a folder; choose another --spool", dir);
        if (was_there) *was_there = true;
    }
    char *parent = parent_of(dir);
    if (!parent) return fl_fail(err, FL_FULL, "spool: no memory");
    fl_status st = spool_sync_dir(parent, err);
    free(parent);
    return st;
}

static long holder_of(int fd)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    return n > 0 ? atol(text) : 0;
}

static fl_status take_lock(spool *s, fl_err *err)
{
    fl_status st = FL_OK;
    char *path = spool_path(s, "lock");
    if (!path) return fl_fail(err, FL_FULL, "spool: no memory");
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0) { st = fl_fail_errno(err, errno, "spool: open %s", path); goto done; }
    for (int waited = 0;; waited += LOCK_POLL_MS) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        if (fcntl(s->lock_fd, F_OFD_SETLK, &lock) == 0) break;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) { st = fl_fail_errno(err, errno, "spool: lock %s", path); goto done; }
        if (waited >= LOCK_WAIT_MS) {
            long pid = holder_of(s->lock_fd);
            st = pid > 0 ? fl_fail(err, FL_CONFLICT, "spool: %s is in use by process %ld; wait for it to end, or stop it", s->dir, pid)
                         : fl_fail(err, FL_CONFLICT, "spool: %s is in use by another process; wait for it to end, or stop it", s->dir);
            goto done;
        }
        struct timespec pause = { 0, LOCK_POLL_MS * 1000000L };
        nanosleep(&pause, NULL);
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(s->lock_fd, 0) != 0 || pwrite(s->lock_fd, text, (size_t)n, 0) != n) st = fl_fail_errno(err, errno, "spool: write %s", path);
done:
    free(path);
    return st;
}

/* SQLite takes no longer paths, and sockets, temporary files and ledgers lie below. */
static fl_status check_path(const char *dir, fl_err *err)
{
    char real[PATH_MAX];
    if (!realpath(dir, real)) return fl_fail_errno(err, errno, "spool: find %s", dir);
    size_t n = strlen(real);
    return n <= SPOOL_PATH_MAX ? FL_OK : fl_fail(err, FL_INVALID, "the path of the spool ends in %s and has %zu bytes, and at most %d can be used; choose a shorter --spool", real + n - 40, n, SPOOL_PATH_MAX);
}

fl_status spool_open(spool **out, const char *dir, unsigned flags, fl_err *err)
{
    fl_status st = FL_OK;
    char *jobs = NULL;
    spool *s = calloc(1, sizeof *s);
    if (!s || !(s->dir = strdup(dir))) { free(s); return fl_fail(err, FL_FULL, "spool: no memory"); }
    s->lock_fd = -1;
    jobs = spool_path(s, "jobs");
    if (!jobs) { st = fl_fail(err, FL_FULL, "spool: no memory"); goto done; }
    bool was_there = true;
    if (flags & SPOOL_CREATE) {
        if ((st = make_dir(dir, &was_there, err)) != FL_OK) goto done;
    } else if (access(jobs, F_OK) != 0) {
        st = errno == ENOENT || errno == ENOTDIR ? fl_fail(err, FL_NOT_FOUND, "spool: %s is not a spool of tokenfleet", dir)
                                                 : fl_fail_errno(err, errno, "spool: %s cannot be read", dir);
        goto done;
    }
    if ((st = check_path(dir, err)) == FL_OK && !(flags & SPOOL_UNSAFE)) st = check_file_system(dir, err);
    if (st != FL_OK) {
        if (!was_there) rmdir(dir);
        goto done;
    }
    if (!(flags & SPOOL_READ_ONLY) && (st = take_lock(s, err)) != FL_OK) goto done;
    if ((flags & SPOOL_CREATE) && (st = make_dir(jobs, NULL, err)) != FL_OK) goto done;
    *out = s;
    s = NULL;
done:
    free(jobs);
    spool_close(s);
    return st;
}

void spool_close(spool *s)
{
    if (!s) return;
    if (s->lock_fd >= 0) close(s->lock_fd);
    free(s->dir);
    free(s);
}

const char *spool_dir(const spool *s)
{
    return s->dir;
}

char *spool_path(const spool *s, const char *file)
{
    char *path;
    int n = file ? asprintf(&path, "%s/%s", s->dir, file) : asprintf(&path, "%s", s->dir);
    return n < 0 ? NULL : path;
}

char *spool_job_path(const spool *s, job_id job, const char *file)
{
    char name[FL_JOB_NAME_BYTES], *path;
    fl_job_name(job, name);
    int n = file ? asprintf(&path, "%s/jobs/%s/%s", s->dir, name, file) : asprintf(&path, "%s/jobs/%s", s->dir, name);
    return n < 0 ? NULL : path;
}

bool spool_read_endpoint(const char *dir, char endpoint[SPOOL_ENDPOINT_MAX])
{
    char path[PATH_MAX + sizeof "/" SPOOL_ENDPOINT_FILE];
    snprintf(path, sizeof path, "%s/" SPOOL_ENDPOINT_FILE, dir);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    endpoint[fread(endpoint, 1, SPOOL_ENDPOINT_MAX - 1, file)] = '\0';
    fclose(file);
    return true;
}

char *spool_ledger_path(const spool *s, job_id job, uint32_t generation)
{
    char name[24] = "ledger";
    if (generation > 1) snprintf(name, sizeof name, "ledger.%u", generation);
    return spool_job_path(s, job, name);
}

fl_status spool_job_create(const spool *s, job_id job, fl_err *err)
{
    fl_status st = FL_OK;
    char *path = spool_job_path(s, job, NULL), *jobs = spool_path(s, "jobs");
    if (!path || !jobs) { st = fl_fail(err, FL_FULL, "spool: no memory"); goto done; }
    if (mkdir(path, 0700) != 0) {
        st = errno == EEXIST ? fl_fail(err, FL_CONFLICT, "spool: %s exists already", path) : fl_fail_errno(err, errno, "spool: create folder %s", path);
        goto done;
    }
    st = spool_sync_dir(jobs, err);
done:
    free(path);
    free(jobs);
    return st;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;            /* gone already is as good */
}

fl_status spool_tree_remove(const char *path, fl_err *err)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT ? FL_OK : fl_fail_errno(err, errno, "spool: remove %s", path);
}

static _Thread_local uint64_t bytes_seen;                /* nftw passes no context */

static int add_bytes(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)path;
    (void)where;
    if (kind == FTW_F) bytes_seen += (uint64_t)info->st_size;
    return 0;
}

fl_status spool_tree_bytes(const char *path, uint64_t *n_bytes, fl_err *err)
{
    bytes_seen = 0;
    if (nftw(path, add_bytes, 16, FTW_PHYS) != 0 && errno != ENOENT) return fl_fail_errno(err, errno, "spool: examine %s", path);
    *n_bytes += bytes_seen;
    return FL_OK;
}

fl_status spool_job_remove(const spool *s, job_id job, fl_err *err)
{
    fl_status st = FL_OK;
    char *path = spool_job_path(s, job, NULL), *jobs = spool_path(s, "jobs");
    if (!path || !jobs) { st = fl_fail(err, FL_FULL, "spool: no memory"); goto done; }
    st = spool_tree_remove(path, err);
    if (st == FL_OK) st = spool_sync_dir(jobs, err);
done:
    free(path);
    free(jobs);
    return st;
}
