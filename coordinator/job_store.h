/* job_store.h - one job as its folder of the spool keeps it: its lines (rows.h), its ledger (ledger.h), and what is read from them at a start.
 * Folder   jobs/JOB/job.jsonl, rows.idx (ingest), the segments in ledger/ (ledger.N/ after a retry), and once the job is closed out.jsonl, errors.jsonl (unless `run` puts them elsewhere)
 *          and summary.json, which is written last: where it stands, the outputs are whole.
 * Create   the job's first frames are committed only after every line was ingested: half an ingest is a folder that the journal does not name, and
 *          the next start removes it.
 * Threads  belongs to the daemon's thread. */
#ifndef COORDINATOR_JOB_STORE_H
#define COORDINATOR_JOB_STORE_H

#include "coordinator/coord.h"
#include "coordinator/ingest.h"
#include "coordinator/job_failures.h"
#include "coordinator/journal.h"
#include "coordinator/ledger_index.h"
#include "coordinator/spool.h"
#include "proto/detok.h"

#define JOB_STORE_OUT "out.jsonl"
#define JOB_STORE_ERRORS "errors.jsonl"
#define JOB_STORE_SUMMARY "summary.json"
#define JOB_STORE_HASH_BYTES (2 * ROWS_HASH_BYTES + 1)

/* How long the job and its rows may take, in seconds; 0 = any time. No part of what the job is: it changes which rows are finished, never the bytes of those that are. */
typedef struct {
    uint64_t expires_s;                  /* of the wall clock: what is not finished then gets batch_expired. Holds until the job's first end: a retry has all the time */
    uint64_t row_queue_s, row_run_s, row_s;      /* row_limits of coord.h */
} job_times;
#define JOB_TIMES_MAX_S ((uint64_t)100 * 366 * 86400)

/* Everything that the job's bytes depend on, beside the rows and the model: the first record of its ledger. */
typedef struct {
    char *name;                          /* owned; the file as submitted, for people; not part of what the job is */
    char *model;                         /* owned; the model's name the user asked for, "" = any */
    char *defaults;                      /* owned; --set as one JSON object, "" = none */
    uint64_t seed, created_s;
    uint32_t max_context, now_s;
    job_times times;
    bool grade;                          /* the samples are graded: rows carry a `grade` object (proto/grade_line.h); absent in ledgers of before: false */
    bool suffix_duplicates;              /* --duplicates suffix: later rows of a custom_id get names of their own (ingest.h); absent in ledgers of before: error */
    char content[JOB_STORE_HASH_BYTES];  /* hash of the job's bytes, hex */
} job_settings;

fl_status job_settings_copy(job_settings *out, const job_settings *from, fl_err *err);
void      job_settings_fini(job_settings *s);

/* The first thing in which two jobs differ ("the seed (was 1, is 2)"), in text[n_bytes]; false when they are the same job. */
bool job_settings_differ(const job_settings *was, const job_settings *is, char *text, size_t n_bytes);

typedef struct { uint64_t rows, completed, failed, tokens; } job_counts;

typedef struct {
    job_id id;
    job_settings settings;
    job_state state;
    uint64_t created_s;                  /* when it was submitted (the journal's) */
    uint32_t generation;                 /* of its ledger (the journal's) */
    char *dir, *ledger_dir;              /* owned */
    rows *rows;                          /* owned; its lines; NULL at rest */
    ledger *ledger;                      /* owned; NULL at rest */
    ledger_place end;                    /* of the ledger of a job at rest */
    row_table *table;                    /* owned; NULL once the core has it */
    bool is_pinned, has_detok;
    char fingerprint[65], numerics[257], pin_model[257]; uint32_t n_vocab, context;      /* of the pin */
    job_counts counts;                   /* rows and tokens as replayed; all of them once the job is closed */
    uint64_t n_bad;                      /* of the failed rows: lines that were refused at ingest */
    job_failures failures;               /* of the records so far; read it through job_store_failures */
    ledger_index *results;               /* owned; of a graded job that is open: where its samples lie, for the graders' lines */
    fl_detok *detok;                     /* owned; and the table their text is made with, once the ledger has it */
    bool outputs_due;                    /* closed, and the output files are still to be written */
    int64_t read_until_ms;               /* a client is in the middle of fetching them: they stay at least until then (the daemon's clock) */
} stored_job;

/* How a job is made. Borrowed. */
typedef struct {
    const char *path;                    /* of the job file, "-" = standard input; NULL: it comes in pieces */
    ingest_note note; void *context;     /* as in ingest_options */
} job_draft_options;

/* Make a job of a file, whole and durable, but not yet known to the journal. The content hash is filled in. FL_INVALID, FL_NOT_FOUND, FL_UNSUPPORTED, FL_DISK_FULL,
 * FL_IO as ingest.h, and what the note returned; then nothing is left. */
fl_status job_store_create(stored_job **out, const spool *s, job_id id, const job_settings *settings, const job_draft_options *options, ingest_report *report, fl_err *err);

/* The same in pieces: open, push, end (which makes the job), or abandon. A draft touches nothing but its folder, so any one thread may hold it. */
typedef struct job_draft job_draft;
fl_status job_draft_open(job_draft **out, const spool *s, job_id id, const job_settings *settings, const job_draft_options *options, fl_err *err);     /* options: NULL for none */
fl_status job_draft_push(job_draft *draft, const void *data, size_t n_bytes, fl_err *err);
fl_status job_draft_end(job_draft *draft, stored_job **out, ingest_report *report, fl_err *err);     /* then close the draft */
void      job_draft_close(job_draft *draft);             /* accepts NULL; removes what was not ended */

/* Read back the job that the journal names: lines, ledger, row table. for_writing: the ledger is cut to its last good marker and stands open, unless the job
 * is finished; else nothing is changed. */
fl_status job_store_open(stored_job **out, const spool *s, const journal_job *named, bool for_writing, fl_err *err);
void      job_store_close(stored_job *job);              /* accepts NULL */

/* The job is closed and its outputs are written: its files are not held open any longer, so that a spool may have more jobs than a process descriptors. What status
 * and a new writing of the outputs need stays. */
void job_store_rest(stored_job *job);

/* How far the job's ledger may be read, also at rest. */
ledger_place job_store_marked(const stored_job *job);

/* One record of the job was committed; its place is filled in. A closing record changes no state here: the job is closed once the journal says so too, in the same step in which
 * its outputs become due. FL_CORRUPT: it cannot stand there. */
fl_status job_store_note(stored_job *job, const ledger_record *record, fl_err *err);

/* The line of a row, borrowed until the next call, and its entry. */
fl_status job_store_line(stored_job *job, row_index row, fl_bytes *line, rows_entry *entry, fl_err *err);

/* The line that a grader gets for samples sample_lo .. sample_hi - 1 of a graded job's row: proto/grade_line.h. They are committed. The caller frees line->data. */
fl_status job_store_grade_line(stored_job *job, row_index row, uint32_t sample_lo, uint32_t sample_hi, fl_bytes *line, rows_entry *entry, fl_err *err);

/* What failed so far, the examples with their custom_id and line. */
const job_failures *job_store_failures(stored_job *job);

/* The journal says that the job is open: what its folder holds of outputs is of the time before a retry. Removes the summary, then the files. */
fl_status job_store_drop_outputs(const stored_job *job, fl_err *err);

/* The outputs are whole: write summary.json. */
fl_status job_store_finish(stored_job *job, const job_counts *counts, fl_err *err);

/* When the outputs of a closed job were whole, in seconds of the wall clock; false: they are not. */
bool job_store_finished(const char *job_dir, uint64_t *at_s);

/* Room to note where each sample lies: an index of the job's rows, and of their grade rows where it is graded. */
fl_status job_store_index(ledger_index **out, rows *lines, bool is_graded, fl_err *err);

/* A table of the job's rows as they were ingested, nothing of them done, and without grade rows. */
fl_status job_store_table(row_table **out, rows *lines, fl_err *err);

/* Parse the JOB record of a ledger. */
fl_status job_settings_parse(job_settings *out, const void *json, size_t n_bytes, fl_err *err);

/* The content hash of a job file, decompressed, as ingest computes it. FL_AGAIN: a signal came while standard input was read. */
fl_status job_store_hash(const char *path, char out[JOB_STORE_HASH_BYTES], fl_err *err);

/* Replace the file `path` by these bytes: temporary name, fsync, rename, folder sync. */
fl_status job_store_write_file(const char *path, const void *data, size_t n_bytes, fl_err *err);

#endif
