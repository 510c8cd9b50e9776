#include "coordinator/pace.h"

void pace_note(pace *p, int64_t now_ms, int64_t every_ms, uint64_t a, uint64_t b)
{
    if (p->n > 0 && now_ms - p->ring[(p->n - 1) % PACE_SAMPLES].at_ms < every_ms) return;
    p->ring[p->n++ % PACE_SAMPLES] = (pace_sample){ now_ms, a, b };
}

void pace_rates(const pace *p, int64_t now_ms, uint64_t a, uint64_t b, double *a_per_s, double *b_per_s)
{
    const pace_sample *from = &p->ring[p->n < PACE_SAMPLES ? 0 : p->n % PACE_SAMPLES];
    double seconds = (double)(now_ms - from->at_ms) / 1000;
    *a_per_s = p->n > 0 && seconds > 0 && a > from->a ? (double)(a - from->a) / seconds : 0;
    *b_per_s = p->n > 0 && seconds > 0 && b > from->b ? (double)(b - from->b) / seconds : 0;
}
