/* poison_worker.c - tokenfleet-worker with an engine that ends, in its n-th way, over prompts that begin with the marker and n: linked in front of engine_add and engine_step (ld --wrap), so
 * that nothing of it is in the product. Each prompt that the engine takes is written to the file POISON_LOG, one line of ids each, so that a test counts how often a row began. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/engine.h"

#define PIECE_BYTES (8u << 20)
#define SHOWN_IDS 8

static const int32_t marker[] = { 901, 902, 903, 904 };
#define MARKER_IDS ((int32_t)(sizeof marker / sizeof *marker))

typedef enum { POISON_NONE, POISON_ABORT, POISON_SEGFAULT, POISON_LOOP, POISON_MEMORY, POISON_ILLEGAL, POISON_GPU } poison;
static poison pending;

fl_status __real_engine_add(engine *e, const engine_request *request, fl_err *err);
fl_status __real_engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err);
fl_status __wrap_engine_add(engine *e, const engine_request *request, fl_err *err);
fl_status __wrap_engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err);

static void note_prompt(const engine_request *request)
{
    char line[256];
    int n = 0;                               /* n_prompt >= 1 */
    const char *path = getenv("POISON_LOG");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    for (int32_t i = 0; i < request->n_prompt && i < SHOWN_IDS; i++) n += snprintf(line + n, sizeof line - (size_t)n, "%d ", request->prompt[i]);
    line[n ? n - 1 : 0] = '\n';              /* in the place of the last blank */
    if (fd < 0 || write(fd, line, (size_t)n) != n) _exit(9);
    close(fd);
}

fl_status __wrap_engine_add(engine *e, const engine_request *request, fl_err *err)
{
    note_prompt(request);
    if (request->n_prompt > MARKER_IDS && memcmp(request->prompt, marker, sizeof marker) == 0) pending = (poison)request->prompt[MARKER_IDS];
    return __real_engine_add(e, request, err);
}

static volatile char *grow(void)
{
    volatile char *piece = malloc(PIECE_BYTES);
    for (size_t i = 0; piece && i < PIECE_BYTES; i += 4096) piece[i] = 1;
    return piece;
}

fl_status __wrap_engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err)
{
    volatile unsigned turns = 0;
    switch (pending) {
    case POISON_ABORT: abort();
    case POISON_SEGFAULT: *(volatile int *)(uintptr_t)turns = 1; break;
    case POISON_LOOP: for (;;) turns++;
    case POISON_MEMORY:
        while (grow()) {}
        *n_events = 0;
        return fl_fail(err, FL_FULL, "poison: no memory");
    case POISON_ILLEGAL: __builtin_trap();
    case POISON_GPU:
        *n_events = 0;
        return fl_fail(err, FL_GPU, "cuda: GPU 0 failed at attention: an illegal memory access was encountered");
    default: break;
    }
    return __real_engine_step(e, events, capacity, n_events, err);
}
