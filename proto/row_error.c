#include "proto/row_error.h"

const char *fl_row_error_name(fl_row_error code)
{
    static const char *const names[] = {
#define ROW_ERROR_NAME(id, number, name) [number] = name,
        FL_ROW_ERROR_TABLE(ROW_ERROR_NAME)
#undef ROW_ERROR_NAME
    };
    return (unsigned)code < ROW_ERROR_COUNT ? names[code] : "unknown";
}
