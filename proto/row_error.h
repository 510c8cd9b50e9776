/* row_error.h - why a row has an error line instead of a completion. A row error is a function of row, model and settings.
 * The names are the `error.code` of the error file (OpenAI's three plus ours); the numbers go into the ledger: append only. */
#ifndef FL_ROW_ERROR_H
#define FL_ROW_ERROR_H

#define FL_ROW_ERROR_TABLE(X) \
    X(ROW_OK,                  0, "") \
    X(ROW_INVALID_JSON,        1, "invalid_json") \
    X(ROW_INVALID_UTF8,        2, "invalid_utf8") \
    X(ROW_LINE_TOO_LONG,       3, "line_too_long") \
    X(ROW_DUPLICATE_ID,        4, "duplicate_custom_id") \
    X(ROW_URL_MISMATCH,        5, "url_mismatch") \
    X(ROW_UNSUPPORTED_FIELD,   6, "unsupported_field") \
    X(ROW_INVALID_REQUEST,     7, "invalid_request") \
    X(ROW_CONTEXT_OVERFLOW,    8, "context_overflow") \
    X(ROW_NO_TOKENIZER,        9, "no_tokenizer") \
    X(ROW_TEMPLATE_ERROR,     10, "template_error") \
    X(ROW_CRASH_QUARANTINED,  11, "engine_crash_quarantined") \
    X(ROW_NAN_LOGITS,         12, "nan_logits") \
    X(ROW_DISK_FULL,          13, "disk_full") \
    X(ROW_CANCELLED,          14, "batch_cancelled") \
    X(ROW_EXPIRED,            15, "batch_expired") \
    X(ROW_TIMEOUT,            16, "request_timeout")

typedef enum {
#define FL_ROW_ERROR_ENUM(code, number, name) code = number,
    FL_ROW_ERROR_TABLE(FL_ROW_ERROR_ENUM)
#undef FL_ROW_ERROR_ENUM
    ROW_ERROR_COUNT
} fl_row_error;

const char *fl_row_error_name(fl_row_error code);        /* "invalid_json"; "" for ROW_OK; "unknown" outside the table */

#endif
