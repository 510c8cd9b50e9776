/* row_prep.c - see row_prep.h. */
#include "worker/row_prep.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { row_item *head, *tail; } item_list;

struct row_prep {
    row_maker *maker;                /* borrowed, the thread's */
    int wake_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t pushed;
    /* under lock: */
    item_list waiting, finished;
    bool stopping;
};

static void append(item_list *list, row_item *item)
{
    item->next = NULL;
    if (list->tail) list->tail->next = item;
    else list->head = item;
    list->tail = item;
}

static row_item *remove_head(item_list *list)
{
    row_item *item = list->head;
    if (!item) return NULL;
    list->head = item->next;
    if (!list->head) list->tail = NULL;
    return item;
}

static void *prep_main(void *context)
{
    row_prep *prep = context;
    pthread_mutex_lock(&prep->lock);
    while (!prep->stopping) {
        row_item *item = remove_head(&prep->waiting);
        if (!item) { pthread_cond_wait(&prep->pushed, &prep->lock); continue; }
        pthread_mutex_unlock(&prep->lock);
        if (atomic_load(&item->cancelled)) item->status = FL_CLOSED;
        else item->status = row_request_make(prep->maker, item->job, item->line, item->line_bytes, item->line_number, &item->request, &item->refusal, &item->err);
        if (item->status == FL_OK && item->is_renamed) row_request_rename(&item->request, item->line_number);
        free(item->line);
        item->line = NULL;
        pthread_mutex_lock(&prep->lock);
        append(&prep->finished, item);
        uint64_t one = 1;
        ssize_t n;
        do n = write(prep->wake_fd, &one, sizeof one); while (n < 0 && errno == EINTR);
        FL_ASSERT(n == sizeof one || errno == EAGAIN);       /* EAGAIN: the counter is at its end, so the owner is awake anyway */
    }
    pthread_mutex_unlock(&prep->lock);
    return NULL;
}

fl_status row_prep_start(row_prep **out, row_maker *maker, int wake_fd, fl_err *err)
{
    sigset_t all, before;
    row_prep *prep = calloc(1, sizeof *prep);
    if (!prep) return fl_fail(err, FL_FULL, "worker: no memory for the row queue");
    prep->maker = maker;
    prep->wake_fd = wake_fd;
    pthread_mutex_init(&prep->lock, NULL);
    pthread_cond_init(&prep->pushed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&prep->thread, NULL, prep_main, prep);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_cond_destroy(&prep->pushed);
        pthread_mutex_destroy(&prep->lock);
        free(prep);
        return fl_fail_errno(err, failed, "worker: start the row thread");
    }
    *out = prep;
    return FL_OK;
}

void row_prep_stop(row_prep *prep)
{
    row_item *item;
    if (!prep) return;
    pthread_mutex_lock(&prep->lock);
    prep->stopping = true;
    pthread_cond_signal(&prep->pushed);
    pthread_mutex_unlock(&prep->lock);
    pthread_join(prep->thread, NULL);
    while ((item = remove_head(&prep->waiting)) != NULL) row_item_free(item);
    while ((item = remove_head(&prep->finished)) != NULL) row_item_free(item);
    pthread_cond_destroy(&prep->pushed);
    pthread_mutex_destroy(&prep->lock);
    free(prep);
}

fl_status row_prep_push(row_prep *prep, uint64_t tag, const job_settings *job, const void *line, size_t line_bytes, uint64_t line_number, bool is_renamed,
                        row_item **out, fl_err *err)
{
    row_item *item = calloc(1, sizeof *item);
    char *copy = malloc(line_bytes + 1);
    if (!item || !copy) {
        free(item);
        free(copy);
        return fl_fail(err, FL_FULL, "worker: no memory for a line of %zu bytes", line_bytes);
    }
    memcpy(copy, line, line_bytes);
    copy[line_bytes] = '\0';
    item->tag = tag;
    item->job = job;
    item->line = copy;
    item->line_bytes = line_bytes;
    item->line_number = line_number;
    item->is_renamed = is_renamed;
    pthread_mutex_lock(&prep->lock);
    append(&prep->waiting, item);
    pthread_cond_signal(&prep->pushed);
    pthread_mutex_unlock(&prep->lock);
    *out = item;
    return FL_OK;
}

row_item *row_prep_take(row_prep *prep)
{
    pthread_mutex_lock(&prep->lock);
    row_item *item = remove_head(&prep->finished);
    pthread_mutex_unlock(&prep->lock);
    return item;
}

void row_item_free(row_item *item)
{
    if (!item) return;
    row_request_free(&item->request);
    free(item->line);
    free(item);
}
