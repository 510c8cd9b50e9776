#include "coordinator/torture_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#define PEER "tfhost"                    /* the link's name within a host */

/* ---- namespaces ---- */

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return done;
}

/* Root in a namespace of our own, which is our own user outside. */
static bool enter_user_namespace(void)
{
    char uids[64], gids[64];
    snprintf(uids, sizeof uids, "0 %u 1", (unsigned)geteuid());
    snprintf(gids, sizeof gids, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER) == 0 && write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", uids) && write_text("/proc/self/gid_map", gids);
}

static bool change_link(const char *name, unsigned long request, struct ifreq *what)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(what->ifr_name, sizeof what->ifr_name, "%s", name);
    bool done = fd >= 0 && ioctl(fd, request, what) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    return done;
}

static bool set_up(const char *name, bool up)
{
    struct ifreq what = { .ifr_flags = up ? IFF_UP | IFF_RUNNING : 0 };
    return change_link(name, SIOCSIFFLAGS, &what);
}

fl_status torture_net_enter(fl_err *err)
{
    if (geteuid() != 0 && !enter_user_namespace()) return fl_fail(err, FL_UNSUPPORTED, "no user namespace: %s", strerror(errno));
    if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return fl_fail(err, FL_UNSUPPORTED, "no namespaces: %s", strerror(errno));
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return fl_fail(err, FL_UNSUPPORTED, "mounts cannot be made private: %s", strerror(errno));
    if (!set_up("lo", true)) return fl_fail(err, FL_UNSUPPORTED, "the loopback of a network namespace does not come up: %s", strerror(errno));
    return FL_OK;
}

/* ---- links ---- */

typedef struct { struct nlmsghdr header; struct ifinfomsg info; char attributes[512]; } link_request;

static struct rtattr *add(link_request *r, unsigned short type, const void *data, size_t n)
{
    struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->header.nlmsg_len));
    a->rta_type = type;
    a->rta_len = (unsigned short)RTA_LENGTH(n);
    if (n) memcpy(RTA_DATA(a), data, n);
    r->header.nlmsg_len = NLMSG_ALIGN(r->header.nlmsg_len) + RTA_ALIGN(a->rta_len);
    return a;
}

static void end_nest(const link_request *r, struct rtattr *nest)
{
    nest->rta_len = (unsigned short)((const char *)r + r->header.nlmsg_len - (const char *)nest);
}

/* A veth pair: `name` here, PEER in the namespace net_fd. */
static bool add_veth(const char *name, int net_fd)
{
    struct { struct nlmsghdr header; struct nlmsgerr error; char rest[1024]; } answer = { 0 };
    link_request r = { .header = { .nlmsg_len = NLMSG_LENGTH(sizeof r.info), .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK },
                       .info = { .ifi_family = AF_UNSPEC } };
    struct ifinfomsg peer = { .ifi_family = AF_UNSPEC };
    add(&r, IFLA_IFNAME, name, strlen(name) + 1);
    struct rtattr *info = add(&r, IFLA_LINKINFO, NULL, 0);
    add(&r, IFLA_INFO_KIND, "veth", 4);
    struct rtattr *data = add(&r, IFLA_INFO_DATA, NULL, 0), *other = add(&r, VETH_INFO_PEER, &peer, sizeof peer);
    add(&r, IFLA_IFNAME, PEER, sizeof PEER);
    add(&r, IFLA_NET_NS_FD, &net_fd, sizeof net_fd);
    end_nest(&r, other);
    end_nest(&r, data);
    end_nest(&r, info);
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    bool done = fd >= 0 && send(fd, &r, r.header.nlmsg_len, 0) == (ssize_t)r.header.nlmsg_len && recv(fd, &answer, sizeof answer, 0) > 0;
    int error = done ? -answer.error.error : errno;
    if (fd >= 0) close(fd);
    errno = error;
    return done && error == 0;
}

struct sockaddr_in torture_net_address(int i, bool is_host, int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(10u << 24 | 99u << 16 | (uint32_t)i << 8 | (is_host ? 2u : 1u)) };
}

static bool set_address(const char *name, struct sockaddr_in address)
{
    struct ifreq what = { 0 };
    memcpy(&what.ifr_addr, &address, sizeof address);
    if (!change_link(name, SIOCSIFADDR, &what)) return false;
    address.sin_addr.s_addr = htonl(0xFFFFFFFCu);
    memcpy(&what.ifr_netmask, &address, sizeof address);
    return change_link(name, SIOCSIFNETMASK, &what) && set_up(name, true);
}

fl_status torture_net_host(int i, int *net_fd, fl_err *err)
{
    char name[16];
    int ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), host = -1;
    snprintf(name, sizeof name, "tf%d", i);
    bool done = ours >= 0 && unshare(CLONE_NEWNET) == 0 && set_up("lo", true) && (host = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) >= 0;
    int error = errno;
    if (done && (setns(ours, CLONE_NEWNET) != 0 || !add_veth(name, host) || !set_address(name, torture_net_address(i, false, 0)) || setns(host, CLONE_NEWNET) != 0 ||
                 !set_address(PEER, torture_net_address(i, true, 0)))) {
        error = errno;
        done = false;
    }
    if (ours >= 0 && setns(ours, CLONE_NEWNET) != 0) done = false;
    if (ours >= 0) close(ours);
    if (done) *net_fd = host;
    else if (host >= 0) close(host);
    return done ? FL_OK : fl_fail(err, FL_UNSUPPORTED, "a network namespace with a link of its own cannot be made: %s", strerror(error));
}

fl_status torture_net_link(int i, bool up, fl_err *err)
{
    char name[16];
    snprintf(name, sizeof name, "tf%d", i);
    return set_up(name, up) ? FL_OK : fl_fail_errno(err, errno, "the link of host %d cannot be set", i);
}
