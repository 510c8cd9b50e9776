#include "engine/gguf.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/gguf_type.h"
#include "engine/mapped_file.h"
#include "proto/detok.h"

#define FILES_MAX 4096
#define COPY_OR_CONVERT "; copy the file again, or convert the model again"
enum { NAME_BYTES_MAX = 1024, DIMS_MAX = 4, NESTED_MAX = 4, ALIGNMENT_DEFAULT = 32, ALIGNMENT_MAX = 1 << 20, LEAST_BYTES = 24 };

typedef struct {
    mapped_file m;                       /* owned */
    uint32_t version;
    uint64_t n_tensors, n_fields;        /* as the header says */
    size_t first_tensor;                 /* of this file, until all are sorted */
} gguf_file;

struct gguf {
    gguf_file *files; size_t n_files;    /* owned */
    tensor *tensors; size_t n_tensors, tensor_capacity;          /* owned, names too; sorted by name when open */
    gguf_field *fields; size_t n_fields, field_capacity;         /* owned; sorted by key; of the first file */
};

/* ---- bytes ---- */

/* Where reading stands in a file. `what` is told by sentences. */
typedef struct { const gguf_file *file; size_t at; fl_err *err; } cursor;

static fl_status refuse_end(const cursor *c, const char *what, uint64_t n_bytes)
{
    return fl_fail(c->err, FL_CORRUPT, "%s: %s needs %llu bytes at offset %zu, but the file has %zu; it is truncated or damaged: copy it again", c->file->m.name, what,
                   (unsigned long long)n_bytes, c->at, c->file->m.n_bytes);
}

static fl_status take(cursor *c, const uint8_t **out, uint64_t n_bytes, const char *what)
{
    if (n_bytes > c->file->m.n_bytes - c->at) return refuse_end(c, what, n_bytes);
    *out = c->file->m.bytes + c->at;
    c->at += (size_t)n_bytes;
    return FL_OK;
}

static uint64_t word_at(const uint8_t *p, int n_bytes)
{
    uint64_t v = 0;
    for (int i = n_bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static fl_status take_u32(cursor *c, uint32_t *out, const char *what)
{
    const uint8_t *p;
    fl_status st = take(c, &p, 4, what);
    if (st == FL_OK) *out = (uint32_t)word_at(p, 4);
    return st;
}

static fl_status take_u64(cursor *c, uint64_t *out, const char *what)
{
    const uint8_t *p;
    fl_status st = take(c, &p, 8, what);
    if (st == FL_OK) *out = word_at(p, 8);
    return st;
}

static fl_status take_string(cursor *c, const char **text, size_t *n_bytes, const char *what)
{
    uint64_t n;
    const uint8_t *p;
    fl_status st = take_u64(c, &n, what);
    if (st == FL_OK) st = take(c, &p, n, what);
    if (st != FL_OK) return st;
    *text = (const char *)p;
    *n_bytes = (size_t)n;
    return FL_OK;
}

/* A key or a tensor's name: short, readable. */
static fl_status take_name(cursor *c, const char **text, size_t *n_bytes, const char *what)
{
    const size_t begin = c->at;
    fl_status st = take_string(c, text, n_bytes, what);
    if (st != FL_OK) return st;
    if (*n_bytes == 0 || *n_bytes > NAME_BYTES_MAX) return fl_fail(c->err, FL_CORRUPT, "%s: %s at offset %zu has %zu bytes; 1 to %d are allowed" COPY_OR_CONVERT, c->file->m.name, what, begin, *n_bytes, NAME_BYTES_MAX);
    bool is_text = fl_utf8_valid((const uint8_t *)*text, *n_bytes);
    for (size_t i = 0; i < *n_bytes; i++) is_text &= (unsigned char)(*text)[i] >= 0x20;
    return is_text ? FL_OK : fl_fail(c->err, FL_CORRUPT, "%s: %s at offset %zu is no text" COPY_OR_CONVERT, c->file->m.name, what, begin);
}

/* ---- metadata ---- */

static const int kind_bytes[GGUF_KINDS] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };       /* of a scalar */

static fl_status take_kind(cursor *c, gguf_kind *kind, const char *what)
{
    uint32_t number;
    fl_status st = take_u32(c, &number, what);
    if (st != FL_OK) return st;
    if (number >= GGUF_KINDS) return fl_fail(c->err, FL_CORRUPT, "%s: %s has the unknown value type %u" COPY_OR_CONVERT, c->file->m.name, what, number);
    *kind = (gguf_kind)number;
    return FL_OK;
}

/* Pass `count` values of one kind. */
static fl_status skip_values(cursor *c, gguf_kind kind, uint64_t count, int depth, const char *what)
{
    const uint8_t *p;
    const char *text;
    size_t n;
    uint64_t n_bytes;
    fl_status st = FL_OK;
    if (kind != GGUF_STRING && kind != GGUF_ARRAY) {
        if (__builtin_mul_overflow(count, (uint64_t)kind_bytes[kind], &n_bytes)) return refuse_end(c, what, UINT64_MAX);
        return take(c, &p, n_bytes, what);
    }
    if (count > c->file->m.n_bytes / 8) return refuse_end(c, what, count > UINT64_MAX / 8 ? UINT64_MAX : 8 * count);   /* each begins with a u64 at least */
    if (kind == GGUF_ARRAY && depth == NESTED_MAX) return fl_fail(c->err, FL_UNSUPPORTED, "%s: %s holds arrays more than %d deep", c->file->m.name, what, NESTED_MAX);
    for (uint64_t i = 0; st == FL_OK && i < count; i++) {
        gguf_kind inner = GGUF_U8;
        uint64_t n_inner = 0;
        if (kind == GGUF_STRING) { st = take_string(c, &text, &n, what); continue; }
        st = take_kind(c, &inner, what);
        if (st == FL_OK) st = take_u64(c, &n_inner, what);
        if (st == FL_OK) st = skip_values(c, inner, n_inner, depth + 1, what);
    }
    return st;
}

static fl_status take_field(cursor *c, gguf_field *f)
{
    char what[96];
    *f = (gguf_field){ .count = 1 };
    fl_status st = take_name(c, &f->key, &f->key_bytes, "a key");
    if (st != FL_OK) return st;
    snprintf(what, sizeof what, "key %.*s", (int)(f->key_bytes < 80 ? f->key_bytes : 80), f->key);
    st = take_kind(c, &f->kind, what);
    if (st == FL_OK && f->kind == GGUF_ARRAY) st = take_kind(c, &f->element, what);
    if (st == FL_OK && f->kind == GGUF_ARRAY) st = take_u64(c, &f->count, what);
    if (st != FL_OK) return st;
    if (f->kind == GGUF_STRING) {
        const char *text;
        st = take_string(c, &text, &f->n_bytes, what);
        if (st == FL_OK) f->data = (const uint8_t *)text;
        return st;
    }
    f->data = c->file->m.bytes + c->at;
    const size_t begin = c->at;
    st = skip_values(c, f->kind == GGUF_ARRAY ? f->element : f->kind, f->count, 1, what);
    f->n_bytes = c->at - begin;
    return st;
}

static int compare_keys(const void *a, const void *b)
{
    const gguf_field *x = a, *y = b;
    int order = memcmp(x->key, y->key, x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes);
    return order ? order : x->key_bytes < y->key_bytes ? -1 : x->key_bytes > y->key_bytes;
}

/* Make room for one more of `size` bytes. */
static fl_status grow(void **list, size_t n, size_t *capacity, size_t size, fl_err *err)
{
    if (n < *capacity) return FL_OK;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*list, more * size);
    if (!grown) return fl_fail(err, FL_FULL, "gguf: no memory for an index of %zu entries", more);
    *list = grown;
    *capacity = more;
    return FL_OK;
}

static fl_status read_fields(gguf *g, cursor *c)
{
    fl_status st = FL_OK;
    for (uint64_t i = 0; st == FL_OK && i < c->file->n_fields; i++) {
        gguf_field f;
        if ((st = take_field(c, &f)) != FL_OK || (st = grow((void **)&g->fields, g->n_fields, &g->field_capacity, sizeof *g->fields, c->err)) != FL_OK) break;
        g->fields[g->n_fields++] = f;
    }
    if (st != FL_OK) return st;
    if (g->n_fields > 0) qsort(g->fields, g->n_fields, sizeof *g->fields, compare_keys);
    for (size_t i = 1; i < g->n_fields; i++)
        if (compare_keys(&g->fields[i - 1], &g->fields[i]) == 0)
            return fl_fail(c->err, FL_CORRUPT, "%s: key %.*s is there twice" COPY_OR_CONVERT, c->file->m.name, (int)g->fields[i].key_bytes, g->fields[i].key);
    return FL_OK;
}

/* ---- tensors ---- */

static fl_status take_dims(cursor *c, tensor *t, uint64_t *n_values)
{
    uint32_t n_dims;
    fl_status st = take_u32(c, &n_dims, t->name);
    if (st != FL_OK) return st;
    if (n_dims > DIMS_MAX) return fl_fail(c->err, FL_CORRUPT, "%s: tensor %s has %u dimensions; up to %d are allowed" COPY_OR_CONVERT, t->file, t->name, n_dims, DIMS_MAX);
    t->n_dims = n_dims == 0 ? 1 : (int32_t)n_dims;       /* a scalar is one value */
    t->shape[0] = 1;
    uint64_t extent = *n_values = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t dim;
        if ((st = take_u64(c, &dim, t->name)) != FL_OK) return st;
        if (!tensor_add_dim(dim, n_values, &extent))
            return fl_fail(c->err, FL_CORRUPT, "%s: the shape of tensor %s overflows 63 bits at dimension %u of %llu" COPY_OR_CONVERT, t->file, t->name, i, (unsigned long long)dim);
        t->shape[n_dims - 1 - i] = (int64_t)dim;
    }
    return FL_OK;
}

/* Type and size; *offset is where the data begins behind the header. */
static fl_status take_place(cursor *c, tensor *t, uint64_t n_values, uint64_t *offset)
{
    uint32_t number;
    fl_status st = take_u32(c, &number, t->name);
    if (st == FL_OK) st = take_u64(c, offset, t->name);
    if (st != FL_OK) return st;
    const gguf_type *type = gguf_type_find(number);
    if (!type) return fl_fail(c->err, FL_UNSUPPORTED, "%s: tensor %s has the type number %u, which is unknown here; convert or quantize the model to a type such as Q8_0 or Q4_K", t->file, t->name, number);
    t->dtype_name = type->name;
    t->is_weight = type->is_weight;
    t->type = type->type;
    if ((uint64_t)t->shape[t->n_dims - 1] % type->values != 0)
        return fl_fail(c->err, FL_CORRUPT, "%s: tensor %s has rows of %lld values, which are no whole blocks of %s (%u values)" COPY_OR_CONVERT, t->file, t->name, (long long)t->shape[t->n_dims - 1], type->name, type->values);
    if (__builtin_mul_overflow(n_values / type->values, (uint64_t)type->bytes, &t->n_bytes))
        return fl_fail(c->err, FL_CORRUPT, "%s: the size of tensor %s, %llu values of %s, overflows 64 bits" COPY_OR_CONVERT, t->file, t->name, (unsigned long long)n_values, type->name);
    return FL_OK;
}

static fl_status read_tensor(gguf *g, cursor *c)
{
    const char *text;
    size_t n;
    uint64_t n_values = 0, offset = 0;
    fl_status st = take_name(c, &text, &n, "a tensor's name");
    if (st == FL_OK) st = grow((void **)&g->tensors, g->n_tensors, &g->tensor_capacity, sizeof *g->tensors, c->err);
    if (st != FL_OK) return st;
    char *name = strndup(text, n);
    if (!name) return fl_fail(c->err, FL_FULL, "gguf: no memory for a tensor's name");
    tensor *t = &g->tensors[g->n_tensors++];
    *t = (tensor){ .name = name, .file = c->file->m.name };
    if ((st = take_dims(c, t, &n_values)) != FL_OK || (st = take_place(c, t, n_values, &offset)) != FL_OK) return st;
    t->data = (const uint8_t *)(uintptr_t)offset;        /* until the header's end is known */
    return FL_OK;
}

static int compare_places(const void *a, const void *b)
{
    const tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* The file's tensors lie behind its header, aligned, inside the file, each alone. */
static fl_status place_tensors(gguf *g, const gguf_file *file, uint64_t alignment, fl_err *err)
{
    const uint64_t room = file->m.n_bytes > file->m.header_bytes ? file->m.n_bytes - file->m.header_bytes : 0;
    for (size_t i = file->first_tensor; i < g->n_tensors; i++) {
        tensor *t = &g->tensors[i];
        const uint64_t offset = (uint64_t)(uintptr_t)t->data;
        if (offset % alignment != 0)
            return fl_fail(err, FL_CORRUPT, "%s: tensor %s begins at offset %llu of the data, which is no multiple of the alignment %llu" COPY_OR_CONVERT, file->m.name, t->name, (unsigned long long)offset, (unsigned long long)alignment);
        if (offset > room || t->n_bytes > room - offset)
            return fl_fail(err, FL_CORRUPT, "%s: tensor %s has %llu bytes at offset %llu of the data, which begins at %zu of the file's %zu bytes; the file is truncated or damaged: copy it again", file->m.name,
                           t->name, (unsigned long long)t->n_bytes, (unsigned long long)offset, file->m.header_bytes, file->m.n_bytes);
        t->data = file->m.bytes + file->m.header_bytes + offset;
        if (t->is_weight && (uintptr_t)t->data % (t->type == DTYPE_F32 ? 4 : t->type == DTYPE_BF16 || t->type == DTYPE_F16 ? 2 : 1) != 0)
            return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s begins at an address that is no multiple of its values' size; write the file with general.alignment 32", file->m.name, t->name);
    }
    if (g->n_tensors > file->first_tensor) qsort(g->tensors + file->first_tensor, g->n_tensors - file->first_tensor, sizeof *g->tensors, compare_places);
    for (size_t i = file->first_tensor + 1; i < g->n_tensors; i++)
        if (g->tensors[i - 1].data + g->tensors[i - 1].n_bytes > g->tensors[i].data)
            return fl_fail(err, FL_CORRUPT, "%s: the bytes of tensors %s and %s overlap" COPY_OR_CONVERT, file->m.name, g->tensors[i - 1].name, g->tensors[i].name);
    return FL_OK;
}

/* ---- one file ---- */

static fl_status read_head(gguf_file *file, cursor *c)
{
    const uint8_t *magic;
    fl_status st = take(c, &magic, 4, "the magic");
    if (st != FL_OK) return st;
    if (memcmp(magic, "GGUF", 4) != 0) return fl_fail(c->err, FL_CORRUPT, "%s: the file does not begin with GGUF: it is no GGUF file, or was not copied whole; name a .gguf file, or a directory of safetensors files", file->m.name);
    if ((st = take_u32(c, &file->version, "the version")) != FL_OK) return st;
    if (file->version != 0 && (file->version & 0xFFFF) == 0)
        return fl_fail(c->err, FL_UNSUPPORTED, "%s: the file is big-endian, which is not supported; convert the model again on, or for, a little-endian machine", file->m.name);
    if (file->version != 2 && file->version != 3)
        return fl_fail(c->err, FL_UNSUPPORTED, "%s: GGUF version %u is not supported, 2 and 3 are; convert the model again", file->m.name, file->version);
    if ((st = take_u64(c, &file->n_tensors, "the number of tensors")) != FL_OK) return st;
    return take_u64(c, &file->n_fields, "the number of keys");
}

/* general.alignment of the fields that were just read. */
static fl_status read_alignment(const gguf *g, int64_t *alignment, fl_err *err)
{
    *alignment = ALIGNMENT_DEFAULT;
    fl_status st = gguf_int(g, "general.alignment", 1, ALIGNMENT_MAX, alignment, err);
    if (st != FL_OK && st != FL_NOT_FOUND) return st;
    if ((*alignment & (*alignment - 1)) == 0) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "%s: general.alignment is %lld, which is no power of two" COPY_OR_CONVERT, gguf_name(g), (long long)*alignment);
}

/* A file that is not the first is the part that its name says, of as many as the first one says. */
static fl_status check_part(const gguf *g, const gguf *part, const gguf_file *file, fl_err *err)
{
    int64_t number = -1, count = -1, wanted = -1;
    fl_status st = gguf_int(part, "split.no", 0, FILES_MAX, &number, err);
    if (st == FL_OK) st = gguf_int(part, "split.count", 0, FILES_MAX, &count, err);
    if (st == FL_NOT_FOUND) return fl_fail(err, FL_CORRUPT, "%s: split.no or split.count is missing, so the file is no part of a split model; copy the parts of one model here", file->m.name);
    if (st == FL_OK) st = gguf_int(g, "split.count", 0, FILES_MAX, &wanted, err);
    if (st != FL_OK) return st;
    if (number == (int64_t)g->n_files - 1 && count == wanted) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "%s: the file says that it is part %lld of %lld, its name that it is part %zu of %lld; give the parts their own names back", file->m.name, (long long)number + 1,
                   (long long)count, g->n_files, (long long)wanted);
}

/* Index the file that was added last. */
static fl_status index_file(gguf *g, gguf_file *file, fl_err *err)
{
    cursor c = { file, 0, err };
    int64_t alignment = ALIGNMENT_DEFAULT;
    gguf part = { .files = file, .n_files = 1 };         /* the fields of a file that is not the first are read and forgotten */
    gguf *fields = file == g->files ? g : &part;
    file->first_tensor = g->n_tensors;
    fl_status st = read_head(file, &c);
    if (st == FL_OK) st = read_fields(fields, &c);
    if (st == FL_OK) st = read_alignment(fields, &alignment, err);
    if (st == FL_OK && fields == &part) st = check_part(g, &part, file, err);
    free(part.fields);
    for (uint64_t i = 0; st == FL_OK && i < file->n_tensors; i++) st = read_tensor(g, &c);
    if (st != FL_OK) return st;
    file->m.header_bytes = c.at + (size_t)((uint64_t)alignment - 1 - (c.at + (uint64_t)alignment - 1) % (uint64_t)alignment);
    st = place_tensors(g, file, (uint64_t)alignment, err);
    if (file->m.header_bytes > file->m.n_bytes) file->m.header_bytes = file->m.n_bytes;      /* a file without tensors may end unpadded */
    return st;
}

static int compare_names(const void *a, const void *b) { return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name); }

static fl_status finish_index(gguf *g, fl_err *err)
{
    if (g->n_tensors > 0) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_names);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0) return fl_fail(err, FL_CORRUPT, "%s: tensor %s is there twice" COPY_OR_CONVERT, g->tensors[i].file, g->tensors[i].name);
    return FL_OK;
}

/* ---- files ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_in_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".gguf") == 0;
}

bool gguf_is_path(const char *path)
{
    struct stat info;
    uint8_t magic[4] = { 0 };
    if (stat(path, &info) != 0) return ends_in_gguf(path);
    if (!S_ISREG(info.st_mode)) return false;
    if (ends_in_gguf(path)) return true;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    return n == 4 && memcmp(magic, "GGUF", 4) == 0;
}

/* Where "-00001-of-0000N" begins in a name of n_bytes that lost its .gguf; n_bytes when it is not there. */
static size_t split_suffix(const char *name, size_t n_bytes, int *number, int *count)
{
    const size_t n = strlen("-00001-of-00001");
    if (n_bytes <= n) return n_bytes;
    const char *at = name + n_bytes - n;
    if (at[0] != '-' || memcmp(at + 6, "-of-", 4) != 0) return n_bytes;
    *number = *count = 0;
    for (int i = 0; i < 5; i++) {
        if (!isdigit((unsigned char)at[1 + i]) || !isdigit((unsigned char)at[10 + i])) return n_bytes;
        *number = *number * 10 + (at[1 + i] - '0');
        *count = *count * 10 + (at[10 + i] - '0');
    }
    return n_bytes - n;
}

char *gguf_model_name(const char *path)
{
    int number, count;
    const char *name = last_part(path);
    size_t n = strlen(name);
    if (ends_in_gguf(name)) n -= 5;
    return strndup(name, split_suffix(name, n, &number, &count));
}

static fl_status add_file(gguf *g, const char *path, fl_err *err)
{
    gguf_file *file = &g->files[g->n_files++];
    if (!(file->m.name = strdup(last_part(path)))) return fl_fail(err, FL_FULL, "gguf: no memory for a file's name");
    fl_status st = mapped_file_open(&file->m, path, "GGUF", LEAST_BYTES, err);
    return st == FL_OK ? index_file(g, file, err) : st;
}

/* The other files of a split model, whose first file is open. */
static fl_status add_splits(gguf *g, const char *path, fl_err *err)
{
    char part[4096];
    int number = 0, name_count = 0;
    int64_t count = 1, first = 0, n_tensors = -1;
    fl_status st = gguf_int(g, "split.count", 0, FILES_MAX, &count, err);
    if (st == FL_OK || st == FL_NOT_FOUND) st = gguf_int(g, "split.no", 0, FILES_MAX, &first, err);
    if (st == FL_OK || st == FL_NOT_FOUND) st = gguf_int(g, "split.tensors.count", 0, INT32_MAX, &n_tensors, err);
    if (st != FL_OK && st != FL_NOT_FOUND) return st;
    if (count <= 1) return FL_OK;
    size_t stem = strlen(path) - (ends_in_gguf(path) ? 5 : 0);
    stem = split_suffix(path, stem, &number, &name_count);
    if (first != 0 && number == 1)
        return fl_fail(err, FL_CORRUPT, "%s says that it is part %lld of %lld, its name that it is the first; give the parts their own names back", path, (long long)first + 1, (long long)count);
    if (first != 0) return fl_fail(err, FL_INVALID, "%s is part %lld of %lld; name the first part (-00001-of-%05lld.gguf)", path, (long long)first + 1, (long long)count, (long long)count);
    if (number != 1 || name_count != count)
        return fl_fail(err, FL_INVALID, "%s is the first of %lld files, so its name must end in -00001-of-%05lld.gguf and the others must lie beside it", path, (long long)count, (long long)count);
    gguf_file *files = realloc(g->files, (size_t)count * sizeof *files);
    if (!files) return fl_fail(err, FL_FULL, "gguf: no memory for a list of %lld files", (long long)count);
    g->files = files;
    memset(files + 1, 0, ((size_t)count - 1) * sizeof *files);
    for (int64_t i = 1; i < count; i++) {
        if (snprintf(part, sizeof part, "%.*s-%05lld-of-%05lld.gguf", (int)stem, path, (long long)i + 1, (long long)count) >= (int)sizeof part)
            return fl_fail(err, FL_INVALID, "gguf: the model's path is too long");
        st = add_file(g, part, err);
        if (st == FL_NOT_FOUND) return fl_fail(err, st, "there is no %s, part %lld of %lld of the model; put all parts beside the first", part, (long long)i + 1, (long long)count);
        if (st != FL_OK) return st;
    }
    if (n_tensors >= 0 && (uint64_t)n_tensors != g->n_tensors)
        return fl_fail(err, FL_CORRUPT, "%s: split.tensors.count is %lld, but the %lld files hold %zu tensors; copy the parts of one model here again", gguf_name(g), (long long)n_tensors, (long long)count, g->n_tensors);
    return FL_OK;
}

fl_status gguf_open(gguf **out, const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    gguf *g = calloc(1, sizeof *g);
    if (g) g->files = calloc(1, sizeof *g->files);
    if (!g || !g->files) { st = fl_fail(err, FL_FULL, "gguf: no memory"); goto done; }
    if ((st = add_file(g, path, err)) != FL_OK) goto done;
    if ((st = add_splits(g, path, err)) != FL_OK) goto done;
    if ((st = finish_index(g, err)) != FL_OK) goto done;
    *out = g;
    g = NULL;
done:
    gguf_close(g);
    return st;
}

fl_status gguf_open_bytes(gguf **out, const char *name, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    int64_t count = 1;
    gguf *g = calloc(1, sizeof *g);
    if (g) g->files = calloc(1, sizeof *g->files);
    if (!g || !g->files) { st = fl_fail(err, FL_FULL, "gguf: no memory"); goto done; }
    g->n_files = 1;
    g->files[0] = (gguf_file){ .m = { .name = strdup(name), .bytes = bytes, .n_bytes = n_bytes } };
    if (!g->files[0].m.name) { st = fl_fail(err, FL_FULL, "gguf: no memory for a file's name"); goto done; }
    if ((st = index_file(g, g->files, err)) != FL_OK) goto done;
    st = gguf_int(g, "split.count", 0, 1, &count, err);
    if (st != FL_OK && st != FL_NOT_FOUND) goto done;
    if ((st = finish_index(g, err)) != FL_OK) goto done;
    *out = g;
    g = NULL;
done:
    gguf_close(g);
    return st;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_files; i++) mapped_file_close(&g->files[i].m);
    for (size_t i = 0; i < g->n_tensors; i++) free((char *)g->tensors[i].name);
    free(g->files);
    free(g->tensors);
    free(g->fields);
    free(g);
}

uint32_t gguf_version(const gguf *g) { return g->files[0].version; }
const char *gguf_name(const gguf *g) { return g->files[0].m.name; }
size_t gguf_tensor_count(const gguf *g) { return g->n_tensors; }
const tensor *gguf_tensor_at(const gguf *g, size_t index) { return &g->tensors[index]; }

const tensor *gguf_tensor_find(const gguf *g, const char *name)
{
    tensor key = { .name = name };
    return g->n_tensors ? bsearch(&key, g->tensors, g->n_tensors, sizeof key, compare_names) : NULL;
}

size_t gguf_file_count(const gguf *g) { return g->n_files; }

const uint8_t *gguf_header(const gguf *g, size_t file, size_t *n_bytes)
{
    *n_bytes = g->files[file].m.header_bytes;
    return g->files[file].m.bytes;
}

size_t gguf_field_count(const gguf *g) { return g->n_fields; }
const gguf_field *gguf_field_at(const gguf *g, size_t index) { return &g->fields[index]; }

const gguf_field *gguf_find(const gguf *g, const char *key)
{
    gguf_field wanted = { .key = key, .key_bytes = strlen(key) };
    return g->n_fields ? bsearch(&wanted, g->fields, g->n_fields, sizeof wanted, compare_keys) : NULL;
}
