/* log.h - one line a thing that happened, on stderr: time, level, process part, sentence. Never in output files.
 * Level    TOKENFLEET_LOG = error | warn | info | debug (default warn: commands are quiet when all is well); an unknown
 *          value is reported once and read as the default.
 * Threads  any; a line is one write(2). */
#ifndef FL_LOG_H
#define FL_LOG_H

typedef enum { FL_LOG_ERROR, FL_LOG_WARN, FL_LOG_INFO, FL_LOG_DEBUG } fl_log_level;

/* Name the process part that stands in each line ("coordinator", "worker 3"). Call before threads start; copied. */
void fl_log_name(const char *name);
void fl_log_set_level(fl_log_level level);
void fl_log(fl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
