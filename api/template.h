/* Chat templates: our own Jinja subset (jinja.palletsprojects.com template reference, as transformers
 * configures it: trim_blocks, lstrip_blocks, loopcontrols, `generation` blocks, tojson, raise_exception,
 * strftime_now; its sandbox, but lists and dicts may change). A template is data: no attributes beyond
 * data, no import, include, extends, no call of unknown names. A compiled template is read-only: any thread may render it. */
#ifndef API_TEMPLATE_H
#define API_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct api_template;

struct api_template_limits { /* 0 = default */
    int64_t max_steps;       /* evaluated nodes; 1,000,000 (ERR_LIMIT) */
    size_t max_output;       /* bytes; 16 MiB */
    int64_t max_loop;        /* items of one loop; 10,000 */
    int max_depth;           /* nesting of calls and data; 100 */
};

/* ERR_PARSE with line number and reason; ERR_UNSUPPORTED for Jinja outside the subset. */
int api_template_compile(struct api_template **out, const char *src, size_t n, struct err *e);
void api_template_free(struct api_template *t);

/* Render with the members of the JSON object `vars` as variables (messages, tools, bos_token,
 * add_generation_prompt, ...); key order of objects is kept. Variables not in vars are undefined.
 * `now`: what strftime_now sees (local broken-down time). Appends to *out. ERR_INVAL: the template called
 * raise_exception (its text in e->text) or an operation failed (line named); ERR_LIMIT; ERR_NOMEM. */
int api_template_render(const struct api_template *t, json_t *vars, const struct tm *now,
                        const struct api_template_limits *lim, struct buf *out, struct err *e);

#endif
