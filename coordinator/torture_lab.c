#include "coordinator/torture_lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "coordinator/torture_net.h"

#define PREFIX "tokenfleet-torture-"
#define PAGE_BYTES 4096

static const char *tmp_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && tmp[0] == '/' && strlen(tmp) <= 40 ? tmp : "/tmp";
}

/* ---- folders ---- */

/* Its owner holds the lock as long as it lives. */
static bool is_abandoned(const char *dir)
{
    char path[500];
    struct stat at;
    if (lstat(dir, &at) != 0 || !S_ISDIR(at.st_mode) || at.st_uid != geteuid()) return false;
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    bool is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) close(fd);
    return is_free;
}

static void remove_abandoned(void)
{
    char path[400];
    DIR *tmp = opendir(tmp_dir());
    for (struct dirent *entry; tmp && (entry = readdir(tmp)); ) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", tmp_dir(), entry->d_name);
        if (is_abandoned(path)) torture_remove_folder(path, "");
    }
    if (tmp) closedir(tmp);
}

static fl_status make_folder(torture_lab *lab, fl_err *err)
{
    char path[100];
    snprintf(lab->dir, sizeof lab->dir, "%s/" PREFIX "XXXXXX", tmp_dir());
    if (!mkdtemp(lab->dir)) {
        lab->dir[0] = '\0';
        return fl_fail_errno(err, errno, "no folder can be made in %s", tmp_dir());
    }
    snprintf(lab->spool, sizeof lab->spool, "%s/spool", lab->dir);
    snprintf(path, sizeof path, "%s/lock", lab->dir);
    lab->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lab->lock_fd < 0 || flock(lab->lock_fd, LOCK_EX | LOCK_NB) != 0) return fl_fail_errno(err, errno, "cannot lock %s", path);
    return FL_OK;
}

/* ---- disk ---- */

static void mount_disk(torture_lab *lab, uint64_t disk_bytes)
{
    char options[64], path[96];
    snprintf(path, sizeof path, "%s/disk", lab->dir);
    snprintf(options, sizeof options, "size=%llu,mode=0700", (unsigned long long)disk_bytes);
    if (mkdir(path, 0700) != 0 || mount("tokenfleet-torture", path, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0) {
        snprintf(lab->disk_text, sizeof lab->disk_text, "was not filled: a small file system cannot be mounted here (%s); root, or a machine with user namespaces, can", strerror(errno));
        return;
    }
    snprintf(lab->disk, sizeof lab->disk, "%s", path);
    snprintf(lab->spool, sizeof lab->spool, "%s/disk/spool", lab->dir);
    snprintf(lab->disk_text, sizeof lab->disk_text, "a tmpfs of %llu MB", (unsigned long long)(disk_bytes >> 20));
}

fl_status torture_lab_fill(torture_lab *lab, bool full, fl_err *err)
{
    char path[128];
    struct statvfs at;
    snprintf(path, sizeof path, "%s/filler", lab->disk);
    if (!full) return unlink(path) == 0 || errno == ENOENT ? FL_OK : fl_fail_errno(err, errno, "cannot remove %s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), error = fd < 0 ? errno : 0;
    off_t n_bytes = 0;
    if (error == 0 && statvfs(lab->disk, &at) == 0) {
        n_bytes = (off_t)(at.f_bfree * at.f_frsize);
        if (posix_fallocate(fd, 0, n_bytes) != 0) n_bytes = 0;
    }
    while (error == 0 && (error = posix_fallocate(fd, n_bytes, PAGE_BYTES)) == 0) n_bytes += PAGE_BYTES;
    if (fd >= 0) close(fd);
    return error == ENOSPC ? FL_OK : fl_fail_errno(err, error, "cannot fill %s", lab->disk);
}

/* ---- links ---- */

static void make_hosts(torture_lab *lab)
{
    fl_err why = { 0 };
    fl_status st = torture_net_enter(&why);
    for (int i = 0; st == FL_OK && i < lab->n_hosts; i++) st = torture_net_host(i, &lab->net_fds[i], &why);
    if (st == FL_OK) {
        snprintf(lab->links, sizeof lab->links, "%d hosts, each a network namespace behind a link (veth) that is taken down", lab->n_hosts);
        return;
    }
    for (int i = 0; i < lab->n_hosts; i++) {
        if (lab->net_fds[i] >= 0) close(lab->net_fds[i]);
        lab->net_fds[i] = -1;
    }
    snprintf(lab->links, sizeof lab->links, "%d hosts, each a tcp relay that stops carrying, since network namespaces are not allowed here (%s)", lab->n_hosts, why.text);
}

fl_status torture_lab_cut(torture_lab *lab, int host, bool cut, fl_err *err)
{
    if (lab->net_fds[host] >= 0) return torture_net_link(host, !cut, err);
    atomic_store(&lab->relay.flags->is_cut[host], cut);
    return FL_OK;
}

void torture_lab_reset(torture_lab *lab, int host)
{
    atomic_fetch_add(&lab->relay.flags->n_resets[host], 1);
}

/* ---- life ---- */

fl_status torture_lab_open(torture_lab *lab, int n_hosts, uint64_t disk_bytes, fl_err *err)
{
    *lab = (torture_lab){ .lock_fd = -1, .n_hosts = n_hosts, .relay.life_fd = -1 };
    for (int i = 0; i < TORTURE_HOSTS_MAX; i++) lab->net_fds[i] = -1;
    remove_abandoned();
    fl_status st = make_folder(lab, err);
    if (st != FL_OK) return st;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return fl_fail_errno(err, errno, "cannot look after the children of killed workers");
    make_hosts(lab);
    mount_disk(lab, disk_bytes);
    if (!(lab->port = torture_relay_free_port())) return fl_fail_errno(err, errno, "no tcp port is free on loopback");
    return torture_relay_start(&lab->relay, n_hosts, lab->net_fds, lab->port, lab->dir, lab->disk, err);
}

const char *torture_lab_close(torture_lab *lab)
{
    static const char *const folder = "its temporary folder is left", *const disk = "its tmpfs is still mounted";
    const char *left = "";
    torture_relay_stop(&lab->relay);
    for (int i = 0; i < lab->n_hosts; i++) {
        if (lab->net_fds[i] >= 0) close(lab->net_fds[i]);
        lab->net_fds[i] = -1;
    }
    if (lab->disk[0] && umount2(lab->disk, 0) != 0) left = disk;
    if (lab->dir[0] && !torture_remove_folder(lab->dir, "")) left = left[0] ? left : folder;
    if (lab->lock_fd >= 0) close(lab->lock_fd);
    lab->lock_fd = -1;
    lab->dir[0] = '\0';
    return left;
}
