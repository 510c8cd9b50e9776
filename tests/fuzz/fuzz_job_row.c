/* Any bytes as a line of a job: refused with a code, a byte and a sentence, or a row that keeps every promise of job_row.h. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/json_scan.h"
#include "proto/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static bool is_whole_text(const char *p, size_t n) { return fl_utf8_valid((const uint8_t *)p, n) && p[n] == '\0'; }

static void check_row(const fl_row *row)
{
    FL_ASSERT(row->custom_id && row->custom_id_bytes >= 1 && row->custom_id_bytes <= FL_CUSTOM_ID_MAX && is_whole_text(row->custom_id, row->custom_id_bytes));
    FL_ASSERT((row->endpoint == ROW_CHAT) == (row->prompt_kind == ROW_PROMPT_MESSAGES));
    if (row->prompt_kind == ROW_PROMPT_IDS) {
        FL_ASSERT(row->ids && row->n_ids > 0 && !row->text);
        for (size_t i = 0; i < row->n_ids; i++) FL_ASSERT(row->ids[i] >= 0);
    } else {
        FL_ASSERT(row->text && !row->ids && is_whole_text(row->text, row->text_bytes));
    }
    if (row->prompt_kind == ROW_PROMPT_MESSAGES) {
        fl_json value;
        size_t offset;
        char why[FL_JSON_WHY_BYTES];
        FL_ASSERT(fl_json_check(row->text, row->text_bytes, &value, &offset, why) == ROW_OK && value.type == FL_JSON_OBJECT);
    }
    FL_ASSERT(row->temperature >= 0 && row->temperature <= 100 && row->top_p > 0 && row->top_p <= 1 && row->top_k >= -1 && row->min_p >= 0 && row->min_p <= 1);
    FL_ASSERT(row->repetition_penalty > 0 && row->repetition_penalty <= 100);
    FL_ASSERT(row->presence_penalty >= -2 && row->presence_penalty <= 2 && row->frequency_penalty >= -2 && row->frequency_penalty <= 2);
    FL_ASSERT(row->n >= 1 && row->n <= FL_SAMPLES_MAX && row->max_tokens >= 0 && row->min_tokens >= 0);
    if (row->endpoint == ROW_COMPLETION) FL_ASSERT(row->min_tokens <= row->max_tokens && (row->max_tokens > 0 || row->echo));
    else FL_ASSERT(!row->echo && ((row->max_tokens > 0) == ((row->given & ROW_GIVEN_MAX_TOKENS) != 0)));
    FL_ASSERT(row->logprobs >= -1 && row->logprobs <= FL_TOP_LOGPROBS_MAX && row->prompt_logprobs >= -1 && row->prompt_logprobs <= FL_TOP_LOGPROBS_MAX);
    FL_ASSERT(row->n_stop <= FL_STOP_STRINGS_MAX && row->n_stop_ids <= FL_STOP_IDS_MAX);
    for (size_t i = 0; i < row->n_stop; i++)
        FL_ASSERT(row->stop_bytes[i] >= 1 && row->stop_bytes[i] <= FL_STOP_BYTES_MAX && is_whole_text(row->stop[i], row->stop_bytes[i]));
    for (size_t i = 0; i < row->n_stop_ids; i++) FL_ASSERT(row->stop_ids[i] >= 0);
    if (row->model) FL_ASSERT(row->model[0] && strlen(row->model) <= FL_ROW_MODEL_MAX);
    if (row->unknown_fields) FL_ASSERT(is_whole_text(row->unknown_fields, strlen(row->unknown_fields)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static const char *const settings[] = { NULL, "{\"temperature\":0.5,\"max_tokens\":7,\"stop\":\"x\"}", "{\"logprobs\":true,\"top_logprobs\":3,\"tools\":[]}" };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        fl_row row;
        fl_row_fault fault;
        fl_row_error code = fl_row_parse(&row, (const char *)data, n_bytes, 3, settings[i], &fault);
        FL_ASSERT(code == fault.code);
        if (code == ROW_OK) {
            check_row(&row);
            size_t n = row.custom_id_bytes;
            fl_row_rename(&row, UINT64_MAX);
            FL_ASSERT(row.custom_id_bytes == n + 21 && memcmp(row.custom_id + n, "#18446744073709551615", 22) == 0);
        }
        if (code != ROW_OK) FL_ASSERT(fault.offset <= n_bytes && fault.text[0] && is_whole_text(fault.text, strlen(fault.text)));
        fl_row_free(&row);
    }
    char *text = malloc(n_bytes + 1);                    /* the same bytes as a --set object: a good one is good for some row */
    FL_ASSERT(text);
    memcpy(text, data, n_bytes);
    text[n_bytes] = '\0';
    fl_row_fault fault, second;
    if (fl_row_defaults_check(text, &fault) == ROW_OK) {
        fl_row row;
        const char *prompt = "{\"prompt\":\"a\"}", *chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
        fl_row_error code = fl_row_parse(&row, prompt, strlen(prompt), 1, text, &second);
        fl_row_free(&row);
        if (code != ROW_OK) code = fl_row_parse(&row, chat, strlen(chat), 1, text, &second), fl_row_free(&row);
        FL_ASSERT(code == ROW_OK);
    }
    free(text);
    return 0;
}
