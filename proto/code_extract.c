#include "proto/code_extract.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char PASS[] = "    pass\n";

typedef struct { const char *p; size_t n; } span;

/* The line that begins at *at, without its feed; *at moves behind it. False at the end. */
static bool next_line(span text, size_t *at, span *line)
{
    if (*at >= text.n) return false;
    const char *feed = memchr(text.p + *at, '\n', text.n - *at);
    size_t n = feed ? (size_t)(feed - text.p) - *at : text.n - *at;
    *line = (span){ text.p + *at, n };
    *at += n + 1;
    return true;
}

static size_t spaces(span line)
{
    size_t n = 0;
    while (n < line.n && (line.p[n] == ' ' || line.p[n] == '\t' || line.p[n] == '\r')) n++;
    return n;
}

static bool is_blank(span line) { return spaces(line) == line.n; }
static bool is_indented(span line) { return line.n > 0 && (line.p[0] == ' ' || line.p[0] == '\t'); }

static bool starts_with(span line, const char *word)
{
    size_t n = strlen(word);
    return line.n >= n && memcmp(line.p, word, n) == 0;
}

/* Number of backticks (or tildes) a fence line begins with, at most three spaces before them; 0: no fence. *tag: what stands behind them. */
static size_t fence(span line, char *mark, span *tag)
{
    size_t at = 0, n = 0;
    while (at < line.n && at < 3 && line.p[at] == ' ') at++;
    if (at == line.n || (line.p[at] != '`' && line.p[at] != '~')) return 0;
    *mark = line.p[at];
    while (at + n < line.n && line.p[at + n] == *mark) n++;
    if (n < 3) return 0;
    *tag = (span){ line.p + at + n, line.n - at - n };
    size_t lead = spaces(*tag);
    tag->p += lead;
    tag->n -= lead;
    while (tag->n > 0 && (tag->p[tag->n - 1] == ' ' || tag->p[tag->n - 1] == '\t' || tag->p[tag->n - 1] == '\r')) tag->n--;
    if (*mark == '`' && tag->n > 0 && memchr(tag->p, '`', tag->n)) return 0;     /* code in a sentence */
    return n;
}

static bool is_python(span tag)
{
    static const char *const names[] = { "python", "py", "python3" };
    size_t n = 0;
    while (n < tag.n && tag.p[n] != ' ' && tag.p[n] != '{' && tag.p[n] != ',') n++;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && strncasecmp(names[i], tag.p, n) == 0) return true;
    return false;
}

/* The block that counts, else the whole text. */
static span find_block(span text)
{
    span line, tag, best = text;
    bool has_any = false, has_python = false;
    char mark;
    for (size_t at = 0; next_line(text, &at, &line);) {
        size_t n = fence(line, &mark, &tag), from = at, end = text.n;
        if (n == 0) continue;
        bool python = is_python(tag);
        while (next_line(text, &at, &line)) {            /* to the closing fence: as many marks or more, and nothing behind them */
            char closing;
            span rest;
            size_t m = fence(line, &closing, &rest);
            if (m < n || closing != mark || rest.n > 0) continue;
            end = (size_t)(line.p - text.p);
            break;
        }
        if (from > text.n) from = text.n;
        if (has_python && !python) continue;
        if (!has_any || python || !has_python) best = (span){ text.p + from, end > from ? end - from : 0 };
        has_any = true;
        has_python |= python;
    }
    return best;
}

bool fl_code_defines(const char *code, size_t n_bytes, const char *name)
{
    static const char *const words[] = { "def ", "async def ", "class ", "" };
    span text = { code, n_bytes }, line;
    size_t n_name = strlen(name);
    for (size_t at = 0; n_name > 0 && next_line(text, &at, &line);) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            if (!starts_with(line, words[i])) continue;
            span rest = { line.p + strlen(words[i]), line.n - strlen(words[i]) };
            if (i < 3) {
                size_t lead = spaces(rest);
                rest = (span){ rest.p + lead, rest.n - lead };
            }
            if (rest.n < n_name || memcmp(rest.p, name, n_name) != 0) continue;
            span behind = { rest.p + n_name, rest.n - n_name };
            size_t lead = spaces(behind);
            behind = (span){ behind.p + lead, behind.n - lead };
            if (i < 3 && behind.n > 0 && strchr("(:[", behind.p[0])) return true;
            if (i == 3 && behind.n > 1 && behind.p[0] == '=' && behind.p[1] != '=') return true;
        }
    }
    return false;
}

static bool ends_with_colon(span line)
{
    while (line.n > 0 && (line.p[line.n - 1] == '\r' || line.p[line.n - 1] == ' ')) line.n--;
    return line.n > 0 && line.p[line.n - 1] == ':';
}

/* Behind the header of the first function: the lines that are indented, up to the next one that is not. */
static bool find_body(span code, span *body)
{
    span line;
    size_t at = 0, from = 0, end = 0;
    bool inside = false;
    while (next_line(code, &at, &line)) {
        size_t behind = at < code.n ? at : code.n;
        if (!inside) {
            if (!starts_with(line, "def ") && !starts_with(line, "async def ")) continue;
            inside = true;
            while (!ends_with_colon(line) && next_line(code, &at, &line)) {}     /* a header of several lines */
            from = end = at < code.n ? at : code.n;
            continue;
        }
        if (!is_blank(line) && !is_indented(line)) break;
        end = behind;
    }
    *body = (span){ code.p + from, end - from };
    span rest = *body;
    for (size_t k = 0; next_line(rest, &k, &line);)
        if (!is_blank(line)) return inside;
    return false;
}

static bool is_all_indented(span code)
{
    span line;
    bool has_code = false;
    for (size_t at = 0; next_line(code, &at, &line);) {
        if (is_blank(line)) continue;
        if (!is_indented(line)) return false;
        has_code = true;
    }
    return has_code;
}

fl_status fl_code_from_chat(const char *text, size_t n_bytes, const char *entry_point, bool is_program, char **out, size_t *n_out, fl_err *err)
{
    span block = find_block((span){ text, n_bytes }), body = { PASS, sizeof PASS - 1 };
    const char *before = "";
    if (is_program || fl_code_defines(block.p, block.n, entry_point)) {
        before = FL_SCRIPT_MARKER "\n";
        body = block;
    } else if (!find_body(block, &body)) {
        body = is_all_indented(block) ? block : (span){ PASS, sizeof PASS - 1 };
    }
    size_t n_before = strlen(before);
    char *made = malloc(n_before + body.n + 1);
    if (!made) return fl_fail(err, FL_FULL, "no memory for a completion of %zu bytes", body.n);
    memcpy(made, before, n_before);
    if (body.n) memcpy(made + n_before, body.p, body.n);
    made[n_before + body.n] = '\0';
    *out = made;
    *n_out = n_before + body.n;
    return FL_OK;
}

void fl_code_of(const char *completion, size_t n_bytes, const char **code, size_t *n_code, bool *is_script)
{
    size_t n = strlen(FL_SCRIPT_MARKER), at = n;
    *code = completion;
    *n_code = n_bytes;
    *is_script = false;
    if (n_bytes < n || memcmp(completion, FL_SCRIPT_MARKER, n) != 0) return;
    if (at < n_bytes && completion[at] == '\r') at++;
    if (at < n_bytes && completion[at] != '\n') return;
    if (at < n_bytes) at++;
    *code = completion + at;
    *n_code = n_bytes - at;
    *is_script = true;
}
