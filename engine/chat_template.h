/* chat_template.h - rendering chats with the model's Jinja2 template in a helper process (/usr/bin/python3 -I, or TOKENFLEET_PYTHON): sandboxed as transformers
 * does, 512 MB and 5 s a row, TZ=UTC, LC_ALL=C, PYTHONHASHSEED=0. A hanging or hungry render is killed and is a row error.
 * Threads  one caller at a time. The helper starts at the first render and dies with its parent. */
#ifndef ENGINE_CHAT_TEMPLATE_H
#define ENGINE_CHAT_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct chat_template chat_template;

/* The template of a model directory: chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or a list of named ones). FL_NOT_FOUND when it
 * has none; FL_IO with a sentence when Python or Jinja2 is missing. */
fl_status chat_template_open(chat_template **out, const char *model_dir, fl_err *err);
void      chat_template_close(chat_template *t);                         /* accepts NULL */

/* Render `request` (fl_row.text of a messages row). now_s is what strftime_now sees. *text is malloc'ed UTF-8, NUL-terminated. FL_INVALID: the template refused or failed
 * (a row error; the sentence is a function of row and template). FL_IO: the helper cannot run. */
fl_status chat_template_render(chat_template *t, const char *request, size_t n_bytes, uint32_t now_s, char **text, size_t *text_bytes, fl_err *err);

#endif
