/* sandbox_filter.h - the system calls that code in a sandbox may not make, as a classic BPF program for seccomp.
 * Policy   what only administrators, debuggers and kernel exploits need is refused with EPERM; memory outside the process's limits (memfd, System V, message queues) and
 *          sockets too; clone3 says ENOSYS, so that libc takes clone, whose flags a filter can read. Another architecture's calls end the process.
 * Threads  reentrant. */
#ifndef WORKER_SANDBOX_FILTER_H
#define WORKER_SANDBOX_FILTER_H

#include <stddef.h>
#include "proto/status.h"

enum { SANDBOX_FILTER_BYTES_MAX = 4096 };

/* Write the program (struct sock_filter, native) to `program`; *n_bytes is its size. FL_UNSUPPORTED on a machine that is neither x86-64 nor aarch64. */
fl_status sandbox_filter_make(unsigned char program[SANDBOX_FILTER_BYTES_MAX], size_t *n_bytes, fl_err *err);

#endif
