/* JSON schemas as grammars. Drafts 4 to 2020-12. A schema compiles to a language of valid instances only, or is refused
 * with the keyword named. Any thread. */
#ifndef API_SCHEMA_H
#define API_SCHEMA_H

#include <jansson.h>

#include "engine/text/grammar_build.h"

struct schema_opts {  /* zero = default */
    bool compact;     /* no white space between JSON tokens; else a little is allowed */
    int max_depth;    /* nesting of schemas; 128 */
    int max_branches; /* combinations of anyOf, oneOf, ... that are merged; 4096 */
};

/* Where and why a schema was refused. */
struct schema_err {
    struct err err;  /* code: ERR_UNSUPPORTED, ERR_INVAL, ERR_LIMIT, ERR_NOMEM */
    char where[160]; /* path within the schema: "properties.s.pattern"; "" is the root */
};

/* The language of `schema` (an object or a boolean) as an expression, so that it can stand between other texts:
 *     gr_seq(b, {gr_str(b, "<tool_call>{\"name\":\"f\",\"arguments\":"), args, gr_str(b, "}</tool_call>")}, 3)
 * GR_FAIL: *e says why (the builder too). `schema` must live until gr_compile. */
gr_expr schema_add(struct gr_builder *b, const json_t *schema, const struct schema_opts *o,
                   struct schema_err *e);
/* Any JSON object; any JSON value. */
gr_expr schema_any_object(struct gr_builder *b, const struct schema_opts *o);
gr_expr schema_any(struct gr_builder *b, const struct schema_opts *o);

#endif
