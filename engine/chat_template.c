/* chat_template_render ──(length, now, request)──▶ helper ──(length, kind, bytes)──▶ text or sentence
 * The helper's limits are the kernel's (address space, a CPU timer that it arms for each row), so a row's fate does not depend on how busy the machine is. The wall clock only
 * guards against a helper that does not run at all. */
#include "engine/chat_template.h"
#include "engine/gguf_tokenizer.h"
#include "proto/clock.h"
#include "proto/json_load.h"
#include "engine/chat_helper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HELPER_MEMORY_BYTES (512ull << 20)
enum { FILE_BYTES_MAX = 64 << 20, TEXT_BYTES_MAX = 256 << 20, WALL_MS_MAX = 60000, RENDER_ATTEMPTS = 3 };

struct chat_template {
    char *setup; size_t setup_bytes;     /* owned; the helper's first message */
    char *python;                        /* owned */
    pid_t pid;                           /* 0 = no helper runs */
    int fd;                              /* our end of its socket, -1 = none */
    bool is_used;                        /* it has rendered something, and may hold memory of that */
};

typedef struct { char kind; char *bytes; size_t n_bytes; } reply;       /* bytes owned, NUL-terminated */

/* ---- the template's files ---- */

/* Read a whole file; *text stays NULL when it does not exist. */
static fl_status read_optional(const char *dir, const char *name, char **text, size_t *n_bytes, fl_err *err)
{
    char path[4096];
    *text = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return fl_fail(err, FL_INVALID, "chat template: the path %.200s... is too long", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return FL_OK;
    if (fd < 0) return fl_fail_errno(err, errno, "chat template: cannot open %s", path);
    fl_status st = FL_OK;
    struct stat info;
    char *made = NULL;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > FILE_BYTES_MAX) {
        st = fl_fail(err, FL_CORRUPT, "chat template: the model's %s is not a file of at most %d bytes", name, FILE_BYTES_MAX);
        goto done;
    }
    made = malloc((size_t)info.st_size + 1);
    if (!made) { st = fl_fail(err, FL_FULL, "chat template: no memory for %s", path); goto done; }
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, made + n, (size_t)info.st_size - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) { st = fl_fail_errno(err, errno, "chat template: cannot read %s", path); goto done; }
        if (got == 0) break;
        n += (size_t)got;
    }
    made[n] = '\0';
    *text = made;
    *n_bytes = n;
    made = NULL;
done:
    free(made);
    close(fd);
    return st;
}

/* A JSON object file, or NULL when it is not there. */
static fl_status read_json(const char *dir, const char *name, json_t **out, fl_err *err)
{
    char *text;
    size_t n;
    *out = NULL;
    fl_status st = read_optional(dir, name, &text, &n, err);
    if (st != FL_OK || !text) return st;
    st = fl_json_load(out, name, text, n, JSON_ALLOW_NUL, err);
    free(text);
    if (st == FL_FULL || json_is_object(*out)) return st;
    json_decref(*out);
    *out = NULL;
    return fl_fail(err, FL_CORRUPT, "chat template: the model's %s is not a JSON object", name);
}

/* tokenizer_config.json, or what a GGUF file has of it. A sentence may become a row error, so the file's name is left out of it. */
static fl_status read_config(const char *model, bool *is_gguf, json_t **out, fl_err *err)
{
    gguf *g = NULL;
    fl_err why = { 0 };
    *out = NULL;
    *is_gguf = gguf_is_path(model);
    if (!*is_gguf) return read_json(model, "tokenizer_config.json", out, err);
    fl_status st = gguf_open(&g, model, &why);
    if (st == FL_OK) st = gguf_tokenizer_config_make(out, g, &why);
    const size_t n = g ? strlen(gguf_name(g)) : 0;
    const char *text = why.text;
    if (g && strncmp(text, gguf_name(g), n) == 0 && strncmp(text + n, ": ", 2) == 0) text += n + 2;
    if (st != FL_OK) fl_fail(err, st, "chat template: the model's metadata: %s", text);
    gguf_close(g);
    return st;
}

/* bos_token, eos_token ... as the template's variables: a string, or an object with `content`. The first file to name one wins. */
static void add_special(json_t *special, const json_t *config)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(config, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v) && !json_object_get(special, names[i])) json_object_set(special, names[i], v);
    }
}

/* The templates of tokenizer_config.json: {"default": ..., ...}. */
static fl_status add_templates(json_t *templates, const json_t *config, fl_err *err)
{
    json_t *given = json_object_get(config, "chat_template");
    if (json_is_string(given)) json_object_set(templates, "default", given);
    for (size_t i = 0; json_is_array(given) && i < json_array_size(given); i++) {
        json_t *name = json_object_get(json_array_get(given, i), "name"), *text = json_object_get(json_array_get(given, i), "template");
        if (!json_is_string(name) || !json_is_string(text)) return fl_fail(err, FL_CORRUPT, "chat template: entry %zu of chat_template in the model's tokenizer_config.json lacks a name or a template", i);
        json_object_set(templates, json_string_value(name), text);
    }
    return FL_OK;
}

static fl_status add_file(json_t *templates, const char *name, size_t name_bytes, const char *dir, const char *file, fl_err *err)
{
    char *text = NULL;
    size_t n = 0;
    fl_status st = read_optional(dir, file, &text, &n, err);
    if (st != FL_OK || !text) return st;
    json_t *source = json_stringn(text, n);
    free(text);
    if (!source) return fl_fail(err, FL_CORRUPT, "chat template: the model's %s is not UTF-8", file);
    return json_object_setn_new(templates, name, name_bytes, source) == 0 ? FL_OK : fl_fail(err, FL_CORRUPT, "chat template: the name of an additional chat template of the model is not UTF-8");
}

/* additional_chat_templates/NAME.jinja. */
static fl_status add_folder(json_t *templates, const char *dir, fl_err *err)
{
    static const char suffix[] = ".jinja";
    char path[4096];
    if (snprintf(path, sizeof path, "%s/additional_chat_templates", dir) >= (int)sizeof path) return fl_fail(err, FL_INVALID, "chat template: the path %.200s... is too long", dir);
    DIR *d = opendir(path);
    struct dirent *e;
    fl_status st = FL_OK;
    if (!d && (errno == ENOENT || errno == ENOTDIR)) return FL_OK;
    if (!d) return fl_fail_errno(err, errno, "chat template: cannot read %s", path);
    while (st == FL_OK && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (n < sizeof suffix || strcmp(e->d_name + n - (sizeof suffix - 1), suffix) != 0) continue;
        st = add_file(templates, e->d_name, n - (sizeof suffix - 1), path, e->d_name, err);
    }
    closedir(d);
    return st;
}

/* The templates by name: those in the files of a directory, else the configuration's. dir NULL: there is none. */
static fl_status gather_templates(json_t *templates, const json_t *config, const char *dir, fl_err *err)
{
    fl_status st = dir ? add_file(templates, "default", strlen("default"), dir, "chat_template.jinja", err) : FL_OK;
    if (st == FL_OK && dir) st = add_folder(templates, dir, err);
    if (st == FL_OK && json_object_size(templates) == 0) st = add_templates(templates, config, err);
    if (st != FL_OK) return st;
    if (json_object_size(templates) == 0) return fl_fail(err, FL_NOT_FOUND, "the model has no chat template: send a prompt instead of messages");
    return json_object_get(templates, "default") ? FL_OK : fl_fail(err, FL_UNSUPPORTED, "chat template: none of the model's templates is called `default`");
}

static fl_status make_setup(chat_template *t, const char *model, fl_err *err)
{
    bool is_gguf;
    json_t *config = NULL, *map = NULL, *templates = json_object(), *special = json_object(), *setup = NULL;
    fl_status st = read_config(model, &is_gguf, &config, err);
    if (st != FL_OK || (!is_gguf && (st = read_json(model, "special_tokens_map.json", &map, err)) != FL_OK)) goto done;
    if ((st = gather_templates(templates, config, is_gguf ? NULL : model, err)) != FL_OK) goto done;
    add_special(special, config);
    add_special(special, map);
    setup = json_pack("{s:O,s:O}", "templates", templates, "special", special);
    t->setup = setup ? json_dumps(setup, JSON_COMPACT) : NULL;
    if (!t->setup) { st = fl_fail(err, FL_FULL, "chat template: no memory for the template"); goto done; }
    t->setup_bytes = strlen(t->setup);
done:
    json_decref(config);
    json_decref(map);
    json_decref(templates);
    json_decref(special);
    json_decref(setup);
    return st;
}

fl_status chat_template_names(json_t **names, const char *model, fl_err *err)
{
    bool is_gguf;
    json_t *config = NULL, *templates = json_object(), *list = json_array(), *source;
    const char *name;
    fl_status st = read_config(model, &is_gguf, &config, err);
    if (st == FL_OK) st = gather_templates(templates, config, is_gguf ? NULL : model, err);
    if (st == FL_OK) json_object_foreach(templates, name, source) json_array_append_new(list, json_string(name));
    json_decref(config);
    json_decref(templates);
    if (st == FL_OK) *names = list;
    else json_decref(list);
    return st;
}

/* ---- the helper process ---- */

/* Between fork and exec: only calls that are safe there. */
static _Noreturn void become_helper(const char *python, int fd, pid_t parent)
{
    static char *const environment[] = { "TZ=UTC", "LC_ALL=C", "PYTHONHASHSEED=0", "PATH=/usr/bin:/bin", NULL };
    char *const arguments[] = { (char *)python, "-s", "-c", (char *)chat_helper_source, NULL };
    const struct rlimit memory = { HELPER_MEMORY_BYTES, HELPER_MEMORY_BYTES }, no_core = { 0, 0 };
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);                   /* the parent died before it could be watched */
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(fd, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || chdir("/") != 0) _exit(126);
    close_range(3, ~0u, 0);
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &no_core);
    execve(python, arguments, environment);
    _exit(127);
}

/* End the helper and return how it ended, as waitpid says; 0 when none ran. */
static int stop_helper(chat_template *t)
{
    int how = 0;
    if (t->fd >= 0) close(t->fd);
    t->fd = -1;
    if (t->pid > 0) {
        /* A helper that is ending by itself shows its own reason: give it a moment before the kill. */
        struct timespec pause = { 0, 10 * 1000 * 1000 };
        pid_t got = 0;
        for (int i = 0; i < 100 && (got = waitpid(t->pid, &how, WNOHANG)) == 0; i++) nanosleep(&pause, NULL);
        if (got == 0) {
            kill(t->pid, SIGKILL);
            while (waitpid(t->pid, &how, 0) < 0 && errno == EINTR) { }
        }
    }
    t->pid = 0;
    return how;
}

/* Move n bytes; false when the helper is gone, and *late when the deadline passed. */
static bool transfer(int fd, bool sending, void *bytes, size_t n, int64_t deadline_ms, bool *late)
{
    uint8_t *at = bytes;
    while (n > 0) {
        ssize_t done = sending ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, n, MSG_DONTWAIT);
        if (done > 0) { at += done; n -= (size_t)done; continue; }
        if (done == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
        int64_t left_ms = deadline_ms - fl_awake_ms();
        if (left_ms <= 0) { *late = true; return false; }
        struct pollfd wait = { .fd = fd, .events = sending ? POLLOUT : POLLIN };
        poll(&wait, 1, (int)left_ms);
    }
    return true;
}

/* Send one message of two parts and take the answer. FL_CLOSED when the helper ended meanwhile. */
static fl_status ask(chat_template *t, const void *head, size_t head_bytes, const void *body, size_t body_bytes, reply *out, fl_err *err)
{
    int64_t deadline_ms = fl_awake_ms() + WALL_MS_MAX;
    bool late = false;
    uint8_t length[4];
    uint32_t n = (uint32_t)(head_bytes + body_bytes);
    for (int i = 0; i < 4; i++) length[i] = (uint8_t)(n >> 8 * i);
    if (!transfer(t->fd, true, length, 4, deadline_ms, &late) || !transfer(t->fd, true, (void *)head, head_bytes, deadline_ms, &late) ||
        !transfer(t->fd, true, (void *)body, body_bytes, deadline_ms, &late) || !transfer(t->fd, false, length, 4, deadline_ms, &late)) goto lost;
    n = (uint32_t)length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 | (uint32_t)length[3] << 24;
    if (n == 0 || n > TEXT_BYTES_MAX) return fl_fail(err, FL_INVALID, "chat template: the rendered chat is longer than %d bytes", TEXT_BYTES_MAX);
    *out = (reply){ .n_bytes = n - 1, .bytes = malloc(n) };
    if (!out->bytes) return fl_fail(err, FL_FULL, "chat template: no memory for a text of %u bytes", n);
    if (!transfer(t->fd, false, &out->kind, 1, deadline_ms, &late) || !transfer(t->fd, false, out->bytes, n - 1, deadline_ms, &late)) {
        free(out->bytes);
        out->bytes = NULL;
        goto lost;
    }
    out->bytes[n - 1] = '\0';
    return FL_OK;
lost:
    if (late) return fl_fail(err, FL_TIMEOUT, "chat template: the helper gave no answer for %d s: the machine is overloaded", WALL_MS_MAX / 1000);
    return fl_fail(err, FL_CLOSED, "chat template: the helper ended");
}

static fl_status start_helper(chat_template *t, fl_err *err)
{
    int ends[2];
    if (access(t->python, X_OK) != 0)
        return fl_fail_errno(err, errno, "chat template: cannot run %s; install python3 and python3-jinja2, or set TOKENFLEET_PYTHON to a Python that has Jinja2", t->python);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fl_fail_errno(err, errno, "chat template: cannot make a socket pair");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_helper(t->python, ends[1], parent);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return fl_fail_errno(err, errno, "chat template: cannot start %s", t->python);
    }
    t->pid = pid;
    t->fd = ends[0];
    t->is_used = false;
    reply got = { 0 };
    fl_status st = ask(t, "", 0, t->setup, t->setup_bytes, &got, err);
    if (st == FL_OK && got.kind == 'R') {
        free(got.bytes);
        return FL_OK;
    }
    if (st == FL_OK)
        st = fl_fail(err, FL_IO, "chat template: %s has no usable Jinja2 (%s); install python3-jinja2, or set TOKENFLEET_PYTHON to a Python that has it", t->python, got.bytes);
    else if (st == FL_CLOSED || st == FL_INVALID)
        st = fl_fail(err, FL_IO, "chat template: %s ended at once or is no Python; install python3 and python3-jinja2, or set TOKENFLEET_PYTHON to a Python that has Jinja2", t->python);
    free(got.bytes);
    stop_helper(t);
    return st;
}

/* ---- rendering ---- */

/* The sentence of a row that ended its helper; FL_CLOSED when something else did. */
static fl_status row_that_ended(int how, fl_err *err)
{
    int signal_number = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
    switch (signal_number) {
    case SIGPROF: return fl_fail(err, FL_INVALID, "chat template: rendering took more than 5 s");
    case SIGSEGV: case SIGBUS: case SIGABRT: case SIGFPE: case SIGILL:
        return fl_fail(err, FL_INVALID, "chat template: rendering ended its process with signal %d", signal_number);
    default: return FL_CLOSED;
    }
}

/* One attempt; FL_CLOSED when the helper was ended from outside, and when it ran out of memory (or crashed) although other rows' leftovers may be why: a row's fate
 * is the one it has in a helper of its own. */
static fl_status render_once(chat_template *t, const char *request, size_t n_bytes, uint32_t now_s, reply *got, fl_err *err)
{
    fl_status st = t->pid > 0 ? FL_OK : start_helper(t, err);
    if (st != FL_OK) return st;
    const uint8_t now[4] = { (uint8_t)now_s, (uint8_t)(now_s >> 8), (uint8_t)(now_s >> 16), (uint8_t)(now_s >> 24) };
    st = ask(t, now, sizeof now, request, n_bytes, got, err);
    if (st == FL_OK && got->kind != 'M') { t->is_used = true; return FL_OK; }
    bool is_own = !t->is_used;
    int how = stop_helper(t);
    if (st == FL_OK && !is_own) {
        free(got->bytes);
        *got = (reply){ 0 };
        return FL_CLOSED;
    }
    return st == FL_CLOSED && (is_own || WTERMSIG(how) == SIGPROF) ? row_that_ended(how, err) : st;
}

fl_status chat_template_render(chat_template *t, const char *request, size_t n_bytes, uint32_t now_s, char **text, size_t *text_bytes, fl_err *err)
{
    if (n_bytes > TEXT_BYTES_MAX) return fl_fail(err, FL_INVALID, "chat template: a request of %zu bytes is above the limit of %d", n_bytes, TEXT_BYTES_MAX);
    reply got = { 0 };
    fl_status st = FL_CLOSED;
    for (int i = 0; i < RENDER_ATTEMPTS && st == FL_CLOSED; i++) st = render_once(t, request, n_bytes, now_s, &got, err);
    if (st == FL_CLOSED) return fl_fail(err, FL_IO, "chat template: the helper was ended again and again from outside; look for a killer of processes or of memory on this machine");
    if (st != FL_OK) return st;
    if (got.kind == 'T') {
        *text = got.bytes;
        *text_bytes = got.n_bytes;
        return FL_OK;
    }
    if (got.kind == 'M') st = fl_fail(err, FL_INVALID, "chat template: rendering took more than 512 MB");
    else st = fl_fail(err, FL_INVALID, "chat template: %s", got.bytes);
    free(got.bytes);
    return st;
}

fl_status chat_template_open(chat_template **out, const char *model, fl_err *err)
{
    const char *python = getenv("TOKENFLEET_PYTHON");
    chat_template *t = calloc(1, sizeof *t);
    if (!t) return fl_fail(err, FL_FULL, "chat template: no memory");
    t->fd = -1;
    t->python = strdup(python && python[0] ? python : "/usr/bin/python3");
    fl_status st = t->python ? make_setup(t, model, err) : fl_fail(err, FL_FULL, "chat template: no memory");
    if (st == FL_OK) st = start_helper(t, err);
    if (st != FL_OK) { chat_template_close(t); return st; }
    *out = t;
    return FL_OK;
}

void chat_template_close(chat_template *t)
{
    if (!t) return;
    stop_helper(t);
    free(t->setup);
    free(t->python);
    free(t);
}
