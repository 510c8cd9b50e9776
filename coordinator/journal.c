#include "coordinator/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA_VERSION 2
#define NAME_BYTES_MAX 4096
#define VALUE_BYTES_MAX (4 << 20)        /* of what a hostile file makes SQLite read or compute; a lease of ours has 123 KB at most */

enum { ADD_JOB, SET_STATE, DROP_JOB, REOPEN_JOB, DROP_JOB_LEASES, SAVE_LEASE, DROP_LEASE, SET_NEXT, N_STATEMENTS };
static const char *const statements[N_STATEMENTS] = {
    [ADD_JOB] = "INSERT INTO jobs(id, seq, state, created_s, name) VALUES(?1, (SELECT coalesce(max(seq), 0) + 1 FROM jobs), 1, ?2, ?3)",
    [SET_STATE] = "UPDATE jobs SET state = ?2 WHERE id = ?1",
    [DROP_JOB] = "DELETE FROM jobs WHERE id = ?1",
    [REOPEN_JOB] = "UPDATE jobs SET state = 1, generation = ?2 WHERE id = ?1",
    [DROP_JOB_LEASES] = "DELETE FROM leases WHERE job = ?1",
    [SAVE_LEASE] = "INSERT OR REPLACE INTO leases(id, job, worker, items) VALUES(?1, ?2, ?3, ?4)",
    [DROP_LEASE] = "DELETE FROM leases WHERE id = ?1",
    [SET_NEXT] = "INSERT OR REPLACE INTO meta(key, value) VALUES('next_lease', ?1)"
};

struct journal {
    sqlite3 *db;                         /* owned */
    char *path;                          /* owned */
    sqlite3_stmt *statement[N_STATEMENTS];       /* owned; NULL when read only */
    int64_t version;                     /* of the schema as it stands in the file */
    bool in_transaction;
    uint8_t *blob; size_t blob_capacity;         /* owned: items being packed */
    lease_item *items; size_t n_items_capacity;  /* owned: items being unpacked */
};

static fl_status failed(const journal *j, const char *what, fl_err *err)
{
    int code = sqlite3_errcode(j->db), system_error = sqlite3_system_errno(j->db);
    const char *text = sqlite3_errmsg(j->db);
    if (code == SQLITE_FULL || ((code & 0xff) == SQLITE_IOERR && (system_error == ENOSPC || system_error == EDQUOT)))
        return fl_fail(err, FL_DISK_FULL, "journal: %s %s: the disk is full", what, j->path);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED) return fl_fail(err, FL_CONFLICT, "journal: %s is in use by another process", j->path);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) return fl_fail(err, FL_CORRUPT, "journal: %s is damaged: %s; start over with a new --spool", j->path, text);
    return fl_fail(err, FL_IO, "journal: %s %s: %s", what, j->path, text);
}

static fl_status run_sql(journal *j, const char *sql, fl_err *err)
{
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK ? FL_OK : failed(j, "set up", err);
}

/* One non-negative integer of a one-row query; FL_NOT_FOUND when there is no row. */
static fl_status read_number(journal *j, const char *sql, int64_t *value, fl_err *err)
{
    sqlite3_stmt *s = NULL;
    fl_status st = FL_OK;
    if (sqlite3_prepare_v2(j->db, sql, -1, &s, NULL) != SQLITE_OK) return failed(j, "read", err);
    int code = sqlite3_step(s);
    if (code == SQLITE_DONE) st = fl_fail(err, FL_NOT_FOUND, "journal: %s has no such value", j->path);
    else if (code != SQLITE_ROW) st = failed(j, "read", err);
    else if (sqlite3_column_type(s, 0) != SQLITE_INTEGER || sqlite3_column_int64(s, 0) < 0)
        st = fl_fail(err, FL_CORRUPT, "journal: %s holds a value that is not a number (%s)", j->path, sql);
    else *value = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return st;
}

static fl_status check_version(journal *j, bool may_create, fl_err *err)
{
    int64_t n_tables, n_foreign, version;
    fl_status st = read_number(j, "SELECT count(*) FROM sqlite_master", &n_tables, err);
    if (st != FL_OK) return st;
    /* a view may be endless, a trigger may write what we did not; both would answer to our names */
    st = read_number(j, "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' OR sql LIKE '%GENERATED%'", &n_foreign, err);
    if (st != FL_OK) return st;
    if (n_foreign > 0) return fl_fail(err, FL_CORRUPT, "journal: %s holds views, triggers or other things that no journal has; start over with a new --spool", j->path);
    j->version = SCHEMA_VERSION;
    if (n_tables == 0 && may_create)
        return run_sql(j,
            "BEGIN IMMEDIATE;"
            "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE jobs(id INTEGER PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, state INTEGER NOT NULL, created_s INTEGER NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 1);"
            "CREATE TABLE leases(id INTEGER PRIMARY KEY, job INTEGER NOT NULL, worker INTEGER NOT NULL, items BLOB NOT NULL);"
            "CREATE INDEX leases_by_job ON leases(job);"
            "INSERT INTO meta(key, value) VALUES('version', 2), ('next_lease', 1);"
            "COMMIT;", err);
    st = read_number(j, "SELECT value FROM meta WHERE key = 'version'", &version, NULL);
    if (st != FL_OK) return fl_fail(err, FL_CORRUPT, "journal: %s is not a journal of tokenfleet", j->path);
    j->version = version;
    if (version == 1 && may_create) {
        j->version = SCHEMA_VERSION;
        return run_sql(j, "BEGIN IMMEDIATE; ALTER TABLE jobs ADD COLUMN generation INTEGER NOT NULL DEFAULT 1; UPDATE meta SET value = 2 WHERE key = 'version'; COMMIT;", err);
    }
    if (version != SCHEMA_VERSION && version != 1)
        return fl_fail(err, FL_UNSUPPORTED, "journal: %s has schema version %" PRId64 ", this release knows %d; use the release that wrote it", j->path, version, SCHEMA_VERSION);
    return FL_OK;
}

/* Only its owner may read it, as the rest of the spool; SQLite would go by the umask. Its WAL takes the mode from it. */
static fl_status make_private(const char *path, fl_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);        /* closing a file that SQLite has open would drop its locks: only a new one is opened here */
    if (fd >= 0) close(fd);
    else if (errno != EEXIST || chmod(path, 0600) != 0) return fl_fail_errno(err, errno, "journal: make %s", path);
    return FL_OK;
}

/* May this process make the files that SQLite keeps beside a journal in WAL mode? Where it may not and nobody left a WAL, the file alone is all there is to read. */
static bool is_alone(const char *path)
{
    struct stat wal;
    char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL, *wal_path = NULL;
    if (slash) *slash = '\0';
    bool may_write = !dir || access(slash ? dir : ".", W_OK) == 0;
    bool has_wal = may_write || asprintf(&wal_path, "%s-wal", path) < 0 || (stat(wal_path, &wal) == 0 ? wal.st_size > 0 : errno != ENOENT);
    free(dir);
    free(wal_path);
    return !may_write && !has_wal;
}

/* The file as a URI that says that nobody changes it; malloc'ed. */
static char *immutable_uri(const char *path)
{
    char *uri = malloc(5 + 3 * strlen(path) + sizeof "?immutable=1"), *at = uri;
    if (!uri) return NULL;
    at += sprintf(at, "file:");
    for (; *path; path++) at += strchr("%?#", *path) ? sprintf(at, "%%%02X", (unsigned)*path) : sprintf(at, "%c", *path);
    strcpy(at, "?immutable=1");
    return uri;
}

static fl_status open_file(journal **out, const char *path, bool read_only, fl_err *err)
{
    fl_status st = FL_OK;
    char *uri = NULL;
    journal *j = calloc(1, sizeof *j);
    if (!j || !(j->path = strdup(path))) { free(j); return fl_fail(err, FL_FULL, "journal: no memory"); }
    if (!read_only && (st = make_private(path, err)) != FL_OK) goto done;
    int flags = read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (read_only && is_alone(path)) {
        if (!(uri = immutable_uri(path))) { st = fl_fail(err, FL_FULL, "journal: no memory"); goto done; }
        flags |= SQLITE_OPEN_URI;
    }
    if (sqlite3_open_v2(uri ? uri : path, &j->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL) != SQLITE_OK) {
        st = read_only && sqlite3_errcode(j->db) == SQLITE_CANTOPEN ? fl_fail(err, FL_NOT_FOUND, "journal: there is no %s", path) : failed(j, "open", err);
        goto done;
    }
    sqlite3_extended_result_codes(j->db, 0);
    sqlite3_limit(j->db, SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX);
    if (!read_only && (st = run_sql(j, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF;", err)) != FL_OK) goto done;
    if ((st = check_version(j, !read_only, err)) != FL_OK) goto done;
    for (int i = 0; i < N_STATEMENTS && !read_only; i++)
        if (sqlite3_prepare_v3(j->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &j->statement[i], NULL) != SQLITE_OK) { st = failed(j, "prepare", err); goto done; }
    *out = j;
    j = NULL;
done:
    free(uri);
    journal_close(j);
    return st;
}

fl_status journal_open(journal **out, const char *path, fl_err *err) { return open_file(out, path, false, err); }
fl_status journal_open_read_only(journal **out, const char *path, fl_err *err) { return open_file(out, path, true, err); }

void journal_close(journal *j)
{
    if (!j) return;
    for (int i = 0; i < N_STATEMENTS; i++) sqlite3_finalize(j->statement[i]);
    sqlite3_close(j->db);
    free(j->blob);
    free(j->items);
    free(j->path);
    free(j);
}

fl_status journal_begin(journal *j, fl_err *err)
{
    FL_ASSERT(!j->in_transaction);
    if (sqlite3_exec(j->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) return failed(j, "begin a transaction in", err);
    j->in_transaction = true;
    return FL_OK;
}

fl_status journal_commit(journal *j, fl_err *err)
{
    FL_ASSERT(j->in_transaction);
    if (sqlite3_exec(j->db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK) {
        j->in_transaction = false;
        return FL_OK;
    }
    fl_status st = failed(j, "commit to", err);
    journal_rollback(j);
    return st;
}

void journal_rollback(journal *j)
{
    if (j->in_transaction && !sqlite3_get_autocommit(j->db)) sqlite3_exec(j->db, "ROLLBACK", NULL, NULL, NULL);      /* SQLite may have rolled back itself */
    j->in_transaction = false;
}

static fl_status finish(journal *j, sqlite3_stmt *s, const char *what, fl_err *err)
{
    int code = sqlite3_step(s);
    fl_status st = code == SQLITE_DONE ? FL_OK : failed(j, what, err);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return st;
}

/* SQLite's integers are signed; an id keeps its bits. */
static void bind_id(sqlite3_stmt *s, int at, uint64_t v)
{
    sqlite3_bind_int64(s, at, (int64_t)v);
}

static uint8_t *put_varint(uint8_t *at, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) *at++ = (uint8_t)(v | 0x80);
    *at++ = (uint8_t)v;
    return at;
}

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 63 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static fl_status save_lease(journal *j, const action *a, fl_err *err)
{
    size_t need = (size_t)a->n_items * 30 + 1;
    if (need > j->blob_capacity) {
        uint8_t *grown = realloc(j->blob, need * 2);
        if (!grown) return fl_fail(err, FL_FULL, "journal: no memory for a lease of %u items", a->n_items);
        j->blob = grown;
        j->blob_capacity = need * 2;
    }
    uint8_t *at = j->blob;
    uint64_t before = 0;
    for (uint32_t i = 0; i < a->n_items; i++) {
        FL_ASSERT(a->items[i].row.v >= before && a->items[i].sample_lo < a->items[i].sample_hi);
        at = put_varint(at, a->items[i].row.v - before);
        at = put_varint(at, a->items[i].sample_lo);
        at = put_varint(at, a->items[i].sample_hi - a->items[i].sample_lo);
        before = a->items[i].row.v;
    }
    sqlite3_stmt *s = j->statement[SAVE_LEASE];
    bind_id(s, 1, a->lease.v);
    bind_id(s, 2, a->job.v);
    bind_id(s, 3, a->worker.v);
    sqlite3_bind_blob(s, 4, j->blob, (int)(at - j->blob), SQLITE_STATIC);
    return finish(j, s, "save a lease in", err);
}

fl_status journal_perform(journal *j, const action *a, fl_err *err)
{
    FL_ASSERT(j->in_transaction);
    sqlite3_stmt *s;
    switch (a->type) {
    case ACTION_LEASE_SAVE:
        return save_lease(j, a, err);
    case ACTION_LEASE_END:
        bind_id(s = j->statement[DROP_LEASE], 1, a->lease.v);
        return finish(j, s, "end a lease in", err);
    case ACTION_NEXT_LEASE:
        bind_id(s = j->statement[SET_NEXT], 1, a->value);
        return finish(j, s, "count leases in", err);
    case ACTION_JOB_STATE:
        bind_id(s = j->statement[SET_STATE], 1, a->job.v);
        sqlite3_bind_int(s, 2, (int)a->state);
        return finish(j, s, "change a job in", err);
    default:
        FL_ASSERT(0 && "not an action of the journal");
        return FL_INVALID;
    }
}

fl_status journal_job_add(journal *j, job_id id, uint64_t created_s, const char *name, fl_err *err)
{
    FL_ASSERT(j->in_transaction && id.v != 0 && strlen(name) <= NAME_BYTES_MAX);
    sqlite3_stmt *s = j->statement[ADD_JOB];
    bind_id(s, 1, id.v);
    bind_id(s, 2, created_s);
    sqlite3_bind_text(s, 3, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    fl_status st = code == SQLITE_DONE ? FL_OK : code == SQLITE_CONSTRAINT ? fl_fail(err, FL_CONFLICT, "journal: job-%016" PRIx64 " exists already", id.v) : failed(j, "add a job to", err);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return st;
}

static fl_status remove_job(journal *j, job_id id, fl_err *err)
{
    bind_id(j->statement[DROP_JOB_LEASES], 1, id.v);
    fl_status st = finish(j, j->statement[DROP_JOB_LEASES], "remove a job from", err);
    if (st != FL_OK) return st;
    bind_id(j->statement[DROP_JOB], 1, id.v);
    return finish(j, j->statement[DROP_JOB], "remove a job from", err);
}

fl_status journal_jobs_delete(journal *j, const job_id *ids, size_t n, fl_err *err)
{
    fl_status st = journal_begin(j, err);
    for (size_t i = 0; st == FL_OK && i < n; i++) st = remove_job(j, ids[i], err);
    if (st == FL_OK) st = journal_commit(j, err);
    if (st != FL_OK) journal_rollback(j);
    return st;
}

fl_status journal_job_reopen(journal *j, job_id id, uint32_t generation, fl_err *err)
{
    FL_ASSERT(j->in_transaction && generation > 1);
    bind_id(j->statement[DROP_JOB_LEASES], 1, id.v);
    fl_status st = finish(j, j->statement[DROP_JOB_LEASES], "open a job again in", err);
    if (st != FL_OK) return st;
    bind_id(j->statement[REOPEN_JOB], 1, id.v);
    bind_id(j->statement[REOPEN_JOB], 2, generation);
    return finish(j, j->statement[REOPEN_JOB], "open a job again in", err);
}

fl_status journal_next_lease(journal *j, uint64_t *value, fl_err *err)
{
    int64_t v = 0;
    fl_status st = read_number(j, "SELECT value FROM meta WHERE key = 'next_lease'", &v, err);
    if (st == FL_NOT_FOUND || (st == FL_OK && v < 1)) return fl_fail(err, FL_CORRUPT, "journal: %s: meta.next_lease is missing or below 1; start over with a new --spool", j->path);
    *value = (uint64_t)v;
    return st;
}

fl_status journal_jobs(journal *j, journal_job_visit visit, void *context, fl_err *err)
{
    sqlite3_stmt *s = NULL;
    fl_status st = FL_OK;
    int code;
    const char *sql = j->version == 1 ? "SELECT id, state, created_s, name, 1 FROM jobs ORDER BY seq" : "SELECT id, state, created_s, name, generation FROM jobs ORDER BY seq";
    if (sqlite3_prepare_v2(j->db, sql, -1, &s, NULL) != SQLITE_OK) return failed(j, "read", err);
    while (st == FL_OK && (code = sqlite3_step(s)) == SQLITE_ROW) {
        journal_job job = { .id = { (uint64_t)sqlite3_column_int64(s, 0) } };
        int64_t state = sqlite3_column_int64(s, 1), created_s = sqlite3_column_int64(s, 2), generation = sqlite3_column_int64(s, 4);
        const char *bad = job.id.v == 0 ? "id" : NULL;
        if (sqlite3_column_type(s, 1) != SQLITE_INTEGER || state < JOB_OPEN || state > JOB_EXPIRED) bad = "state";
        if (sqlite3_column_type(s, 2) != SQLITE_INTEGER || created_s < 0) bad = "created_s";
        if (sqlite3_column_type(s, 3) != SQLITE_TEXT || sqlite3_column_bytes(s, 3) > NAME_BYTES_MAX) bad = "name";
        if (sqlite3_column_type(s, 4) != SQLITE_INTEGER || generation < 1 || generation > UINT32_MAX) bad = "generation";
        if (bad) { st = fl_fail(err, FL_CORRUPT, "journal: %s: job-%016" PRIx64 " has a bad %s; start over with a new --spool", j->path, job.id.v, bad); break; }
        job.state = (job_state)state;
        job.created_s = (uint64_t)created_s;
        job.generation = (uint32_t)generation;
        job.name = (const char *)sqlite3_column_text(s, 3);
        st = visit(context, &job, err);
    }
    if (st == FL_OK && code != SQLITE_DONE) st = failed(j, "read", err);
    sqlite3_finalize(s);
    return st;
}

/* Unpack a lease's items into j->items. Rows ascend, samples are within 0 .. 1023 and runs of one row do not overlap. */
static bool unpack_items(journal *j, const uint8_t *at, size_t n_bytes, uint32_t *n_items)
{
    const uint8_t *end = at + n_bytes;
    lease_item before = { { 0 }, 0, 0 };
    size_t most = n_bytes / 3;
    if (most > j->n_items_capacity) {
        lease_item *grown = realloc(j->items, most * sizeof *grown);
        if (!grown) return false;
        j->items = grown;
        j->n_items_capacity = most;
    }
    *n_items = 0;
    while (at < end) {
        uint64_t delta, lo, n;
        if (!get_varint(&at, end, &delta) || !get_varint(&at, end, &lo) || !get_varint(&at, end, &n)) return false;
        if (lo > 1023 || n == 0 || n > 1024 - lo || delta > UINT32_MAX - before.row.v) return false;
        lease_item item = { { before.row.v + delta }, (uint32_t)lo, (uint32_t)(lo + n) };
        if (*n_items > 0 && delta == 0 && item.sample_lo < before.sample_hi) return false;
        j->items[(*n_items)++] = before = item;
    }
    return *n_items > 0;
}

fl_status journal_leases(journal *j, journal_lease_visit visit, void *context, fl_err *err)
{
    sqlite3_stmt *s = NULL;
    fl_status st = FL_OK;
    int code;
    uint64_t next;
    if ((st = journal_next_lease(j, &next, err)) != FL_OK) return st;
    if (sqlite3_prepare_v2(j->db, "SELECT id, job, worker, items FROM leases ORDER BY id DESC", -1, &s, NULL) != SQLITE_OK) return failed(j, "read", err);
    while (st == FL_OK && (code = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(s, 0);
        uint64_t job = (uint64_t)sqlite3_column_int64(s, 1), worker = (uint64_t)sqlite3_column_int64(s, 2);
        const uint8_t *blob = sqlite3_column_blob(s, 3);
        uint32_t n_items = 0;
        const char *bad = NULL;
        if (id < 1 || (uint64_t)id >= next) bad = "id, which the counter of leases never gave out";
        else if (sqlite3_column_type(s, 1) != SQLITE_INTEGER || job == 0) bad = "job";
        else if (sqlite3_column_type(s, 2) != SQLITE_INTEGER || worker == 0) bad = "worker";
        else if (sqlite3_column_type(s, 3) != SQLITE_BLOB || !blob || !unpack_items(j, blob, (size_t)sqlite3_column_bytes(s, 3), &n_items)) bad = "list of items";
        if (bad) { st = fl_fail(err, FL_CORRUPT, "journal: %s: lease %" PRId64 " has a bad %s; start over with a new --spool", j->path, id, bad); break; }
        st = visit(context, (lease_id){ (uint64_t)id }, (job_id){ job }, (worker_id){ worker }, j->items, n_items, err);
    }
    if (st == FL_OK && code != SQLITE_DONE) st = failed(j, "read", err);
    sqlite3_finalize(s);
    return st;
}
