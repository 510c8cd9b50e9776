/* chat_template.h - rendering chats with the model's Jinja2 template in a helper process (chat_helper.py, carried in the binary), run by /usr/bin/python3 or TOKENFLEET_PYTHON.
 * Sandbox  transformers' (ImmutableSandboxedEnvironment); 512 MB of address space and 5 s of CPU time a row, no environment but TZ=UTC, LC_ALL=C,
 *          PYTHONHASHSEED=0 (python's -I would ignore the last, so an empty environment, -s and a cleaned path stand in for it), no descriptors but its socket.
 * Limits   a hanging or hungry render ends the helper and is a row error; the next render starts a new one. Memory that runs out in a helper that has rendered other rows is
 *          asked for again in a new one, so that a row's fate is its own. A helper ended from outside is replaced and asked again.
 * Threads  one caller at a time. The helper dies with the thread that started it, and is replaced then too. */
#ifndef ENGINE_CHAT_TEMPLATE_H
#define ENGINE_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct chat_template chat_template;

/* The templates of a .gguf file's metadata (tokenizer.chat_template, tokenizer.chat_template.NAME), or of a model directory: chat_template.jinja (`default`) and additional_chat_templates/NAME.jinja, else `chat_template` of tokenizer_config.json (a string, or a list of
 * named ones). Rows with tools take `tool_use` where there is one, a row whose chat_template_kwargs name one in `chat_template` takes that, others take `default`. Starts the helper. FL_NOT_FOUND when the model has no template, FL_CORRUPT or FL_UNSUPPORTED when its files
 * hold none that can be read: a sentence without paths, for it may become a row error. FL_IO when Python or Jinja2 is missing. A template that cannot be compiled fails each row. */
fl_status chat_template_open(chat_template **out, const char *model, fl_err *err);
void      chat_template_close(chat_template *t);                         /* accepts NULL */

/* The names of those templates, an array of strings that is the caller's, without starting anything. Fails as chat_template_open does for the model's files. */
fl_status chat_template_names(json_t **names, const char *model, fl_err *err);

/* Render `request` (fl_row.text of a messages row). now_s is what strftime_now sees. *text is malloc'ed UTF-8, NUL-terminated. FL_INVALID: the template refused or failed
 * (a row error; the sentence is a function of row and template). FL_IO, FL_TIMEOUT (60 s of wall time without an answer): the helper cannot run. */
fl_status chat_template_render(chat_template *t, const char *request, size_t n_bytes, uint32_t now_s, char **text, size_t *text_bytes, fl_err *err);

#endif
