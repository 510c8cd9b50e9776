#include "engine/safetensors.h"
#include "engine/mapped_file.h"
#include "proto/json_load.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (100u << 20)    /* the format's own bound */
#define INDEX_BYTES_MAX (100u << 20)
#define SHARDS_MAX 4096

struct safetensors {
    mapped_file *files; size_t n_files;  /* owned */
    tensor *tensors; size_t n_tensors, capacity;         /* owned, names too; sorted by name when open */
};

static const struct { const char *name; uint64_t bytes; bool is_weight; dtype type; } dtypes[] = {
    { "BF16", 2, true, DTYPE_BF16 }, { "F16", 2, true, DTYPE_F16 }, { "F32", 4, true, DTYPE_F32 },
    { "F64", 8, false, 0 }, { "I64", 8, false, 0 }, { "U64", 8, false, 0 }, { "I32", 4, false, 0 }, { "U32", 4, false, 0 },
    { "I16", 2, false, 0 }, { "U16", 2, false, 0 }, { "I8", 1, false, 0 }, { "U8", 1, false, 0 }, { "BOOL", 1, false, 0 },
    { "F8_E4M3", 1, false, 0 }, { "F8_E5M2", 1, false, 0 },
};

static int find_dtype(const char *name)
{
    for (int i = 0; i < (int)(sizeof dtypes / sizeof *dtypes); i++) if (strcmp(dtypes[i].name, name) == 0) return i;
    return -1;
}

/* ---- one file's header ---- */

static fl_status read_shape(tensor *t, uint64_t *n_values, const json_t *shape, const char *file, fl_err *err)
{
    if (!json_is_array(shape)) return fl_fail(err, FL_CORRUPT, "%s: tensor %s has no shape array", file, t->name);
    if (json_array_size(shape) > TENSOR_DIMS_MAX)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has %zu dimensions; %d are supported", file, t->name, json_array_size(shape), TENSOR_DIMS_MAX);
    t->n_dims = (int32_t)json_array_size(shape);
    uint64_t extent = *n_values = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return fl_fail(err, FL_CORRUPT, "%s: tensor %s has a dimension that is no size", file, t->name);
        t->shape[i] = json_integer_value(dim);
        if (!tensor_add_dim((uint64_t)t->shape[i], n_values, &extent))
            return fl_fail(err, FL_CORRUPT, "%s: the shape of tensor %s overflows 63 bits", file, t->name);
    }
    return FL_OK;
}

static bool read_offset(uint64_t *offset, const json_t *offsets, size_t index)
{
    const json_t *value = json_array_get(offsets, index);
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *offset = (uint64_t)json_integer_value(value);
    return true;
}

/* Fill `t` (its name is set) from the header entry; data_bytes is what follows the header. */
static fl_status read_tensor(tensor *t, const json_t *entry, const mapped_file *file, fl_err *err)
{
    const uint64_t data_bytes = file->n_bytes - file->header_bytes;
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype_name) return fl_fail(err, FL_CORRUPT, "%s: tensor %s has no dtype", file->name, t->name);
    int d = find_dtype(dtype_name);
    if (d < 0) return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has the unknown dtype %s", file->name, t->name, dtype_name);
    t->dtype_name = dtypes[d].name;
    t->is_weight = dtypes[d].is_weight;
    t->is_fp8 = strcmp(dtype_name, "F8_E4M3") == 0;
    t->type = dtypes[d].type;
    t->file = file->name;

    uint64_t n_values = 0, want = 0, begin = 0, end = 0;
    fl_status st = read_shape(t, &n_values, json_object_get(entry, "shape"), file->name, err);
    if (st != FL_OK) return st;
    if (__builtin_mul_overflow(n_values, dtypes[d].bytes, &want))
        return fl_fail(err, FL_CORRUPT, "%s: the size of tensor %s overflows 64 bits", file->name, t->name);

    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || !read_offset(&begin, offsets, 0) || !read_offset(&end, offsets, 1) || begin > end)
        return fl_fail(err, FL_CORRUPT, "%s: tensor %s has no data_offsets of a begin and an end", file->name, t->name);
    if (end > data_bytes)
        return fl_fail(err, FL_CORRUPT, "%s: tensor %s lies at bytes %llu..%llu of the data, but the file holds %llu; it is truncated or not the one its header describes: copy it again",
                       file->name, t->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)data_bytes);
    if (end - begin != want)
        return fl_fail(err, FL_CORRUPT, "%s: tensor %s has %llu bytes, but its shape and dtype need %llu", file->name, t->name,
                       (unsigned long long)(end - begin), (unsigned long long)want);
    t->data = file->bytes + file->header_bytes + begin;
    t->n_bytes = want;
    if (t->is_weight && want > 0 && (uintptr_t)t->data % dtypes[d].bytes != 0)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s starts at an address that is no multiple of its dtype's %llu bytes; save the file again with a padded header",
                       file->name, t->name, (unsigned long long)dtypes[d].bytes);
    return FL_OK;
}

static int compare_names(const void *a, const void *b) { return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name); }

static int compare_places(const void *a, const void *b)
{
    const tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;       /* an empty tensor before the one that starts where it lies */
}

/* Tensors [first, n_tensors) are those of `file`: each byte of the data belongs to exactly one of them. */
static fl_status check_places(safetensors *st, size_t first, const mapped_file *file, fl_err *err)
{
    const uint8_t *data = file->bytes + file->header_bytes, *reached = data;
    size_t n = st->n_tensors - first;
    if (n > 0) qsort(st->tensors + first, n, sizeof *st->tensors, compare_places);
    for (size_t i = first; i < st->n_tensors; i++) {
        const tensor *t = &st->tensors[i];
        if (t->data < reached)
            return fl_fail(err, FL_CORRUPT, "%s: the bytes of tensors %s and %s overlap", file->name, st->tensors[i - 1].name, t->name);
        if (t->data > reached)
            return fl_fail(err, FL_CORRUPT, "%s: %zu bytes before tensor %s belong to no tensor", file->name, (size_t)(t->data - reached), t->name);
        reached = t->data + t->n_bytes;
    }
    if (reached != file->bytes + file->n_bytes)
        return fl_fail(err, FL_CORRUPT, "%s: the last %zu bytes belong to no tensor", file->name, (size_t)(file->bytes + file->n_bytes - reached));
    return FL_OK;
}

static tensor *append_tensor(safetensors *st, const char *name, fl_err *err)
{
    if (st->n_tensors == st->capacity) {
        size_t capacity = st->capacity ? 2 * st->capacity : 256;
        tensor *grown = realloc(st->tensors, capacity * sizeof *grown);
        if (!grown) { fl_fail(err, FL_FULL, "weights: no memory for the index of %zu tensors", capacity); return NULL; }
        st->tensors = grown;
        st->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy) { fl_fail(err, FL_FULL, "weights: no memory for a tensor's name"); return NULL; }
    tensor *t = &st->tensors[st->n_tensors++];
    *t = (tensor){ .name = copy };
    return t;
}

static fl_status index_file(safetensors *st, mapped_file *file, fl_err *err)
{
    if (file->n_bytes < 8) return fl_fail(err, FL_CORRUPT, "%s: %zu bytes are no safetensors file; copy it again", file->name, file->n_bytes);
    uint64_t json_bytes = 0;
    for (int i = 7; i >= 0; i--) json_bytes = json_bytes << 8 | file->bytes[i];
    if (json_bytes > HEADER_BYTES_MAX)
        return fl_fail(err, FL_CORRUPT, "%s: the header claims %llu bytes; this is no safetensors file", file->name, (unsigned long long)json_bytes);
    if (json_bytes > file->n_bytes - 8)
        return fl_fail(err, FL_CORRUPT, "%s: the header claims %llu bytes, but the file ends after %zu; it is truncated: copy it again",
                       file->name, (unsigned long long)json_bytes, file->n_bytes);
    file->header_bytes = 8 + (size_t)json_bytes;

    char what[300];
    json_t *header = NULL;
    snprintf(what, sizeof what, "%s: the header", file->name);
    fl_status status = fl_json_load(&header, what, (const char *)file->bytes + 8, (size_t)json_bytes, JSON_REJECT_DUPLICATES, err);
    if (status != FL_OK) return status;
    size_t first = st->n_tensors;
    const char *name;
    json_t *entry;
    if (!json_is_object(header)) status = fl_fail(err, FL_CORRUPT, "%s: the header is no JSON object", file->name);
    else json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        tensor *t = append_tensor(st, name, err);
        if (!t) { status = FL_FULL; break; }
        if ((status = read_tensor(t, entry, file, err)) != FL_OK) break;
    }
    json_decref(header);
    return status == FL_OK ? check_places(st, first, file, err) : status;
}

/* After all files: sort by name and refuse a name that two shards hold. */
static fl_status finish_index(safetensors *st, fl_err *err)
{
    if (st->n_tensors == 0) return fl_fail(err, FL_CORRUPT, "%s: the file holds no tensors", st->files[0].name);
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_names);
    for (size_t i = 1; i < st->n_tensors; i++)
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0)
            return fl_fail(err, FL_CORRUPT, "weights: tensor %s is in two files", st->tensors[i].name);
    return FL_OK;
}

/* ---- files ---- */

static fl_status map_file(mapped_file *file, const char *model_dir, fl_err *err)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", model_dir, file->name) >= (int)sizeof path)
        return fl_fail(err, FL_INVALID, "weights: the path of %s is too long", file->name);
    fl_status st = mapped_file_open(file, path, "safetensors", 8, err);
    return st == FL_NOT_FOUND ? fl_fail(err, FL_NOT_FOUND, "weights: %s is missing in %s", file->name, model_dir) : st;
}

static int compare_strings(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The distinct shard names of the index's weight_map, sorted. Borrowed from `index`. */
static fl_status list_shards(const char ***out, size_t *n_out, const json_t *index, fl_err *err)
{
    json_t *map = json_object_get(index, "weight_map");
    size_t n = json_object_size(map), kept = 0;
    if (n == 0) return fl_fail(err, FL_CORRUPT, "model.safetensors.index.json: no weight_map");
    const char **names = calloc(n, sizeof *names);
    if (!names) return fl_fail(err, FL_FULL, "weights: no memory for the list of %zu tensors", n);
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value) {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/') || file[0] == '.') {
            free(names);
            return fl_fail(err, FL_CORRUPT, "model.safetensors.index.json: tensor %s is in \"%s\", which is no file of this folder", name, file ? file : "");
        }
        names[kept++] = file;
    }
    qsort(names, n, sizeof *names, compare_strings);
    kept = 0;
    for (size_t i = 0; i < n; i++) if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
    if (kept > SHARDS_MAX) { free(names); return fl_fail(err, FL_UNSUPPORTED, "model.safetensors.index.json: %zu files; %d are supported", kept, SHARDS_MAX); }
    *out = names;
    *n_out = kept;
    return FL_OK;
}

static fl_status add_files(safetensors *st, const char *const *names, size_t n, fl_err *err)
{
    st->files = calloc(n, sizeof *st->files);
    if (!st->files) return fl_fail(err, FL_FULL, "weights: no memory for the list of files");
    for (size_t i = 0; i < n; i++) {
        st->n_files = i + 1;
        if (!(st->files[i].name = strdup(names[i]))) return fl_fail(err, FL_FULL, "weights: no memory for a file's name");
    }
    return FL_OK;
}

/* Every tensor of the weight_map is in the shard it names. */
static fl_status check_weight_map(const safetensors *st, const json_t *index, fl_err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), name, value) {
        const tensor *t = safetensors_find(st, name);
        const char *want = json_string_value(value);
        bool found = false;
        for (size_t i = 0; t && i < st->n_files && !found; i++)
            found = strcmp(st->files[i].name, want) == 0 && t->data >= st->files[i].bytes && t->data <= st->files[i].bytes + st->files[i].n_bytes;
        if (!found) return fl_fail(err, FL_CORRUPT, "model.safetensors.index.json: tensor %s is not in %s", name, want);
    }
    return FL_OK;
}

fl_status safetensors_open(safetensors **out, const char *model_dir, fl_err *err)
{
    fl_status status = FL_OK;
    char path[4096];
    json_t *index = NULL;
    json_error_t where;
    const char **shards = NULL;
    const char *single = "model.safetensors";
    size_t n_shards = 1;
    safetensors *st = calloc(1, sizeof *st);
    if (!st) { status = fl_fail(err, FL_FULL, "weights: no memory for the index"); goto done; }
    if (snprintf(path, sizeof path, "%s/%s", model_dir, single) >= (int)sizeof path - 16) { status = fl_fail(err, FL_INVALID, "weights: the model's path is too long"); goto done; }
    if (access(path, F_OK) != 0) {
        struct stat info;
        strcat(path, ".index.json");
        if (stat(path, &info) != 0) {
            status = fl_fail(err, FL_NOT_FOUND, "weights: %s has neither model.safetensors nor model.safetensors.index.json; name a model directory", model_dir);
            goto done;
        }
        if (info.st_size > INDEX_BYTES_MAX) { status = fl_fail(err, FL_CORRUPT, "model.safetensors.index.json: %lld bytes are no index", (long long)info.st_size); goto done; }
        index = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
        if (!index) { status = fl_fail(err, FL_CORRUPT, "model.safetensors.index.json: not JSON: %s (line %d)", where.text, where.line); goto done; }
        if ((status = list_shards(&shards, &n_shards, index, err)) != FL_OK) goto done;
    }
    if ((status = add_files(st, shards ? shards : &single, n_shards, err)) != FL_OK) goto done;
    for (size_t i = 0; i < st->n_files; i++) {
        if ((status = map_file(&st->files[i], model_dir, err)) != FL_OK) goto done;
        if ((status = index_file(st, &st->files[i], err)) != FL_OK) goto done;
    }
    if ((status = finish_index(st, err)) != FL_OK) goto done;
    if (index && (status = check_weight_map(st, index, err)) != FL_OK) goto done;
    *out = st;
    st = NULL;
done:
    free(shards);
    json_decref(index);
    safetensors_close(st);
    return status;
}

fl_status safetensors_open_bytes(safetensors **out, const char *name, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    fl_status status = FL_OK;
    safetensors *st = calloc(1, sizeof *st);
    if (!st) { status = fl_fail(err, FL_FULL, "weights: no memory for the index"); goto done; }
    if ((status = add_files(st, &name, 1, err)) != FL_OK) goto done;
    st->files[0].bytes = bytes;
    st->files[0].n_bytes = n_bytes;
    if ((status = index_file(st, &st->files[0], err)) != FL_OK) goto done;
    if ((status = finish_index(st, err)) != FL_OK) goto done;
    *out = st;
    st = NULL;
done:
    safetensors_close(st);
    return status;
}

void safetensors_close(safetensors *st)
{
    if (!st) return;
    for (size_t i = 0; i < st->n_files; i++) mapped_file_close(&st->files[i]);
    for (size_t i = 0; i < st->n_tensors; i++) free((char *)st->tensors[i].name);
    free(st->files);
    free(st->tensors);
    free(st);
}

size_t safetensors_count(const safetensors *st) { return st->n_tensors; }
const tensor *safetensors_at(const safetensors *st, size_t index) { return &st->tensors[index]; }

const tensor *safetensors_find(const safetensors *st, const char *name)
{
    tensor key = { .name = name };
    return bsearch(&key, st->tensors, st->n_tensors, sizeof key, compare_names);
}

size_t safetensors_file_count(const safetensors *st) { return st->n_files; }

const uint8_t *safetensors_header(const safetensors *st, size_t file, size_t *n_bytes)
{
    *n_bytes = st->files[file].header_bytes;
    return st->files[file].bytes;
}
