#include "engine/fingerprint.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "engine/model_shapes.h"

#define PAGE_BYTES 4096

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static int is_pinned(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && (ends_with(entry->d_name, ".json") || ends_with(entry->d_name, ".jinja"));
}

static int compare_entries(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void add_size(XXH3_state_t *hash, uint64_t n_bytes)
{
    uint8_t word[8];
    for (int i = 0; i < 8; i++) word[i] = (uint8_t)(n_bytes >> (8 * i));
    XXH3_128bits_update(hash, word, sizeof word);
}

static fl_status add_file(XXH3_state_t *hash, const char *model_dir, const char *name, fl_err *err)
{
    fl_status status = FL_OK;
    char path[4096];
    uint8_t bytes[1 << 14];
    uint64_t total = 0;
    size_t n;
    FILE *file = NULL;
    if (snprintf(path, sizeof path, "%s/%s", model_dir, name) >= (int)sizeof path) return fl_fail(err, FL_INVALID, "the path of %s is too long", name);
    if (!(file = fopen(path, "rbe"))) { status = fl_fail_errno(err, errno, "cannot open %s", path); goto done; }
    XXH3_128bits_update(hash, name, strlen(name) + 1);
    while ((n = fread(bytes, 1, sizeof bytes, file)) > 0) { XXH3_128bits_update(hash, bytes, n); total += n; }
    if (ferror(file)) { status = fl_fail_errno(err, errno, "cannot read %s", path); goto done; }
    add_size(hash, total);
done:
    if (file) fclose(file);
    return status;
}

fl_status model_fingerprint(char out[FINGERPRINT_BYTES], const char *path, const weight_files *weights, fl_err *err)
{
    fl_status status = FL_OK;
    struct dirent **entries = NULL;
    const char *shape;
    char dir[4096];
    uint64_t seed;
    bool is_random;
    if ((status = model_path_split(path, dir, sizeof dir, &shape, &seed, &is_random, err)) != FL_OK) return status;
    int n_entries = shape || (weights && weight_files_gguf(weights)) ? 0 : scandir(dir, &entries, is_pinned, compare_entries);
    XXH3_state_t *hash = XXH3_createState();
    if (n_entries < 0) { status = fl_fail_errno(err, errno, "cannot list %s", dir); goto done; }
    if (!hash) { status = fl_fail(err, FL_FULL, "model: no memory for its fingerprint"); goto done; }
    XXH3_128bits_reset(hash);
    for (int i = 0; i < n_entries; i++) if ((status = add_file(hash, dir, entries[i]->d_name, err)) != FL_OK) goto done;
    if (shape) XXH3_128bits_update(hash, shape, strlen(shape));
    if (is_random) add_size(hash, seed);
    for (size_t i = 0; weights && i < weight_files_file_count(weights); i++) {
        size_t n_bytes;
        const uint8_t *header = weight_files_header(weights, i, &n_bytes);
        XXH3_128bits_update(hash, header, n_bytes);
    }
    for (size_t i = 0; weights && i < weight_files_count(weights); i++) {
        const tensor *t = weight_files_at(weights, i);
        XXH3_128bits_update(hash, t->data, t->n_bytes < PAGE_BYTES ? (size_t)t->n_bytes : PAGE_BYTES);
    }
    XXH128_hash_t digest = XXH3_128bits_digest(hash);
    snprintf(out, FINGERPRINT_BYTES, "%016llx%016llx", (unsigned long long)digest.high64, (unsigned long long)digest.low64);
done:
    for (int i = 0; i < n_entries; i++) free(entries[i]);
    free(entries);
    XXH3_freeState(hash);
    return status;
}
