/* child_link.c - see child_link.h. */
#include "worker/child_link.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "proto/clock.h"
#include "worker/oom_count.h"

#define READ_BYTES (256u * 1024)
#define WORDS_BYTES 2048             /* of stderr that are remembered */
#define HUNG_CPU_PART 8              /* of the time without a token a hung engine spent computing at least: machines are shared */
#define REAP_MS 2000                 /* from the end of its stream to the end of the process */

typedef struct { uint8_t *data; size_t begin, end, capacity; } byte_queue;   /* bytes data[begin .. end) */

struct child_link {
    const worker_options *options;   /* borrowed */
    pid_t pid;                       /* 0 when none runs */
    int fd, stderr_fd;               /* -1 when none runs */
    bool broken;                     /* its stream made no sense; it was killed */
    bool was_killed, was_hung;       /* by us; for want of progress, computing all the time */
    int64_t moved_ms, moved_cpu_ms;  /* when it last made a token, and its CPU time then */
    int64_t hung_ms;
    int64_t n_oom, n_oom_before;     /* oom_count_read at the last look and at the one before, which was surely before an end that is noticed now */
    byte_queue out, in;
    size_t taken;                    /* bytes of `in` that the last message borrowed */
    char words[WORDS_BYTES]; size_t words_bytes;
};

/* ---- bytes ---- */

static bool queue_reserve(byte_queue *q, size_t n)
{
    if (q->begin == q->end) q->begin = q->end = 0;
    if (q->capacity - q->end >= n) return true;
    if (q->begin) memmove(q->data, q->data + q->begin, q->end - q->begin);
    q->end -= q->begin;
    q->begin = 0;
    if (q->capacity - q->end >= n) return true;
    size_t capacity = q->capacity ? q->capacity : 4096;
    while (capacity - q->end < n) capacity *= 2;
    uint8_t *grown = realloc(q->data, capacity);
    if (!grown) return false;
    q->data = grown;
    q->capacity = capacity;
    return true;
}

static void queue_add(byte_queue *q, const void *data, size_t n)
{
    if (n) memcpy(q->data + q->end, data, n);
    q->end += n;
}

static void queue_free(byte_queue *q)
{
    free(q->data);
    *q = (byte_queue){ 0 };
}

/* ---- life ---- */

fl_status child_link_open(child_link **out, const worker_options *options, fl_err *err)
{
    child_link *link = calloc(1, sizeof *link);
    if (!link) return fl_fail(err, FL_FULL, "worker: no memory for the engine process");
    link->options = options;
    link->fd = link->stderr_fd = -1;
    *out = link;
    return FL_OK;
}

void child_link_close(child_link *link)
{
    child_end end;
    if (!link) return;
    if (link->pid) {
        child_link_kill(link);
        child_link_reap(link, &end);
    }
    queue_free(&link->out);
    queue_free(&link->in);
    free(link);
}

#define ARGS_MAX 24
typedef struct { char *v[ARGS_MAX]; int n; char numbers[ARGS_MAX][24]; } arg_list;

static void add_number(arg_list *args, char *flag, int64_t value, bool always)
{
    if (!value && !always) return;
    snprintf(args->numbers[args->n], sizeof args->numbers[args->n], "%lld", (long long)value);
    args->v[args->n + 1] = args->numbers[args->n];
    args->v[args->n] = flag;
    args->n += 2;
}

static void add_text(arg_list *args, char *flag, const char *value)
{
    args->v[args->n++] = flag;
    args->v[args->n++] = (char *)(uintptr_t)value;
}

static void build_args(arg_list *args, const worker_options *options, int fd)
{
    *args = (arg_list){ .n = 3 };
    args->v[0] = "tokenfleet-worker";
    args->v[1] = options->grades ? "--roles" : "--model";
    args->v[2] = options->grades ? "grade" : (char *)(uintptr_t)options->model;
    if (!options->grades) {
        add_text(args, "--device", options->device);
        add_text(args, "--precision", options->precision);
        add_number(args, "--gpu-share", options->gpu_share, false);
    }
    add_number(args, "--serve", fd, true);
    add_number(args, "--threads", options->n_threads, false);
    add_number(args, "--batch", options->batch_max, false);
    add_number(args, "--prefill-budget", options->prefill_budget, false);
    add_number(args, "--kv-tokens", options->kv_tokens, false);
    add_number(args, "--max-context", options->context_max, false);
}

/* Between fork and exec: async-signal-safe calls only. */
static _Noreturn void become_engine(pid_t parent, int fd, int stderr_fd, char **args)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(WORKER_ENDED_ENVIRONMENT);    /* the parent died before prctl */
    dup2(stderr_fd, STDERR_FILENO);
    fcntl(fd, F_SETFD, 0);
    execv("/proc/self/exe", args);
    _exit(WORKER_ENDED_ENVIRONMENT);
}

fl_status child_link_start(child_link *link, fl_err *err)
{
    int pair[2] = {-1, -1}, errors[2] = {-1, -1};
    arg_list args;
    fl_status st = FL_OK;
    FL_ASSERT(link->pid == 0);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) { st = fl_fail_errno(err, errno, "worker: make a socket pair"); goto done; }
    if (pipe2(errors, O_CLOEXEC) != 0) { st = fl_fail_errno(err, errno, "worker: make a pipe"); goto done; }
    build_args(&args, link->options, pair[1]);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) { st = fl_fail_errno(err, errno, "worker: start the engine process"); goto done; }
    if (pid == 0) become_engine(parent, pair[1], errors[1], args.v);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    link->pid = pid;
    link->fd = pair[0];
    link->stderr_fd = errors[0];
    link->broken = link->was_killed = link->was_hung = false;
    link->moved_ms = link->moved_cpu_ms = link->hung_ms = 0;
    link->n_oom = link->n_oom_before = oom_count_read();
    link->words_bytes = 0;
    pair[0] = errors[0] = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) close(pair[i]);
        if (errors[i] >= 0) close(errors[i]);
    }
    return st;
}

bool child_link_runs(const child_link *link)
{
    return link->pid != 0;
}

void child_link_kill(child_link *link)
{
    link->was_killed = true;
    if (link->pid) kill(link->pid, SIGKILL);
}

/* ---- progress ---- */

void child_link_note_progress(child_link *link, int64_t now_ms)
{
    link->moved_ms = now_ms;
    link->moved_cpu_ms = link->pid ? fl_cpu_us(link->pid) / 1000 : 0;
    link->n_oom_before = link->n_oom;
    link->n_oom = oom_count_read();
}

bool child_link_end_hung(child_link *link, int64_t now_ms, int64_t limit_ms)
{
    if (!link->pid || link->was_killed || now_ms - link->moved_ms < limit_ms) return false;
    link->was_hung = fl_cpu_us(link->pid) / 1000 - link->moved_cpu_ms >= limit_ms / HUNG_CPU_PART;
    link->hung_ms = now_ms - link->moved_ms;
    child_link_kill(link);
    return true;
}

int child_link_fd(const child_link *link)
{
    return link->fd;
}

int child_link_stderr_fd(const child_link *link)
{
    return link->stderr_fd;
}

/* ---- sending ---- */

static void add_frame(byte_queue *q, uint16_t kind, fl_bytes payload)
{
    uint8_t header[FL_FRAME_HEADER_BYTES];
    fl_frame_header(header, kind, &payload, 1, 0);
    queue_add(q, header, sizeof header);
    queue_add(q, payload.data, payload.bytes);
}

fl_status child_link_send(child_link *link, const wire_msg *msg, fl_err *err)
{
    fl_arena arena;
    const uint8_t *header;
    size_t header_bytes, total;
    fl_arena_init(&arena, 4096, 0);
    fl_status st = wire_encode(msg, &arena, &header, &header_bytes, err);
    if (st == FL_OK) {
        total = FL_FRAME_HEADER_BYTES + header_bytes;
        for (uint32_t i = 0; i < msg->n_parts; i++) total += FL_FRAME_HEADER_BYTES + msg->parts[i].bytes;
        if (queue_reserve(&link->out, total)) {
            add_frame(&link->out, WIRE_HEADER, (fl_bytes){ header, header_bytes });
            for (uint32_t i = 0; i < msg->n_parts; i++) add_frame(&link->out, WIRE_PART, msg->parts[i]);
        } else st = fl_fail(err, FL_FULL, "worker: no memory for %zu bytes of messages to the engine process", total);
    }
    fl_arena_fini(&arena);
    return st;
}

void child_link_clear(child_link *link)
{
    queue_free(&link->out);
}

bool child_link_has_queued(const child_link *link)
{
    return link->out.begin < link->out.end;
}

fl_status child_link_flush(child_link *link, fl_err *err)
{
    byte_queue *q = &link->out;
    while (link->fd >= 0 && q->begin < q->end) {
        ssize_t n = send(link->fd, q->data + q->begin, q->end - q->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) q->begin += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EPIPE || errno == ECONNRESET) return FL_OK;   /* its end is seen by recv */
        else if (errno != EINTR) return fl_fail_errno(err, errno, "worker: write to the engine process");
    }
    return FL_OK;
}

/* ---- receiving ---- */

/* The message at the start of `in`. All that an engine process says has no part or one. FL_AGAIN: more bytes are needed. */
static fl_status take_message(child_link *link, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    const uint8_t *data = link->in.data + link->in.begin;
    size_t n = link->in.end - link->in.begin;
    fl_frame header, frame;
    fl_status st = fl_frame_decode(&header, data, n, 0, err);
    if (st != FL_OK) return st;
    if (header.kind != WIRE_HEADER) return fl_fail(err, FL_CORRUPT, "worker: the engine process sent a part without a header");
    size_t used = FL_FRAME_HEADER_BYTES + header.payload_bytes;
    if (wire_decode(msg, header.payload, header.payload_bytes, NULL, 0, arena, NULL) != FL_OK) {
        if ((st = fl_frame_decode(&frame, data + used, n - used, 0, err)) != FL_OK) return st;
        fl_bytes *part = fl_arena_take(arena, sizeof *part);
        if (!part) return fl_fail(err, FL_FULL, "worker: no memory for a message");
        *part = (fl_bytes){ frame.payload, frame.payload_bytes };
        if (frame.kind != WIRE_PART) return fl_fail(err, FL_CORRUPT, "worker: the engine process sent a header where a part belongs");
        if ((st = wire_decode(msg, header.payload, header.payload_bytes, part, 1, arena, err)) != FL_OK) return st;
        used += FL_FRAME_HEADER_BYTES + frame.payload_bytes;
    }
    link->taken = used;
    return FL_OK;
}

fl_status child_link_recv(child_link *link, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    link->in.begin += link->taken;
    link->taken = 0;
    for (;;) {
        if (link->in.begin < link->in.end && !link->broken) {
            fl_status st = take_message(link, msg, arena, err);
            if (st == FL_OK) return FL_OK;
            if (st != FL_AGAIN) {
                link->broken = true;
                child_link_kill(link);
            }
        }
        if (link->fd < 0) return FL_CLOSED;
        if (link->broken) return FL_CLOSED;
        if (!queue_reserve(&link->in, READ_BYTES)) return fl_fail(err, FL_FULL, "worker: no memory to read from the engine process");
        ssize_t n = recv(link->fd, link->in.data + link->in.end, link->in.capacity - link->in.end, MSG_DONTWAIT);
        if (n > 0) link->in.end += (size_t)n;
        else if (n == 0 || errno == ECONNRESET) return FL_CLOSED;
        else if (errno == EAGAIN || errno == EWOULDBLOCK) return FL_AGAIN;
        else if (errno != EINTR) return fl_fail_errno(err, errno, "worker: read from the engine process");
    }
}

static void remember_words(child_link *link, const char *text, size_t n)
{
    if (n >= WORDS_BYTES) {
        text += n - WORDS_BYTES;
        n = WORDS_BYTES;
    }
    size_t room = WORDS_BYTES - link->words_bytes, drop = n > room ? n - room : 0;
    memmove(link->words, link->words + drop, link->words_bytes - drop);
    link->words_bytes -= drop;
    memcpy(link->words + link->words_bytes, text, n);
    link->words_bytes += n;
}

void child_link_read_stderr(child_link *link)
{
    char text[4096];
    while (link->stderr_fd >= 0) {
        ssize_t n = read(link->stderr_fd, text, sizeof text);
        if (n > 0) {
            remember_words(link, text, (size_t)n);
            fwrite(text, 1, (size_t)n, stderr);
        } else if (n < 0 && errno == EINTR) continue;
        else if (n < 0) return;                                  /* nothing there now */
        else {
            close(link->stderr_fd);
            link->stderr_fd = -1;
        }
    }
}

/* ---- the end ---- */

/* Wait for the process: its stream has ended, so it is ending; one that lingers is killed. */
static int wait_for_end(pid_t pid)
{
    int status = 0;
    for (int ms = 0;; ms += 10) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) return status;
        if (ms == REAP_MS) kill(pid, SIGKILL);
        nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000000 }, NULL);
    }
}

/* The last whole bytes of the words that fit, from the start of a line; and the last line. */
static void last_words(const child_link *link, child_end *end)
{
    const char *words = link->words;
    size_t n = link->words_bytes;
    while (n > 0 && (words[n - 1] == '\n' || words[n - 1] == '\r')) n--;
    size_t from = n > sizeof end->words - 1 ? n - (sizeof end->words - 1) : 0, line = n;
    while (line > 0 && words[line - 1] != '\n') line--;
    if (line < from) line = from;
    if (from > 0)
        for (size_t i = from; i < line; i++)
            if (words[i] == '\n') { from = i + 1; break; }
    while (from < n && ((uint8_t)words[from] & 0xC0) == 0x80) from++;
    if (line < from) line = from;
    snprintf(end->words, sizeof end->words, "%.*s", (int)(n - from), words + from);
    snprintf(end->last_line, sizeof end->last_line, "%.*s", (int)(n - line), words + line);
}

static bool is_crash(int signal_number)
{
    return signal_number == SIGSEGV || signal_number == SIGBUS || signal_number == SIGFPE || signal_number == SIGILL || signal_number == SIGABRT;
}

/* Did it end by its own doing? A SIGKILL says so only where the kernel counted a process that it killed for want of memory. */
static void judge(const child_link *link, child_end *end)
{
    bool is_oom = end->signal_number == SIGKILL && !link->was_killed && link->n_oom_before >= 0 && oom_count_read() > link->n_oom_before;
    if (is_oom) snprintf(end->sentence, sizeof end->sentence, "the kernel ended the engine process for want of memory");
    if (link->hung_ms) snprintf(end->sentence, sizeof end->sentence, "the engine process computed no token for %lld s and was ended", (long long)(link->hung_ms / 1000));
    end->is_evidence = is_crash(end->signal_number) || is_oom || link->was_hung || (end->signal_number == 0 && (end->exit_status == WORKER_ENDED_MEMORY || end->exit_status == WORKER_ENDED_GPU));
}

void child_link_reap(child_link *link, child_end *end)
{
    *end = (child_end){ 0 };
    FL_ASSERT(link->pid);
    int status = wait_for_end(link->pid);
    child_link_read_stderr(link);
    if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        end->signal_number = WTERMSIG(status);
        snprintf(end->sentence, sizeof end->sentence, "the engine process was ended by SIG%s", name ? name : "?");
    } else {
        end->exit_status = WEXITSTATUS(status);
        snprintf(end->sentence, sizeof end->sentence, "the engine process ended with status %d", end->exit_status);
    }
    last_words(link, end);
    judge(link, end);
    close(link->fd);
    if (link->stderr_fd >= 0) close(link->stderr_fd);
    link->fd = link->stderr_fd = -1;
    link->pid = 0;
    link->taken = 0;
    queue_free(&link->in);
}
