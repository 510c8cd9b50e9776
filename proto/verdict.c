#include "proto/verdict.h"

#include <string.h>
#include "proto/bytes.h"

enum { VERSION = 1, IN_PROCESS = 1, HAS_INPUTS = 2, CANONICAL_FAILED = 4 };

const char *fl_verdict_name(fl_verdict_kind kind)
{
    switch (kind) {
#define VERDICT_NAME(NAME, number, name, meaning) case FL_VERDICT_##NAME: return name;
    FL_VERDICT_TABLE(VERDICT_NAME)
#undef VERDICT_NAME
    case FL_VERDICT_END: break;
    }
    return "?";
}

fl_verdict_kind fl_verdict_find(const char *name, size_t n_bytes)
{
    for (int i = 1; i < FL_VERDICT_END; i++) {
        const char *known = fl_verdict_name((fl_verdict_kind)i);
        if (strlen(known) == n_bytes && memcmp(known, name, n_bytes) == 0) return (fl_verdict_kind)i;
    }
    return FL_VERDICT_END;
}

void fl_verdict_encode(const fl_verdict *v, uint8_t out[FL_VERDICT_BYTES])
{
    memset(out, 0, FL_VERDICT_BYTES);
    out[0] = VERSION;
    out[1] = (uint8_t)v->verdict;
    out[2] = (uint8_t)(v->has_inputs ? v->base : v->verdict);
    out[3] = (uint8_t)(v->has_inputs ? v->plus : v->verdict);
    out[4] = (uint8_t)((v->in_process ? IN_PROCESS : 0) | (v->has_inputs ? HAS_INPUTS : 0) | (v->canonical_failed ? CANONICAL_FAILED : 0));
    fl_put_u32(out + 8, v->has_inputs ? (uint32_t)(v->base_failed + 1) : 0);
    fl_put_u32(out + 12, v->has_inputs ? (uint32_t)(v->plus_failed + 1) : 0);
}

static bool is_kind(uint8_t number)
{
    return number > 0 && number < FL_VERDICT_END;
}

fl_status fl_verdict_decode(fl_verdict *out, const void *body, size_t n_bytes, fl_err *err)
{
    const uint8_t *b = body;
    uint8_t again[FL_VERDICT_BYTES];
    if (n_bytes != FL_VERDICT_BYTES) return fl_fail(err, FL_CORRUPT, "a verdict of %zu bytes; it has %d", n_bytes, FL_VERDICT_BYTES);
    if (b[0] != VERSION) return fl_fail(err, FL_CORRUPT, "a verdict of version %d", b[0]);
    if (!is_kind(b[1]) || !is_kind(b[2]) || !is_kind(b[3])) return fl_fail(err, FL_CORRUPT, "a verdict with a number that is none");
    uint32_t base_failed = fl_get_u32(b + 8), plus_failed = fl_get_u32(b + 12);
    if (base_failed > INT32_MAX || plus_failed > INT32_MAX) return fl_fail(err, FL_CORRUPT, "a verdict with an input that cannot be");
    *out = (fl_verdict){ .verdict = (fl_verdict_kind)b[1], .base = (fl_verdict_kind)b[2], .plus = (fl_verdict_kind)b[3], .in_process = b[4] & IN_PROCESS, .canonical_failed = b[4] & CANONICAL_FAILED,
                         .has_inputs = b[4] & HAS_INPUTS, .base_failed = (int32_t)base_failed - 1, .plus_failed = (int32_t)plus_failed - 1 };
    fl_verdict_encode(out, again);
    return memcmp(again, b, sizeof again) == 0 ? FL_OK : fl_fail(err, FL_CORRUPT, "a verdict with bits that mean nothing");
}
