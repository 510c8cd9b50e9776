/* status.h - the one status code, the one error sentence, and the one assertion of the project.
 * The numbers travel on the wire and into the ledger: append only, never renumber.
 * Threads  everything here is reentrant; an fl_err belongs to its caller's stack. */
#ifndef FL_STATUS_H
#define FL_STATUS_H

#ifdef __cplusplus                       /* CUDA sources are C++ */
extern "C" {
#endif

/*       code            number  meaning */
#define FL_STATUS_TABLE(X) \
    X(FL_OK,             0, "success") \
    X(FL_INVALID,        1, "an argument or input outside its domain") \
    X(FL_IO,             2, "a file, disk or device failed") \
    X(FL_FULL,           3, "no room: memory, a queue, blocks, slots") \
    X(FL_CORRUPT,        4, "bytes that fail their checksum or their format") \
    X(FL_UNSUPPORTED,    5, "well-formed, but nothing here can serve it") \
    X(FL_NOT_FOUND,      6, "a name, id or file that is not there") \
    X(FL_CONFLICT,       7, "what exists already says otherwise") \
    X(FL_TIMEOUT,        8, "a deadline passed") \
    X(FL_CLOSED,         9, "the peer or the object is gone") \
    X(FL_DISK_FULL,     10, "the file system has no space left") \
    X(FL_GPU,           11, "the GPU refused or failed") \
    X(FL_AGAIN,         12, "nothing now; call again later")

typedef enum {
#define FL_STATUS_ENUM(code, number, meaning) code = number,
    FL_STATUS_TABLE(FL_STATUS_ENUM)
#undef FL_STATUS_ENUM
    FL_STATUS_COUNT
} fl_status;

typedef struct { fl_status code; char text[480]; } fl_err;   /* lives on the caller's stack; NULL is allowed */

/* Write `code` and the formatted sentence into `err` (NULL is allowed) and return `code`. A sentence that does not fit
 * is cut at a UTF-8 border. */
fl_status fl_fail(fl_err *err, fl_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* fl_fail with ": strerror(error_number)" at the end; ENOSPC and EDQUOT turn the code into FL_DISK_FULL. */
fl_status fl_fail_errno(fl_err *err, int error_number, const char *format, ...) __attribute__((format(printf, 3, 4)));

const char *fl_status_name(fl_status code);      /* "FL_IO"; "FL_?" for a number that is not ours */
const char *fl_status_meaning(fl_status code);

/* A broken assumption of ours ends the process, also in release builds: the lease runs out, another attempt starts. */
#define FL_ASSERT(condition) ((condition) ? (void)0 : fl_assert_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn)) void fl_assert_failed(const char *condition, const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
