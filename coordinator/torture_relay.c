#include "coordinator/torture_relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/torture_net.h"

#define BUFFER_BYTES 65536
#define PAIRS_MAX 1024
#define TURN_MS 20                       /* flags are looked at so often */
#define LINK_PORT 7071                   /* of our end of a host's link */
#define REMOVE_TRIES 200                 /* 50 ms apart: what writes in the folder is dying */

/* Bytes on their way from one descriptor to the other. */
typedef struct { uint8_t data[BUFFER_BYTES]; size_t begin, end; bool is_ended; } way;
typedef struct { int host; int fd[2]; way *ways; } pair;      /* ways[0]: fd[0] to fd[1]; owned */
typedef struct { int fd, host, out_net; struct sockaddr_in to; } listener;

typedef struct {
    torture_flags *flags;
    listener listeners[2 * TORTURE_HOSTS_MAX]; int n_listeners;
    pair pairs[PAIRS_MAX]; int n_pairs;
    unsigned n_resets[TORTURE_HOSTS_MAX];
    int n_hosts, life_fd, own_net;
} relay;

/* ---- the folder ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

bool torture_remove_folder(const char *dir, const char *mounted)
{
    if (mounted[0]) umount2(mounted, 0);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return access(dir, F_OK) != 0;
}

/* ---- sockets ---- */

static void send_at_once(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int open_socket(int net_fd, int own_net)
{
    if (net_fd >= 0 && setns(net_fd, CLONE_NEWNET) != 0) return -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = errno;
    if (net_fd >= 0 && setns(own_net, CLONE_NEWNET) != 0) _exit(3);
    if (fd >= 0) send_at_once(fd);
    errno = error;
    return fd;
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int listen_at(int net_fd, int own_net, struct sockaddr_in at, int *port)
{
    socklen_t n = sizeof at;
    int fd = open_socket(net_fd, own_net);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 128) != 0 || getsockname(fd, (struct sockaddr *)&at, &n) != 0)) {
        close(fd);
        fd = -1;
    }
    if (port) *port = ntohs(at.sin_port);
    return fd;
}

int torture_relay_free_port(void)
{
    int port = 0, fd = listen_at(-1, -1, loopback(0), &port);
    if (fd >= 0) close(fd);
    return fd >= 0 ? port : 0;
}

/* ---- carrying ---- */

static void close_pair(relay *r, int i)
{
    close(r->pairs[i].fd[0]);
    close(r->pairs[i].fd[1]);
    free(r->pairs[i].ways);
    r->pairs[i] = r->pairs[--r->n_pairs];
}

static void accept_one(relay *r, const listener *l)
{
    int in = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (in < 0) return;
    send_at_once(in);
    int out = r->n_pairs < PAIRS_MAX ? open_socket(l->out_net, r->own_net) : -1;
    way *ways = out >= 0 ? calloc(2, sizeof *ways) : NULL;
    if (!ways || (connect(out, (const struct sockaddr *)&l->to, sizeof l->to) != 0 && errno != EINPROGRESS)) {
        close(in);
        if (out >= 0) close(out);
        free(ways);
        return;
    }
    r->pairs[r->n_pairs++] = (pair){ .host = l->host, .fd = { in, out }, .ways = ways };
}

static short wanted(const pair *p, int side)
{
    const way *from = &p->ways[side], *to = &p->ways[!side];
    bool has_room = !from->is_ended && from->end < BUFFER_BYTES;
    return (short)((has_room ? POLLIN : 0) | (to->begin < to->end ? POLLOUT : 0));
}

/* Read into the way that begins at `side`; false: the connection is broken. */
static bool fill(pair *p, int side)
{
    way *w = &p->ways[side];
    if (w->end == BUFFER_BYTES && w->begin) {
        memmove(w->data, w->data + w->begin, w->end - w->begin);
        w->end -= w->begin;
        w->begin = 0;
    }
    ssize_t n = w->end < BUFFER_BYTES ? read(p->fd[side], w->data + w->end, BUFFER_BYTES - w->end) : -1;
    if (n == 0) w->is_ended = true;
    if (n > 0) w->end += (size_t)n;
    return n >= 0 || errno == EAGAIN || errno == EINTR;
}

static bool flush(pair *p, int side)
{
    way *w = &p->ways[!side];
    ssize_t n = send(p->fd[side], w->data + w->begin, w->end - w->begin, MSG_NOSIGNAL);
    if (n > 0) w->begin += (size_t)n;
    if (w->begin == w->end) w->begin = w->end = 0;
    return n >= 0 || errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
}

static bool carry(pair *p, const struct pollfd polls[2])
{
    for (int side = 0; side < 2; side++) {
        if (polls[side].revents & POLLERR) return false;
        if ((polls[side].revents & (POLLIN | POLLHUP)) && !p->ways[side].is_ended && !fill(p, side)) return false;
        if ((polls[side].revents & POLLOUT) && !flush(p, side)) return false;
    }
    for (int side = 0; side < 2; side++) {
        if (p->ways[side].is_ended && p->ways[side].begin == p->ways[side].end) return false;
    }
    return true;
}

static void close_reset(relay *r)
{
    for (int h = 0; h < r->n_hosts; h++) {
        unsigned n = atomic_load(&r->flags->n_resets[h]);
        for (int i = r->n_pairs; n != r->n_resets[h] && i-- > 0;) {
            if (r->pairs[i].host == h) close_pair(r, i);
        }
        r->n_resets[h] = n;
    }
}

/* False: its starter is gone. */
static bool relay_turn(relay *r)
{
    static struct pollfd polls[1 + 2 * TORTURE_HOSTS_MAX + 2 * PAIRS_MAX];
    int n_before = r->n_pairs, at = 1 + r->n_listeners;
    polls[0] = (struct pollfd){ .fd = r->life_fd, .events = POLLIN };
    for (int i = 0; i < r->n_listeners; i++) polls[1 + i] = (struct pollfd){ .fd = r->listeners[i].fd, .events = POLLIN };
    for (int i = 0; i < n_before; i++) {
        bool is_cut = atomic_load(&r->flags->is_cut[r->pairs[i].host]);
        for (int side = 0; side < 2; side++) {
            short events = is_cut ? 0 : wanted(&r->pairs[i], side);
            polls[at + 2 * i + side] = (struct pollfd){ .fd = events ? r->pairs[i].fd[side] : -1, .events = events };
        }
    }
    if (poll(polls, (nfds_t)(at + 2 * n_before), TURN_MS) < 0) return errno == EINTR;
    for (int i = n_before; i-- > 0;) {
        if (!carry(&r->pairs[i], &polls[at + 2 * i])) close_pair(r, i);
    }
    for (int i = 0; i < r->n_listeners; i++) {
        if (polls[1 + i].revents && !atomic_load(&r->flags->is_cut[r->listeners[i].host])) accept_one(r, &r->listeners[i]);
    }
    close_reset(r);
    return !polls[0].revents;
}

static _Noreturn void serve(relay *r, const char *dir, const char *mounted)
{
    char told;
    setpgid(0, 0);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    prctl(PR_SET_NAME, "tokenfleet-rly");
    while (relay_turn(r)) {}
    if (read(r->life_fd, &told, 1) == 1) _exit(0);               /* told to end: the folder is the starter's business */
    while (r->n_pairs) close_pair(r, 0);
    for (int i = 0; i < REMOVE_TRIES && !torture_remove_folder(dir, mounted); i++) poll(NULL, 0, 50);
    _exit(0);
}

/* ---- start and end ---- */

static bool add_listener(relay *r, int host, int net_fd, struct sockaddr_in at, int out_net, struct sockaddr_in to, int *port)
{
    int fd = listen_at(net_fd, r->own_net, at, port);
    if (fd < 0) return false;
    r->listeners[r->n_listeners++] = (listener){ .fd = fd, .host = host, .out_net = out_net, .to = to };
    return true;
}

fl_status torture_relay_start(torture_relay *out, int n_hosts, const int *net_fds, int port, const char *dir, const char *mounted, fl_err *err)
{
    static relay r;
    int ends[2] = { -1, -1 };
    fl_status st = FL_OK;
    torture_flags *flags = mmap(NULL, sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED) return fl_fail_errno(err, errno, "no memory shared with the relay");
    r = (relay){ .flags = flags, .n_hosts = n_hosts, .own_net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC) };
    *out = (torture_relay){ .life_fd = -1, .flags = flags };
    for (int h = 0; st == FL_OK && h < n_hosts; h++) {
        bool has_link = net_fds[h] >= 0;
        bool done = add_listener(&r, h, net_fds[h], loopback(0), net_fds[h], has_link ? torture_net_address(h, false, LINK_PORT) : loopback(port), &out->ports[h]);
        if (done && has_link) done = add_listener(&r, h, -1, torture_net_address(h, false, LINK_PORT), -1, loopback(port), NULL);
        if (!done) st = fl_fail_errno(err, errno, "the relay cannot listen");
    }
    if (st == FL_OK && pipe2(ends, O_CLOEXEC) != 0) st = fl_fail_errno(err, errno, "no pipe to the relay");
    pid_t pid = st == FL_OK ? fork() : -1;
    if (pid == 0) {
        close(ends[1]);
        r.life_fd = ends[0];
        serve(&r, dir, mounted);
    }
    if (st == FL_OK && pid < 0) st = fl_fail_errno(err, errno, "no process for the relay");
    for (int i = 0; i < r.n_listeners; i++) close(r.listeners[i].fd);
    if (r.own_net >= 0) close(r.own_net);
    if (ends[0] >= 0) close(ends[0]);
    if (st == FL_OK) {
        out->pid = pid;
        out->life_fd = ends[1];
    } else {
        if (ends[1] >= 0) close(ends[1]);
        munmap(flags, sizeof *flags);
        out->flags = NULL;
    }
    return st;
}

void torture_relay_stop(torture_relay *r)
{
    if (!r->flags) return;
    ssize_t n = write(r->life_fd, "e", 1);
    (void)n;                                             /* a relay that is gone needs no word */
    close(r->life_fd);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {}
    munmap(r->flags, sizeof *r->flags);
    r->flags = NULL;
}
