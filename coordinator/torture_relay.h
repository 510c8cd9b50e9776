/* torture_relay.h - the process between workers and coordinator: on each host it listens on loopback and carries every connection to the coordinator, over the host's link where it
 * has one (torture_net.h). Without links it plays them: a cut one carries nothing. It also outlives a `torture` that was killed for as long as it takes to remove its folder.
 * Threads  a process with one; the flags are shared memory. */
#ifndef COORDINATOR_TORTURE_RELAY_H
#define COORDINATOR_TORTURE_RELAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "proto/status.h"

#define TORTURE_HOSTS_MAX 8

typedef struct {
    atomic_bool is_cut[TORTURE_HOSTS_MAX];       /* carries nothing; connections stay */
    atomic_uint n_resets[TORTURE_HOSTS_MAX];     /* when it grows, the host's connections are closed */
} torture_flags;

typedef struct {
    pid_t pid;
    int life_fd;                         /* owned; the relay ends when it is closed */
    torture_flags *flags;                /* shared */
    int ports[TORTURE_HOSTS_MAX];        /* where workers of a host connect, on their 127.0.0.1 */
} torture_relay;

/* Listen for n_hosts and start it. net_fds[i]: the namespace of host i, -1: ours. port: the coordinator's, on our 127.0.0.1. Its folder `dir` is removed (with a file system mounted on
 * `mounted`, "" = none) when this process ends without torture_relay_stop. */
fl_status torture_relay_start(torture_relay *out, int n_hosts, const int *net_fds, int port, const char *dir, const char *mounted, fl_err *err);
void      torture_relay_stop(torture_relay *r);          /* ends and waits for it; does nothing when none was started */

/* A port on our loopback that nobody uses now; 0 = none. */
int torture_relay_free_port(void);

/* Remove a folder and all in it; what is mounted on `mounted` is unmounted first. False: something is left. */
bool torture_remove_folder(const char *dir, const char *mounted);

#endif
