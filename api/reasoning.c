/* How much a chat's model may think: fields of the request, and the bound as tokens. */
#include <string.h>

#include "api/gen.h"
#include "api/stream_impl.h"
#include "engine/base/mem.h"

static const char *const budgets[] = {"thinking_token_budget", "max_reasoning_tokens",
                                      "thinking_budget_tokens"};

int chat_reasoning(struct api_call *c, struct gen *g, json_t *o)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    int64_t range[2] = {-1, INT32_MAX};
    struct view v = {0};
    bool show = true;
    g->think_budget = -1;
    if (api__get_str(c, o, "reasoning_effort", &v) ||
        api__get_bool(c, o, "include_reasoning", &show))
        return ERR_INVAL;
    g->hide_reasoning = !show;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (api__get_int(c, o, budgets[i], range, &g->think_budget))
            return ERR_INVAL;
    for (size_t i = 0; v.p && i < sizeof efforts / sizeof *efforts; i++)
        if (view_is(v, efforts[i]))
            g->effort = efforts[i];
    if (v.p && !g->effort)
        return api__bad(c, "reasoning_effort", "invalid_value",
                        "Invalid 'reasoning_effort': expected 'none', 'minimal', 'low', 'medium', "
                        "'high', 'xhigh' or 'max'.");
    return 0;
}

/* The tokens of a mark. 0, ERR_LIMIT (too many, or none), ERR_NOMEM. */
static int tokens_of(const struct gen *g, const char *text, int32_t *out, int *n)
{
    struct tok_ids ids = {0};
    int rc = tok_encode(g->m->text->tok, text, strlen(text), TOK_SPECIAL, &ids);
    if (!rc && (ids.n < 1 || ids.n > REQ_MARK_MAX))
        rc = ERR_LIMIT;
    for (size_t i = 0; !rc && i < ids.n; i++)
        out[i] = ids.id[i];
    *n = (int)ids.n;
    tok_ids_free(&ids);
    return rc;
}

int chat_think_budget(struct api_call *c, struct gen *g)
{
    const struct stream_opts *p = &g->parse;
    bool harmony = p->family && strcmp(p->family->name, "harmony") == 0;
    if (g->think_budget < 0 || (!p->think_close && !harmony))
        return 0; /* a model that does not reason keeps to any bound */
    struct req_think *t = mem_calloc(1, sizeof *t);
    if (!t)
        return api__nomem(c);
    g->think = t;
    t->budget = (int32_t)g->think_budget;
    t->inside = p->thinking;
    const char *open = harmony ? "<|channel|>analysis<|message|>" : p->think_open;
    const char *close = harmony ? "<|end|>" : p->think_close;
    const char *force =
        harmony ? "<|end|><|start|>assistant<|channel|>final<|message|>" : p->think_close;
    int rc = open ? tokens_of(g, open, t->open, &t->n_open) : 0;
    if (!rc)
        rc = tokens_of(g, close, t->close, &t->n_close);
    if (!rc)
        rc = tokens_of(g, force, t->force, &t->n_force);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    return rc ? api__bad(c, "thinking_token_budget", "unsupported_value",
                         "The reasoning of the model '%s' cannot be bounded.", g->m->name)
              : 0;
}
