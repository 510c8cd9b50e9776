/* nfc.h - Unicode normalization form C, as the reference tokenizer library's (older) tables have it.
 * Threads  plain functions. */
#ifndef ENGINE_NFC_H
#define ENGINE_NFC_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

/* Normalize n_bytes of valid UTF-8. *out is NULL when nothing can change (the text itself is normal), else malloc'ed and the caller frees. */
fl_status nfc_normalize(const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err);

#endif
