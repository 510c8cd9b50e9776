/* torture_net.h - network namespaces as hosts: made, joined to ours by a veth pair, and their link taken down and up again.
 * Names    host i (0 .. 63) has the address 10.99.i.2; our end of its link is called tf<i> and has 10.99.i.1, both /30.
 * Needs    the right to make network namespaces: root, or torture_net_enter's user namespace.
 * Threads  one: entering a namespace is the calling thread's. */
#ifndef COORDINATOR_TORTURE_NET_H
#define COORDINATOR_TORTURE_NET_H

#include <netinet/in.h>
#include <stdbool.h>
#include "proto/status.h"

/* Move this process into a mount and network namespace of its own (in a user namespace of its own when it is not root), with mounts that nobody else sees and its loopback
 * up. Everything made there goes when the last process in it ends. FL_UNSUPPORTED: not allowed here, nothing changed or a namespace without rights. */
fl_status torture_net_enter(fl_err *err);

/* Make host i; *net_fd is its network namespace (the caller closes it). */
fl_status torture_net_host(int i, int *net_fd, fl_err *err);

struct sockaddr_in torture_net_address(int i, bool is_host, int port);

/* Take the link of host i down or up. */
fl_status torture_net_link(int i, bool up, fl_err *err);

#endif
