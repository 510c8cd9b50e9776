#include "engine/step_lists.h"

#include <stdlib.h>
#include <string.h>

fl_status step_lists_open(step_lists *l, int32_t n_rows, int32_t n_seqs, int32_t seq_blocks, fl_err *err)
{
    const size_t rows = (size_t)n_rows, seqs = (size_t)n_seqs;
    *l = (step_lists){ .n_seqs_max = n_seqs, .seq_blocks = seq_blocks };
    l->ids = calloc(rows, sizeof *l->ids);
    l->ids_from = calloc(rows, sizeof *l->ids_from);
    l->positions = calloc(rows, sizeof *l->positions);
    l->seq_of_row = calloc(rows, sizeof *l->seq_of_row);
    l->logit_rows = calloc(rows, sizeof *l->logit_rows);
    l->rows = calloc(rows, sizeof *l->rows);
    l->row_begin = calloc(seqs + 1, sizeof *l->row_begin);
    l->slots = calloc(seqs, sizeof *l->slots);
    l->is_prefill = calloc(seqs, sizeof *l->is_prefill);
    l->tables = calloc(seqs * (size_t)seq_blocks, sizeof *l->tables);
    bool ok = l->ids && l->ids_from && l->positions && l->seq_of_row && l->logit_rows && l->rows && l->row_begin && l->slots && l->is_prefill && l->tables;
    return ok ? FL_OK : fl_fail(err, FL_FULL, "engine: no memory for a step of %d rows; lower the batch limit or the prefill budget", n_rows);
}

void step_lists_close(step_lists *l)
{
    free(l->ids); free(l->ids_from); free(l->positions); free(l->seq_of_row); free(l->logit_rows); free(l->rows);
    free(l->row_begin); free(l->slots); free(l->is_prefill); free(l->tables);
    *l = (step_lists){ 0 };
}

int32_t step_rows_padded(int32_t n, int32_t most)
{
    int32_t power = 1;
    while (power < n) power *= 2;
    const int32_t step = power <= 8 ? power : power <= 128 ? power / 4 > 8 ? power / 4 : 8 : power / 8, padded = (n + step - 1) / step * step;
    return padded < most ? padded : most;
}

/* The stride between the block tables of the step. */
static int32_t find_stride(const step_lists *l, const plan_entry *entries, int32_t n)
{
    int32_t stride = 1, power = 1;
    for (int32_t i = 0; i < n; i++) if (entries[i].seq->table.n_blocks > stride) stride = entries[i].seq->table.n_blocks;
    FL_ASSERT(stride <= l->seq_blocks);
    if (!l->is_padded) return stride;
    while (power < stride) power *= 2;
    return power < l->seq_blocks ? power : l->seq_blocks;
}

/* Is the row's logits row needed: to choose a token, or for the prompt's log-probabilities? */
static bool wants_logits(const request *r, int32_t position, bool is_prefill)
{
    if (is_prefill && position + 1 < r->n_prompt) return r->sampling.n_prompt_top >= 0;
    return r->sampling.max_tokens > 0;
}

static void fill_id(step_lists *l, int32_t row, request *r, const plan_entry *entry, int32_t position)
{
    l->ids_from[row] = -1;
    if (entry->is_prefill) { l->ids[row] = r->prompt[position]; return; }
    const sample *s = request_sample(r, entry->seq->sample);
    const int32_t at = position - r->n_prompt;
    if (at < s->n_ids) { l->ids[row] = s->ids[at]; return; }
    FL_ASSERT(at == s->n_ids && s->n_ahead == 1);        /* chosen in the step before, and not read yet */
    l->ids[row] = 0;
    l->ids_from[row] = s->choice;
}

static void fill_sequence(step_lists *l, const plan_entry *entry)
{
    const int32_t i = l->n_seqs++;
    const block_table *table = &entry->seq->table;
    request *r = entry->seq->owner;
    l->row_begin[i] = l->n_rows;
    l->slots[i] = entry->seq->slot;
    l->is_prefill[i] = entry->is_prefill;
    memcpy(l->tables + (size_t)i * (size_t)l->stride, table->blocks, (size_t)table->n_blocks * sizeof *l->tables);
    for (int32_t k = 0; k < entry->n_rows; k++, l->n_rows++) {
        const int32_t position = entry->first + k;
        fill_id(l, l->n_rows, r, entry, position);
        l->positions[l->n_rows] = position;
        l->seq_of_row[l->n_rows] = i;
        if (!wants_logits(r, position, entry->is_prefill)) continue;
        l->rows[l->n_logits] = (logit_row){ r, entry->seq, position, entry->is_prefill };
        l->logit_rows[l->n_logits++] = l->n_rows;
    }
    if (entry->is_prefill) l->n_prefill += entry->n_rows;
}

/* One more decode row, at the first position of the padding's sequence. */
static void fill_padding(step_lists *l, const step_padding *padding)
{
    const int32_t i = l->n_seqs++, row = l->n_rows++;
    l->row_begin[i] = row;
    l->slots[i] = padding->slot;
    l->is_prefill[i] = false;
    l->tables[(size_t)i * (size_t)l->stride] = padding->block;
    l->ids[row] = l->positions[row] = 0;
    l->ids_from[row] = -1;
    l->seq_of_row[row] = i;
    l->logit_rows[l->n_logits++] = row;
}

void step_lists_fill(step_lists *l, const plan_entry *entries, int32_t n, const step_padding *padding)
{
    l->n_rows = l->n_seqs = l->n_logits = l->n_prefill = 0;
    l->is_padded = padding;
    for (int32_t i = 0; i < n; i++) l->is_padded &= !entries[i].is_prefill;
    l->stride = find_stride(l, entries, n);
    for (int32_t i = 0; i < n; i++) fill_sequence(l, &entries[i]);
    l->n_real = l->n_logits;
    const int32_t n_padded = l->is_padded ? step_rows_padded(n, l->n_seqs_max) : 0;
    while (l->n_rows < n_padded) fill_padding(l, padding);
    l->row_begin[l->n_seqs] = l->n_rows;
}

ops_batch step_lists_batch(const step_lists *l, const int32_t *chosen)
{
    return (ops_batch){ .n_rows = l->n_rows, .n_seqs = l->n_seqs, .ids = l->ids, .ids_from = chosen ? l->ids_from : NULL, .chosen = chosen, .positions = l->positions,
                        .seq_of_row = l->seq_of_row, .row_begin = l->row_begin, .is_prefill = l->is_prefill, .state_slots = l->slots, .block_tables = l->tables, .table_stride = l->stride,
                        .reach = l->is_padded ? l->stride * OPS_BLOCK_TOKENS : 0, .logit_rows = l->logit_rows, .n_logits = l->n_logits };
}
