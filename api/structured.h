/* Private to api/: what a choice may write. Reads response_format and its relatives, compiles grammars, and keeps compiled
 * ones by what they were made of. Pool threads. */
#ifndef API_STRUCTURED_H
#define API_STRUCTURED_H

#include "api/gen.h"
#include "api/schema.h"

struct gram_cache;
struct gram_cache *gram_cache_open(size_t most); /* bytes; NULL: no memory */
void gram_cache_close(struct gram_cache *k);     /* NULL is fine */

/* What makes a grammar: fills *e's place when it is a schema's, and returns GR_FAIL with the reason in b. */
struct gram_job {
    gr_expr (*build)(struct gr_builder *b, void *arg, struct schema_err *e);
    void *arg;
    struct view key;   /* all that it depends on, so that it is made once; empty: not kept */
    const char *param; /* for messages: where in the request it stands */
};
/* The grammar of a job, for this model: from the cache, or compiled. *out is the caller's. On failure the call is
 * ended. */
int gram_make(struct api_call *c, struct api_model *m, const struct gram_job *job,
              struct grammar **out);

/* gram_mark.c: a text of the model's own format, its control tokens as tokens and the rest as text ("" and NULL: nothing);
 * and whether it begins with a control token, which free text cannot hold. */
gr_expr gram_mark(struct gr_builder *b, const struct api_model *m, const char *text);
bool gram_mark_is_control(const struct api_model *m, const char *text);
/* structural_tag.c: the language of a structural tag. *e: where it is wrong, if it is. */
gr_expr structural_tag_add(struct gr_builder *b, const struct api_model *m, const json_t *tag,
                           struct schema_err *e);

/* tools_grammar.c: what may stand before a chat's answer: its reasoning, and where that has begun, the rest of it. */
gr_expr tools_think_prefix(struct gr_builder *b, const struct gen *g);
/* The same ahead of an answer that is no call, with what opens it where a family has such a mark. */
gr_expr tools_answer_prefix(struct gr_builder *b, const struct gen *g);

/* Read the fields of a request into g->samp.grammar. Ends the call and returns ERR_INVAL on a bad one. */
int structured_params(struct api_call *c, struct gen *g, json_t *o);

#endif
