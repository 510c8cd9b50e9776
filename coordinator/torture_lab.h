/* torture_lab.h - where `torture` happens: a folder, a disk that can be filled, hosts whose links can be cut. As much of it as this machine allows is real (namespaces, a tmpfs); the rest
 * is played or left out, and torture_lab_links / _disk say so.
 * Leaves   nothing: a folder that a killed `torture` left is removed by its relay, else by the next torture_lab_open.
 * Threads  one, and no other may run in the process when it is opened. */
#ifndef COORDINATOR_TORTURE_LAB_H
#define COORDINATOR_TORTURE_LAB_H

#include "coordinator/torture_relay.h"

typedef struct {
    char dir[80], spool[96], disk[96];   /* disk: where the tmpfs is mounted, "" = none */
    int lock_fd, port, n_hosts;
    int net_fds[TORTURE_HOSTS_MAX];      /* owned; -1: the host is a relay's port only */
    torture_relay relay;
    char links[600], disk_text[300];     /* for the report */
} torture_lab;

fl_status torture_lab_open(torture_lab *lab, int n_hosts, uint64_t disk_bytes, fl_err *err);

/* Remove everything. Returns what could not be removed, "" = nothing is left; borrowed from the lab. */
const char *torture_lab_close(torture_lab *lab);

/* Cut the link of a host, or mend it; close the connections that go through it. */
fl_status torture_lab_cut(torture_lab *lab, int host, bool cut, fl_err *err);
void      torture_lab_reset(torture_lab *lab, int host);

/* Take all space of the disk, or give it back. */
fl_status torture_lab_fill(torture_lab *lab, bool full, fl_err *err);

#endif
