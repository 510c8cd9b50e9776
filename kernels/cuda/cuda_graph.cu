/* cuda_graph.cu - calls that come again and again, recorded as CUDA graphs: a step of some three hundred launches becomes one (kernels/ops.h: replay).
 * Modes    a key's first calls are just made: what the driver loads when a kernel is first used must not be loaded while a stream is captured. Its second are captured, made a graph
 *          and launched, the later ones replayed.
 * Memory   GRAPHS_MAX graphs at most, some hundred kilobytes of the device's each; the one that was not used for longest goes. By then it is no longer running: a graph a step.
 * Failure  where a capture cannot begin or fails, or a graph or its first launch does, graphs are off from then on, the log says so, and calls are made one by one: again, where they
 *          were captured.
 * Threads  as ops.h: one engine thread. Captures are the thread's own: what other threads of the process do with the GPU does not disturb them. */
#include "kernels/cuda/cuda_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAPHS_MAX 96

typedef struct { uint64_t key, used; cudaGraphExec_t graph; bool is_there; } recording;      /* used: the call of replay() it was last asked for at; graph NULL: its calls were made once */

struct cuda_graphs {
    recording all[GRAPHS_MAX];
    uint64_t n_calls;
    recording *current;                  /* being captured */
    bool is_off;
    cudaError_t refusal;                 /* of a capture that could not begin, which the log has not been told of */
};

static void forget(recording *r)
{
    if (r->graph) cudaGraphExecDestroy(r->graph);
    *r = {};
}

static recording *find(cuda_graphs *g, uint64_t key)
{
    for (int i = 0; i < GRAPHS_MAX; i++) if (g->all[i].is_there && g->all[i].key == key) return &g->all[i];
    return NULL;
}

/* A place for a new key: a free one, or that of the one not used for longest. */
static recording *make_room(cuda_graphs *g)
{
    recording *oldest = &g->all[0];
    for (int i = 0; i < GRAPHS_MAX && oldest->is_there; i++) if (!g->all[i].is_there || g->all[i].used < oldest->used) oldest = &g->all[i];
    forget(oldest);
    return oldest;
}

static bool cuda_replay(ops *table, uint64_t key)
{
    ops_cuda *o = cuda_of(table);
    cuda_graphs *g = o->graphs;
    FL_ASSERT(!g->current);
    if (g->is_off) return false;
    if (o->error != cudaSuccess) return true;            /* nothing is launched after an error */
    recording *r = find(g, key);
    g->n_calls++;
    if (r && r->graph) {
        r->used = g->n_calls;
        cuda_keep(o, cudaGraphLaunch(r->graph, o->stream), "a recorded step");
        return true;
    }
    if (!r) {
        r = make_room(g);
        r->key = key;
        r->is_there = true;
    } else if ((g->refusal = cudaStreamBeginCapture(o->stream, cudaStreamCaptureModeThreadLocal)) == cudaSuccess) {
        g->current = r;
    } else {
        cudaGetLastError();                              /* then its calls are made as they are */
        g->is_off = true;
    }
    r->used = g->n_calls;
    return false;
}

/* No more recordings, because of `e` at `failed`; what was recorded is forgotten. */
static void turn_off(ops_cuda *o, cudaError_t e, const char *failed, char *note)
{
    snprintf(note, OPS_NOTE_BYTES, "cuda: a step could not be recorded as a graph (%s%s%s); steps are launched kernel by kernel from now on", cudaGetErrorString(e), failed ? " at " : "",
             failed ? failed : "");
    o->graphs->is_off = true;
    graphs_forget(o);
}

static bool cuda_record_end(ops *table, char *note)
{
    ops_cuda *o = cuda_of(table);
    cuda_graphs *g = o->graphs;
    recording *r = g->current;
    cudaGraph_t graph = NULL;
    note[0] = '\0';
    if (!r) {
        if (g->refusal != cudaSuccess) turn_off(o, g->refusal, NULL, note);
        g->refusal = cudaSuccess;
        return true;
    }
    g->current = NULL;
    cudaError_t e = cudaStreamEndCapture(o->stream, &graph);
    if (e == cudaSuccess) e = o->error;
    if (e == cudaSuccess && (e = cudaGraphInstantiate(&r->graph, graph, 0)) != cudaSuccess) r->graph = NULL;
    if (graph) cudaGraphDestroy(graph);
    if (e == cudaSuccess) e = cudaGraphLaunch(r->graph, o->stream);      /* the first time it also goes to the GPU, which may have no memory for it */
    if (e == cudaSuccess) return true;
    turn_off(o, e, o->failed, note);
    cudaGetLastError();
    o->error = cudaSuccess;                              /* nothing of it has run; what is really wrong shows when the calls are made again */
    o->failed = NULL;
    return false;
}

void graphs_forget(ops_cuda *o)
{
    for (int i = 0; o->graphs && i < GRAPHS_MAX; i++) forget(&o->graphs->all[i]);
}

fl_status graphs_install(ops_cuda *o, fl_err *err)
{
    const char *wanted = getenv("TOKENFLEET_GRAPHS");
    if (wanted && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0) return fl_fail(err, FL_INVALID, "cuda: TOKENFLEET_GRAPHS is '%s'; say 0 to launch steps kernel by kernel, or 1, or unset it", wanted);
    if (o->is_synchronous || (wanted && strcmp(wanted, "0") == 0)) return FL_OK;
    o->graphs = (cuda_graphs *)calloc(1, sizeof *o->graphs);
    if (!o->graphs) return fl_fail(err, FL_FULL, "cuda: no memory for recorded steps");
    o->table.replay = cuda_replay;
    o->table.record_end = cuda_record_end;
    return FL_OK;
}

void graphs_close(ops_cuda *o)
{
    graphs_forget(o);
    free(o->graphs);
    o->graphs = NULL;
}
