/* nfc.h - the Unicode normalization forms, as the reference tokenizer library's (older) tables have them.
 * Threads  plain functions. */
#ifndef ENGINE_NFC_H
#define ENGINE_NFC_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef enum { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD } unicode_form;

/* Normalize n_bytes of valid UTF-8. *out is NULL when nothing can change (the text itself is normal), else malloc'ed and the caller frees. */
fl_status nfc_normalize(unicode_form form, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err);

#endif
