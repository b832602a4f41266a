/* Grammars of answers with calls: forced ones (tool_choice), and with `strict` tools free text in which every call keeps
 * to its schema. What a family's step reads is what is allowed here. Pool threads. */
#include <stdlib.h>
#include <string.h>

#include "api/stream_impl.h"
#include "api/structured.h"

struct plan {
    struct gr_builder *b;
    const struct gen *g;
    const struct tool_family *f;
    struct schema_err *e;
    char param[64]; /* the schema at hand */
};

#define SEQ(b, ...)                                                                                \
    gr_seq(b, (const gr_expr[]){__VA_ARGS__},                                                      \
           sizeof((const gr_expr[]){__VA_ARGS__}) / sizeof(gr_expr))

/* ---- pieces ---- */

/* A mark as the model writes it. */
static gr_expr mark(struct plan *p, const char *text)
{
    return gram_mark(p->b, p->g->m, text);
}

static bool begins_with_control(const struct plan *p, const char *text)
{
    return gram_mark_is_control(p->g->m, text);
}

/* Text without the mark in it. Control tokens are in no text, so that one needs no look-out. */
static gr_expr text_without(struct plan *p, const char *text)
{
    struct view v = view_str(text);
    return gr_text_until(p->b, &v, text && !begins_with_control(p, text), false);
}

static gr_expr text_to(struct plan *p, const char *text)
{
    struct view v = view_str(text);
    if (begins_with_control(p, text))
        return gr_seq2(p->b, text_without(p, text), mark(p, text));
    return gr_text_until(p->b, &v, 1, true);
}

static gr_expr space(struct plan *p)
{
    return gr_opt(p->b, gr_alt2(p->b, gr_str(p->b, "\n"), gr_str(p->b, "\n\n")));
}

static json_t *function_of(const struct plan *p, size_t i)
{
    return json_object_get(json_array_get(p->g->tools, i), "function");
}

static const char *name_of(const struct plan *p, size_t i)
{
    return json_string_value(json_object_get(function_of(p, i), "name"));
}

static bool wanted(const struct plan *p, size_t i)
{
    return !p->g->only_call || strcmp(p->g->only_call, name_of(p, i)) == 0;
}

/* A schema as JSON text. One that cannot be kept is an error of a strict tool; else any value (object) will do. */
static gr_expr schema_of(struct plan *p, size_t i, const json_t *schema, bool object)
{
    struct schema_opts o = {.compact = false};
    bool strict = json_is_true(json_object_get(function_of(p, i), "strict"));
    struct schema_err e = {0};
    gr_expr x = GR_FAIL;
    if (!strict && !p->g->must_call) /* free text: the others are left alone */
        return object ? schema_any_object(p->b, &o) : schema_any(p->b, &o);
    snprintf(p->param, sizeof p->param, "tools[%zu].function.parameters", i);
    struct err before;
    if (gr_failed(p->b, &before))
        return GR_FAIL;
    if (schema)
        x = schema_add(p->b, schema, &o, &e);
    if (x == GR_FAIL && schema && (strict || e.err.code == ERR_NOMEM)) {
        *p->e = e;
        return x;
    }
    if (x == GR_FAIL) {
        gr_forgive(p->b);
        x = object ? schema_any_object(p->b, &o) : schema_any(p->b, &o);
    }
    return x;
}

static gr_expr args_of(struct plan *p, size_t i)
{
    return schema_of(p, i, json_object_get(function_of(p, i), "parameters"), true);
}

/* One of the tools, each by `one`. */
static gr_expr any_tool(struct plan *p, gr_expr (*one)(struct plan *p, size_t i))
{
    gr_expr out = gr_never(p->b);
    for (size_t i = 0; i < json_array_size(p->g->tools); i++)
        if (wanted(p, i))
            out = gr_alt2(p->b, out, one(p, i));
    return out;
}

/* call, or call (separator call)* */
static gr_expr several(struct plan *p, gr_expr call, const char *separator)
{
    if (p->g->parse.max_calls == 1)
        return call;
    return gr_seq2(p->b, call,
                   gr_repeat(p->b, gr_seq2(p->b, gr_str(p->b, separator), call), 0, 127));
}

/* ---- JSON ---- */

static gr_expr json_call(struct plan *p, size_t i)
{
    const struct json_form *f = p->f->form;
    char head[384];
    if (f->keyed)
        snprintf(head, sizeof head, "{\"%s\": ", name_of(p, i));
    else
        snprintf(head, sizeof head, "{\"%s\": \"%s\", \"%s\": ", f->name, name_of(p, i), f->args);
    return SEQ(p->b, gr_str(p->b, head), args_of(p, i), gr_str(p->b, "}"));
}

static gr_expr named_calls(struct plan *p, const struct named_form *f);

static gr_expr json_calls(struct plan *p)
{
    const struct json_form *f = p->f->form;
    struct gr_builder *b = p->b;
    gr_expr call = any_tool(p, json_call), open, close;
    if (!p->f->open || (p->f->bare && strcmp(p->f->name, "llama") == 0))
        return p->f->bare[0] == '[' ? SEQ(b, gr_str(b, "["), several(p, call, ", "), gr_str(b, "]"))
                                    : several(p, call, "; ");
    open = mark(p, p->f->open[0]);
    close = mark(p, f->close[0]);
    gr_expr gap = gr_opt(b, gr_alt2(b, gr_str(b, " "), gr_str(b, "\n")));
    if (!f->list) {
        call = SEQ(b, open, gr_opt(b, gr_str(b, "\n")), call, gr_opt(b, gr_str(b, "\n")), close);
        return several(p, call, f->close[0] ? "\n" : "");
    }
    call = SEQ(b, open, gap, gr_str(b, "["), several(p, call, ", "), gr_str(b, "]"), close);
    return f->other_form ? gr_alt2(b, call, named_calls(p, f->other_form)) : call;
}

/* ---- names outside ---- */

static gr_expr named_call_of(struct plan *p, size_t i, const struct named_form *f)
{
    struct gr_builder *b = p->b;
    char head[384];
    snprintf(head, sizeof head, f->id_head ? "functions.%s:0" : "%s", name_of(p, i));
    gr_expr name = gr_str(b, head), args = args_of(p, i), end = mark(p, f->call_close);
    if (f->mid && !f->id_last)
        name = SEQ(b, gr_str(b, "call_0"), mark(p, f->mid), name);
    gr_expr call = SEQ(b, name, mark(p, f->separator), args, end);
    if (f->fenced)
        call = gr_alt2(b, call,
                       SEQ(b, gr_str(b, "function"), mark(p, f->separator), name,
                           gr_str(b, "\n```json\n"), args, gr_str(b, "\n```"), end));
    return call;
}

static gr_expr named_calls(struct plan *p, const struct named_form *f)
{
    struct gr_builder *b = p->b;
    gr_expr call = gr_never(b);
    for (size_t i = 0; i < json_array_size(p->g->tools); i++)
        if (wanted(p, i))
            call = gr_alt2(b, call, named_call_of(p, i, f));
    if (!f->call_open)
        return several(p, gr_seq2(b, mark(p, p->f->open[0]), call), "");
    call = gr_seq2(b, mark(p, f->call_open), call);
    return SEQ(b, mark(p, p->f->open[0]), several(p, call, ""), mark(p, f->close));
}

/* ---- arguments one by one ---- */

/* How a family writes one argument: before the key, after it, around a text, after the value, between arguments. */
struct arg_marks {
    const char *open, *key_end, *quote, *close, *separator;
    const char *other_end; /* after the key of what is no text; NULL: the same */
    const char *key_close; /* after `close`: the key, and this; NULL */
    bool json_text;        /* texts are JSON strings */
};

static gr_expr text_value(struct plan *p, const json_t *schema, const struct arg_marks *m)
{
    struct gr_builder *b = p->b;
    json_t *list = json_object_get(schema, "enum"), *v;
    size_t i;
    const char *end = m->quote ? m->quote : m->close;
    gr_expr text = text_without(p, end);
    if (json_array_size(list)) {
        text = gr_never(b);
        json_array_foreach(list, i, v) if (json_is_string(v)) text =
            gr_alt2(b, text, gr_lit(b, json_string_value(v), json_string_length(v)));
    }
    return m->quote ? SEQ(b, mark(p, m->quote), text, mark(p, m->quote)) : text;
}

static gr_expr one_arg(struct plan *p, size_t i, const char *key, const struct arg_marks *m)
{
    struct gr_builder *b = p->b;
    const json_t *props =
        json_object_get(json_object_get(function_of(p, i), "parameters"), "properties");
    const json_t *schema = json_object_get(props, key);
    bool text = !m->json_text && st_schema_types(schema) == TYPE_STRING;
    gr_expr value = text ? text_value(p, schema, m) : schema_of(p, i, schema, false);
    gr_expr end = mark(p, m->close);
    if (m->key_close)
        end = SEQ(b, end, gr_str(b, key), gr_str(b, m->key_close));
    return SEQ(b, mark(p, m->open), gr_str(b, key),
               mark(p, text || !m->other_end ? m->key_end : m->other_end), value, end);
}

static bool is_required(const json_t *params, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(params, "required"), i, v)
    {
        const char *s = json_string_value(v);
        if (s && strcmp(s, key) == 0)
            return true;
    }
    return false;
}

/* The properties in the schema's order, those not required at will. From the last one back: what follows an argument, and
 * what follows when there was none yet. */
static gr_expr args_one_by_one(struct plan *p, size_t i, const struct arg_marks *m)
{
    struct gr_builder *b = p->b;
    const json_t *params = json_object_get(function_of(p, i), "parameters");
    json_t *props = json_object_get(params, "properties");
    const char *key, *keys[256];
    size_t n = 0;
    json_t *v;
    json_object_foreach(props, key, v) if (n < 256) keys[n++] = key;
    gr_expr after = gr_empty(b), first = gr_empty(b);
    while (n-- > 0) {
        gr_expr arg = one_arg(p, i, keys[n], m);
        gr_expr here = gr_seq2(b, arg, after);
        gr_expr next = SEQ(b, gr_str(b, m->separator), arg, after);
        bool must = is_required(params, keys[n]);
        first = must ? here : gr_alt2(b, here, first);
        after = must ? next : gr_alt2(b, next, after);
    }
    return first;
}

static gr_expr xml_call(struct plan *p, size_t i)
{
    const struct xml_form *f = p->f->form;
    struct gr_builder *b = p->b;
    char key_end[96], other_end[96], close[96], separator[2] = "";
    const char *nl = f->newline ? "\n" : "";
    /* Kimi K3 names the type; where it does not, the schema says it. */
    const char *text = f->json_open ? "\" type=\"string\"" : "\" string=\"true\"";
    const char *other = f->json_open ? "\"" : "\" string=\"false\"";
    snprintf(key_end, sizeof key_end, "%s%s%s", f->attrs ? text : "", f->arg_name_end,
             f->arg_mid ? f->arg_mid : nl);
    snprintf(other_end, sizeof other_end, "%s%s", other, f->arg_name_end);
    snprintf(close, sizeof close, "%s%s", nl, f->arg_close);
    separator[0] = f->newline || (f->section && !f->tight) ? '\n' : 0;
    struct arg_marks m = {.open = f->arg_open,
                          .key_end = key_end,
                          .other_end = f->attrs ? other_end : NULL,
                          .close = close,
                          .key_close = f->ns ? ">" : NULL,
                          .separator = separator};
    const char *name_end = f->name_end[1] ? "\n" : f->name_end[0];
    return SEQ(b, mark(p, f->call_open), gr_str(b, name_of(p, i)),
               gr_str(b, f->name_tail ? f->name_tail : ""), mark(p, name_end), gr_str(b, separator),
               args_one_by_one(p, i, &m), gr_str(b, separator), mark(p, f->call_close));
}

static gr_expr xml_calls(struct plan *p)
{
    const struct xml_form *f = p->f->form;
    struct gr_builder *b = p->b;
    gr_expr call = any_tool(p, xml_call);
    if (!f->section)
        return several(p, call, "\n");
    if (f->tight)
        return SEQ(b, mark(p, p->f->open[0]), several(p, call, ""), mark(p, f->close));
    call = SEQ(b, mark(p, p->f->open[0]), gr_str(b, "\n"), several(p, call, "\n"), gr_str(b, "\n"),
               mark(p, f->close));
    return call;
}

static gr_expr python_call(struct plan *p, size_t i)
{
    struct arg_marks m = {
        .open = "", .key_end = "=", .close = "", .separator = ", ", .json_text = true};
    struct gr_builder *b = p->b;
    return SEQ(b, gr_str(b, name_of(p, i)), gr_str(b, "("), args_one_by_one(p, i, &m),
               gr_str(b, ")"));
}

static gr_expr python_calls(struct plan *p)
{
    const struct other_form *f = p->f->form;
    struct gr_builder *b = p->b;
    return SEQ(b, mark(p, p->f->open ? p->f->open[0] : ""), gr_str(b, "["),
               several(p, any_tool(p, python_call), ", "), gr_str(b, "]"), mark(p, f->close));
}

static gr_expr gemma_call(struct plan *p, size_t i)
{
    const struct other_form *f = p->f->form;
    struct arg_marks m = {
        .open = "", .key_end = ":", .quote = f->quote, .close = "", .separator = ","};
    struct gr_builder *b = p->b;
    return SEQ(b, mark(p, p->f->open[0]), gr_str(b, "call:"), gr_str(b, name_of(p, i)),
               gr_str(b, "{"), args_one_by_one(p, i, &m), gr_str(b, "}"), mark(p, f->close));
}

static gr_expr recipient_call(struct plan *p, size_t i)
{
    return SEQ(p->b, gr_str(p->b, name_of(p, i)), gr_str(p->b, "\n"), args_of(p, i));
}

/* Thoughts, then one call; its end is a token that ends the answer. */
static gr_expr harmony_call(struct plan *p, size_t i)
{
    struct gr_builder *b = p->b;
    char to[384];
    snprintf(to, sizeof to, "commentary to=functions.%s ", name_of(p, i));
    return SEQ(b, mark(p, "<|channel|>"), gr_str(b, to), mark(p, "<|constrain|>"),
               gr_str(b, "json"), mark(p, "<|message|>"), args_of(p, i));
}

/* A message of thoughts ahead of what counts, or none. */
static gr_expr harmony_thoughts(struct plan *p)
{
    struct gr_builder *b = p->b;
    return gr_opt(b, SEQ(b, mark(p, "<|channel|>"), gr_str(b, "analysis"), mark(p, "<|message|>"),
                         text_to(p, "<|end|>"), mark(p, "<|start|>"), gr_str(b, "assistant")));
}

static gr_expr harmony_calls(struct plan *p)
{
    return gr_seq2(p->b, harmony_thoughts(p), any_tool(p, harmony_call));
}

/* ---- whole answers ---- */

static gr_expr calls(struct plan *p)
{
    if (p->f->step == tools_json_step)
        return json_calls(p);
    if (p->f->step == tools_named_step)
        return named_calls(p, p->f->form);
    if (p->f->step == tools_xml_step)
        return xml_calls(p);
    if (p->f->step == tools_python_step)
        return python_calls(p);
    if (p->f->step == tools_gemma_step)
        return several(p, any_tool(p, gemma_call), "");
    if (p->f->step == tools_recipient_step) /* the first one's mark stands in the prompt */
        return several(p, any_tool(p, recipient_call), ">>>");
    return harmony_calls(p);
}

gr_expr tools_think_prefix(struct gr_builder *b, const struct gen *g)
{
    const struct stream_opts *o = &g->parse;
    struct plan p = {.b = b, .g = g};
    if (!o->think_close)
        return gr_empty(b);
    gr_expr rest = gr_seq2(b, text_to(&p, o->think_close), space(&p));
    if (o->thinking)
        return rest;
    return o->think_open ? gr_opt(b, gr_seq2(b, mark(&p, o->think_open), rest)) : gr_empty(b);
}

gr_expr tools_answer_prefix(struct gr_builder *b, const struct gen *g)
{
    struct plan p = {.b = b, .g = g};
    if (!g->parse.family || !g->parse.family->whole)
        return tools_think_prefix(b, g);
    gr_expr json = SEQ(b, gr_str(b, " "), mark(&p, "<|constrain|>"), gr_str(b, "json"));
    return SEQ(b, harmony_thoughts(&p), mark(&p, "<|channel|>"), gr_str(b, "final"),
               gr_opt(b, json), mark(&p, "<|message|>"));
}

/* Text that is no call: without the opening mark, or not beginning as a bare call does. */
static gr_expr free_text(struct plan *p)
{
    struct gr_builder *b = p->b;
    gr_expr text = text_without(p, p->f->open ? p->f->open[0] : NULL);
    if (!p->f->bare)
        return text;
    const struct gr_range other[] = {{0x21, 0x5a}, {0x5c, 0x7a}, {0x7c, 0x10FFFF}};
    return gr_opt(b, gr_seq2(b, gr_chars(b, GR_UTF8, other, 3), text));
}

static gr_expr build(struct gr_builder *b, void *arg, struct schema_err *e)
{
    struct plan *p = arg;
    p->b = b;
    p->e = e;
    gr_expr call = calls(p), before = tools_think_prefix(b, p->g);
    if (p->g->must_call)
        return gr_seq2(b, before, call);
    gr_expr text = free_text(p);
    return gr_seq2(b, before,
                   p->f->bare ? gr_alt2(b, call, text) : gr_seq2(b, text, gr_opt(b, call)));
}

int tools_grammar(struct api_call *c, struct gen *g)
{
    struct plan p = {.g = g, .f = g->parse.family, .param = "tools"};
    if (!g->tools || !p.f || (!g->must_call && !g->strict))
        return 0;
    if (g->samp.grammar) {
        if (!g->must_call)
            return 0; /* the answer's own format */
        return api__bad(c, "tool_choice", "invalid_value",
                        "A tool call and the format of an answer cannot both be forced.");
    }
    if (!g->must_call && p.f->whole)
        return 0;
    struct buf key = {0};
    char *text = json_dumps(g->tools, JSON_COMPACT);
    buf_fmt(&key, "tools %s %d %d %d %s ", p.f->name, g->must_call, g->parse.max_calls,
            g->parse.thinking, g->only_call ? g->only_call : "");
    buf_str(&key, text);
    struct gram_job job = {.build = build, .arg = &p, .param = p.param};
    if (text && !key.failed)
        job.key = (struct view){key.p, key.len};
    free(text);
    int rc = gram_make(c, g->m, &job, &g->samp.grammar);
    buf_free(&key);
    return rc;
}
