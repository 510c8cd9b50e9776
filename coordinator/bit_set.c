#include "coordinator/bit_set.h"

#include <stdlib.h>
#include <string.h>

bool bit_set_grow(bit_set *set, uint64_t n)
{
    for (int k = 0; k < BIT_SET_LEVELS; k++) {
        uint64_t need = (n + 63) / 64;
        if (need == 0) need = 1;
        if (need > set->n_words[k]) {
            uint64_t room = set->n_words[k] + set->n_words[k] / 4;
            if (room < need) room = need;
            uint64_t *words = realloc(set->level[k], room * sizeof *words);
            if (!words) return false;
            memset(words + set->n_words[k], 0, (room - set->n_words[k]) * sizeof *words);
            set->level[k] = words;
            set->n_words[k] = room;
        }
        n = set->n_words[k];
    }
    return true;
}

void bit_set_fini(bit_set *set)
{
    for (int k = 0; k < BIT_SET_LEVELS; k++) free(set->level[k]);
    memset(set, 0, sizeof *set);
}

bool bit_set_has(const bit_set *set, uint64_t i)
{
    return i / 64 < set->n_words[0] && (set->level[0][i / 64] >> (i % 64) & 1);
}

void bit_set_add(bit_set *set, uint64_t i)
{
    if (bit_set_has(set, i)) return;
    set->count++;
    for (int k = 0; k < BIT_SET_LEVELS; k++, i /= 64) set->level[k][i / 64] |= (uint64_t)1 << (i % 64);
}

void bit_set_remove(bit_set *set, uint64_t i)
{
    if (!bit_set_has(set, i)) return;
    set->count--;
    for (int k = 0; k < BIT_SET_LEVELS; k++, i /= 64) {
        set->level[k][i / 64] &= ~((uint64_t)1 << (i % 64));
        if (set->level[k][i / 64] != 0) return;
    }
}

bool bit_set_next(const bit_set *set, uint64_t from, uint64_t *i)
{
    uint64_t at = from;
    for (int k = 0; k < BIT_SET_LEVELS; k++) {           /* up, until a word has a member at or after `at` */
        if (at / 64 >= set->n_words[k]) return false;
        uint64_t word = set->level[k][at / 64] >> (at % 64);
        if (word != 0) {
            at += (uint64_t)__builtin_ctzll(word);
            for (; k > 0; k--) at = at * 64 + (uint64_t)__builtin_ctzll(set->level[k - 1][at]);      /* and down again */
            *i = at;
            return true;
        }
        at = at / 64 + 1;
    }
    return false;
}
