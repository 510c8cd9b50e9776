/* rope.h - the inverse frequencies of rotary position embedding (Su et al. 2021, arXiv:2104.09864).
 * Bits     double arithmetic of + - * / only, rounded to fp32 where the reference rounds, so every machine gets the same table. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include <stdint.h>

/* inv_freq[i] = 1 / theta^(2 i / n_rot), i < n_rot / 2. theta >= 1; n_rot even. */
void rope_inv_freq(float *inv_freq, double theta, int32_t n_rot);

#endif
