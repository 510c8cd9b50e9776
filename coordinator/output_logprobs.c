#include "coordinator/output_logprobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names of tokens ---- */

enum { NAME_ID_BYTES = 24 };             /* "token_id:" and a number */

/* The name: borrowed from the table, or made in *made (owned by the caller). */
typedef struct { const char *p; size_t n; char *made; } token_name;

static bool name_by_id(token_name *name, int32_t id)
{
    name->made = malloc(NAME_ID_BYTES);
    if (!name->made) return false;
    name->n = (size_t)snprintf(name->made, NAME_ID_BYTES, "token_id:%d", id);
    name->p = name->made;
    return true;
}

static bool name_of(token_name *name, const fl_detok *table, int32_t id)
{
    size_t n;
    const uint8_t *bytes = fl_detok_token(table, id, false, &n);
    *name = (token_name){ (const char *)bytes, n, NULL };
    if (n == 0) return name_by_id(name, id);
    if (fl_utf8_valid(bytes, n)) return true;
    name->made = malloc(6 + 4 * n + 1);
    if (!name->made) return false;
    char *to = name->made + sprintf(name->made, "bytes:");
    for (size_t i = 0; i < n; i++) to += sprintf(to, "\\x%02x", bytes[i]);
    name->p = name->made;
    name->n = (size_t)(to - name->made);
    return true;
}

static bool same_name(const token_name *a, const token_name *b) { return a->n == b->n && memcmp(a->p, b->p, a->n) == 0; }

static bool write_name(json_out *out, const fl_detok *table, int32_t id)
{
    token_name name;
    bool made = name_of(&name, table, id);
    if (made) json_out_bytes(out, name.p, name.n);
    free(name.made);
    return made;
}

/* ---- alternatives ---- */

/* One position: its own token, and the best ones. */
typedef struct { int32_t id; float logprob; const int32_t *top_ids; const float *top_logprobs; int32_t n_top; } position;

static position sample_position(const fl_row *row, const fl_result *r, size_t i)
{
    size_t at = i * (size_t)(r->n_top > 0 ? r->n_top : 0);
    return (position){ r->ids[i], r->logprobs[i], row->logprobs ? r->top_ids + at : NULL, row->logprobs ? r->top_logprobs + at : NULL, row->logprobs };
}

/* Prompt token i, i >= 1. */
static position prompt_position(int32_t n_top, const fl_result *r, size_t i)
{
    size_t at = (i - 1) * (size_t)(r->n_prompt_top > 0 ? r->n_prompt_top : 0);
    return (position){ r->prompt_ids[i], r->prompt_logprobs[i - 1], n_top ? r->prompt_top_ids + at : NULL, n_top ? r->prompt_top_logprobs + at : NULL, n_top };
}

static bool in_top(const position *p)
{
    for (int32_t k = 0; k < p->n_top; k++) if (p->top_ids[k] == p->id) return true;
    return false;
}

/* {name: logprob}: the best ones, then the chosen token where it is none of them. No key stands twice. */
static bool write_top_dict(json_out *out, const position *p, const fl_detok *table)
{
    token_name names[FL_TOP_LOGPROBS_MAX + 1];
    int n_names = 0, n_all = p->n_top + !in_top(p);
    bool ok = true;
    json_out_begin(out, '{');
    for (int k = 0; k < n_all && ok; k++) {
        int32_t id = k < p->n_top ? p->top_ids[k] : p->id;
        float logprob = k < p->n_top ? p->top_logprobs[k] : p->logprob;
        if (id < 0) continue;                            /* past the vocabulary's end */
        token_name name;
        ok = name_of(&name, table, id);
        for (int try = 0; try < 2 && ok; try++) {        /* an id's own name can itself be some token's text */
            int other = 0;
            while (other < n_names && !same_name(&names[other], &name)) other++;
            if (other == n_names) {
                json_out_key_bytes(out, name.p, name.n);
                json_out_float(out, logprob);
                names[n_names++] = name;
                name.made = NULL;
                break;
            }
            free(name.made);
            name.made = NULL;
            if (try == 0) ok = name_by_id(&name, id);
        }
        free(name.made);
    }
    json_out_end(out, '}');
    for (int k = 0; k < n_names; k++) free(names[k].made);
    return ok;
}

/* ---- completions ---- */

/* Walks the characters of the shown text; bytes asked for never go back. */
typedef struct { const shown_text *shown; size_t at; uint64_t n_characters; } character_walk;

static uint64_t character_at(character_walk *w, size_t byte)
{
    bool good;
    while (w->at < w->shown->n_bytes) {
        size_t step = fl_utf8_step(w->shown->bytes + w->at, w->shown->n_bytes - w->at, &good);
        if (w->at + step > byte) break;
        w->at += step;
        w->n_characters++;
    }
    return w->n_characters;
}

static void write_offsets(json_out *out, const fl_result *prompt, size_t n_prompt, const fl_result *sample, const shown_text *shown, const fl_detok *table)
{
    character_walk walk = { shown, 0, 0 };
    fl_detok_place place = { 0 };
    size_t byte = 0, n;
    json_out_key(out, "text_offset");
    json_out_begin(out, '[');
    for (size_t i = 0; i < n_prompt; i++) {              /* a prompt's text may differ from its tokens' (normalization): stay inside */
        json_out_u64(out, character_at(&walk, byte < shown->n_prompt_bytes ? byte : shown->n_prompt_bytes));
        fl_detok_next(table, &place, prompt->prompt_ids[i], &n);
        byte += n;
    }
    for (size_t i = 0; i < sample->n_ids; i++) json_out_u64(out, character_at(&walk, shown->n_prompt_bytes + (i ? shown->ends[i - 1] : 0)));
    json_out_end(out, ']');
}

fl_status output_text_logprobs(json_out *out, const fl_row *row, const fl_result *prompt, const fl_result *sample, const shown_text *shown, const fl_detok *table, fl_err *err)
{
    size_t n_prompt = row->echo ? (size_t)prompt->n_prompt : 0;
    bool ok = true;
    json_out_begin(out, '{');
    json_out_key(out, "tokens");
    json_out_begin(out, '[');
    for (size_t i = 0; i < n_prompt && ok; i++) ok = write_name(out, table, prompt->prompt_ids[i]);
    for (size_t i = 0; i < sample->n_ids && ok; i++) ok = write_name(out, table, sample->ids[i]);
    json_out_end(out, ']');
    json_out_key(out, "token_logprobs");
    json_out_begin(out, '[');
    if (n_prompt) json_out_null(out);
    for (size_t i = 1; i < n_prompt; i++) json_out_float(out, prompt->prompt_logprobs[i - 1]);
    for (size_t i = 0; i < sample->n_ids; i++) json_out_float(out, sample->logprobs[i]);
    json_out_end(out, ']');
    json_out_key(out, "top_logprobs");
    json_out_begin(out, '[');
    if (n_prompt) json_out_null(out);
    for (size_t i = 1; i < n_prompt && ok; i++) {
        position p = prompt_position(row->logprobs, prompt, i);
        ok = write_top_dict(out, &p, table);
    }
    for (size_t i = 0; i < sample->n_ids && ok; i++) {
        position p = sample_position(row, sample, i);
        ok = write_top_dict(out, &p, table);
    }
    json_out_end(out, ']');
    write_offsets(out, prompt, n_prompt, sample, shown, table);
    json_out_end(out, '}');
    return ok ? FL_OK : fl_fail(err, FL_FULL, "output: no memory for the names of tokens");
}

/* ---- chats ---- */

static bool write_token(json_out *out, const fl_detok *table, int32_t id, float logprob)
{
    size_t n;
    const uint8_t *bytes = fl_detok_token(table, id, false, &n);
    json_out_key(out, "token");
    bool ok = write_name(out, table, id);
    json_out_key(out, "logprob");
    json_out_float(out, logprob);
    json_out_key(out, "bytes");
    if (n == 0) { json_out_null(out); return ok; }
    json_out_begin(out, '[');
    for (size_t i = 0; i < n; i++) json_out_u64(out, bytes[i]);
    json_out_end(out, ']');
    return ok;
}

fl_status output_chat_logprobs(json_out *out, const fl_row *row, const fl_result *sample, const fl_detok *table, fl_err *err)
{
    bool ok = true;
    json_out_begin(out, '{');
    json_out_key(out, "content");
    json_out_begin(out, '[');
    for (size_t i = 0; i < sample->n_ids && ok; i++) {
        position p = sample_position(row, sample, i);
        json_out_begin(out, '{');
        ok = write_token(out, table, p.id, p.logprob);
        json_out_key(out, "top_logprobs");
        json_out_begin(out, '[');
        for (int32_t k = 0; k < p.n_top && ok; k++) {
            if (p.top_ids[k] < 0) continue;
            json_out_begin(out, '{');
            ok = write_token(out, table, p.top_ids[k], p.top_logprobs[k]);
            json_out_end(out, '}');
        }
        json_out_end(out, ']');
        json_out_end(out, '}');
    }
    json_out_end(out, ']');
    json_out_key(out, "refusal");
    json_out_null(out);
    json_out_end(out, '}');
    return ok ? FL_OK : fl_fail(err, FL_FULL, "output: no memory for the names of tokens");
}

/* ---- prompts ---- */

static bool write_prompt_token(json_out *out, const fl_detok *table, int32_t id, float logprob)
{
    char key[16];
    snprintf(key, sizeof key, "%d", id);
    json_out_key(out, key);
    json_out_begin(out, '{');
    json_out_key(out, "logprob");
    json_out_float(out, logprob);
    json_out_key(out, "decoded_token");
    bool ok = write_name(out, table, id);
    json_out_end(out, '}');
    return ok;
}

fl_status output_prompt_logprobs(json_out *out, const fl_row *row, const fl_result *prompt, const fl_detok *table, fl_err *err)
{
    bool ok = true;
    json_out_begin(out, '[');
    if (prompt->n_prompt > 0) json_out_null(out);
    for (size_t i = 1; i < (size_t)prompt->n_prompt && ok; i++) {
        position p = prompt_position(row->prompt_logprobs, prompt, i);
        json_out_begin(out, '{');
        ok = write_prompt_token(out, table, p.id, p.logprob);
        for (int32_t k = 0; k < p.n_top && ok; k++)      /* ids within a position differ: the sampler lists each once */
            if (p.top_ids[k] >= 0 && p.top_ids[k] != p.id) ok = write_prompt_token(out, table, p.top_ids[k], p.top_logprobs[k]);
        json_out_end(out, '}');
    }
    json_out_end(out, ']');
    return ok ? FL_OK : fl_fail(err, FL_FULL, "output: no memory for the names of tokens");
}
