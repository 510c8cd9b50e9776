/* bench_process.h - the processes of `bench-fleet` and `torture`: a coordinator, stub fleets, and this program's own commands; and what the system says of them.
 * Rules    every child has its own process group (a Ctrl-C at the terminal reaches the command alone) and dies with it.
 * Threads  belongs to the command's one thread; start stub fleets before anything opens a libzmq context. */
#ifndef COORDINATOR_BENCH_PROCESS_H
#define COORDINATOR_BENCH_PROCESS_H

#include <stdint.h>
#include <sys/types.h>
#include "coordinator/stub_worker.h"

/* Start a program; what it prints goes behind what the files `output` and `errors` hold (they may be one). */
typedef struct { const char *path; char *const *argv; const char *output, *errors; int net_fd; } bench_program;      /* path NULL: this one; net_fd: its network namespace, -1 = ours */
fl_status bench_start(pid_t *out, const bench_program *program, fl_err *err);

/* Start this program with argv (argv[0] is ignored, NULL ends it), its output going to the file `log`. */
fl_status bench_start_self(pid_t *out, char *const *argv, const char *log, fl_err *err);

/* Run this program to its end; *text is its standard output (malloc'ed). FL_IO: it failed, with its last sentence. */
fl_status bench_call_self(char *const *argv, char **text, fl_err *err);

/* One process of stub workers. Its stats and its sentence, should it fail, lie in memory that both see. */
typedef struct { stub_stats stats; char error[480]; } bench_shared;
typedef struct { pid_t pid; int stop_fd; bench_shared *shared; } bench_stubs;
typedef struct { const char *endpoint; uint32_t n_workers; stub_options options; } bench_stubs_options;
fl_status bench_stubs_start(bench_stubs *out, const bench_stubs_options *options, fl_err *err);
void      bench_stubs_stop(bench_stubs *s);              /* tell it to end; then bench_end waits */
void      bench_stubs_free(bench_stubs *s);              /* after its process has ended */

/* Did it end? Then *status is how (waitpid) and it is waited for. */
bool bench_has_ended(pid_t pid, int *status);

/* Wait for it at most timeout_ms, then kill it. */
void bench_end(pid_t pid, int timeout_ms);

typedef struct { double cpu_s; uint64_t rss_bytes, rss_high_bytes; } bench_usage;
bench_usage bench_usage_of(pid_t pid);                   /* zeros when it is gone */

uint64_t bench_folder_bytes(const char *path);           /* of the files in it; 0 when it is not there */
uint64_t bench_file_limit(void);                         /* raises the soft limit of open files to the hard one and returns it */
void     bench_last_line(const char *path, char *out, size_t n_bytes);   /* of a text file, "" when there is none */

#endif
