#include "engine/weight_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weight_files {
    safetensors *st;                     /* owned; one of the two is there */
    gguf *g;                             /* owned */
    const char *family;                  /* of a GGUF file; NULL when it is none of ours */
};

fl_status weight_files_open(weight_files **out, const char *path, fl_err *err)
{
    const char *architecture;
    size_t n_bytes;
    weight_files *w = calloc(1, sizeof *w);
    if (!w) return fl_fail(err, FL_FULL, "weights: no memory");
    const bool is_gguf = gguf_is_path(path);
    fl_status st = is_gguf ? gguf_open(&w->g, path, err) : safetensors_open(&w->st, path, err);
    if (st == FL_OK && is_gguf && gguf_text(w->g, "general.architecture", &architecture, &n_bytes, NULL) == FL_OK) w->family = gguf_family(architecture, n_bytes);
    if (st == FL_OK) *out = w;
    else weight_files_close(w);
    return st;
}

void weight_files_close(weight_files *w)
{
    if (!w) return;
    safetensors_close(w->st);
    gguf_close(w->g);
    free(w);
}

size_t weight_files_count(const weight_files *w) { return w->g ? gguf_tensor_count(w->g) : safetensors_count(w->st); }
const tensor *weight_files_at(const weight_files *w, size_t index) { return w->g ? gguf_tensor_at(w->g, index) : safetensors_at(w->st, index); }

size_t weight_files_index(const weight_files *w, const tensor *t) { return (size_t)(t - weight_files_at(w, 0)); }

const tensor *weight_files_find(const weight_files *w, const char *name, gguf_change *change)
{
    char there[256];
    gguf_change made = GGUF_AS_IS;
    const tensor *t = NULL;
    if (!w->g) t = safetensors_find(w->st, name);
    else if (w->family && gguf_tensor_name(there, sizeof there, &made, w->family, name)) t = gguf_tensor_find(w->g, there);
    if (change) *change = made;
    return t;
}

const tensor *weight_files_factors(const weight_files *w, const tensor *t)
{
    static const char end[] = ".weight";
    const size_t n = strlen(t->name);
    char name[256];
    if (!w->g || n < sizeof end || strcmp(t->name + n - (sizeof end - 1), end) != 0) return NULL;
    return snprintf(name, sizeof name, "%.*s.scale", (int)(n - (sizeof end - 1)), t->name) < (int)sizeof name ? gguf_tensor_find(w->g, name) : NULL;
}

size_t weight_files_file_count(const weight_files *w) { return w->g ? gguf_file_count(w->g) : safetensors_file_count(w->st); }
const uint8_t *weight_files_header(const weight_files *w, size_t file, size_t *n_bytes) { return w->g ? gguf_header(w->g, file, n_bytes) : safetensors_header(w->st, file, n_bytes); }
const gguf *weight_files_gguf(const weight_files *w) { return w->g; }
