/* POST /v1/completions. */
#include <stdlib.h>

#include "api/fim.h"
#include "api/gen.h"
#include "engine/base/mem.h"

static const char *const known[] = {"prompt", "best_of", "echo", "suffix", "add_special_tokens",
                                    NULL};

static size_t n_chars(struct view v)
{
    size_t n = 0;
    for (size_t i = 0; i < v.len; i++)
        n += ((unsigned char)v.p[i] & 0xC0) != 0x80;
    return n;
}

/* A token's text as a key: bytes that are no UTF-8 are spelled out, so that no two such tokens share one. */
static void put_token_key(struct buf *b, struct view v)
{
    if (utf8_valid(v.p, v.len)) {
        buf_json(b, v.p, v.len);
        return;
    }
    GEN_PUT(b, "\"bytes:");
    for (size_t i = 0; i < v.len; i++)
        buf_fmt(b, "\\\\x%02x", (unsigned char)v.p[i]);
    buf_char(b, '"');
}

/* OpenAI's completion log-probabilities of marks [from, to): parallel lists. */
static void put_logprobs(struct buf *b, const struct gen *g, struct gen_choice *ch, size_t from,
                         size_t to)
{
    if (g->n_top < 0) {
        buf_str(b, "null");
        return;
    }
    buf_str(b, "{\"tokens\":[");
    for (size_t k = from; k < to; k++) {
        struct view v = gen_mark_text(ch, &ch->mark[k]);
        if (k > from)
            buf_char(b, ',');
        buf_json(b, v.p, v.len);
    }
    buf_str(b, "],\"token_logprobs\":[");
    for (size_t k = from; k < to; k++) {
        if (k > from)
            buf_char(b, ',');
        if (ch->mark[k].no_logprob)
            buf_str(b, "null");
        else
            gen_logprob(b, ch->mark[k].tok.logprob);
    }
    buf_str(b, "],\"top_logprobs\":[");
    for (size_t k = from; k < to; k++) {
        const struct sample_out *t = &ch->mark[k].tok;
        buf_str(b, k > from ? "," : "");
        if (ch->mark[k].no_logprob || g->n_top == 0) {
            buf_str(b, "null");
            continue;
        }
        buf_char(b, '{');
        for (int j = 0; j < t->n_top && j < g->n_top; j++) {
            struct view v = tok_bytes(g->m->text->tok, t->top_id[j], true);
            buf_str(b, j ? "," : "");
            put_token_key(b, v);
            buf_char(b, ':');
            gen_logprob(b, t->top_logprob[j]);
        }
        buf_char(b, '}');
    }
    buf_str(b, "],\"text_offset\":[");
    for (size_t k = from; k < to; k++) {
        buf_fmt(b, "%s%zu", k > from ? "," : "", ch->chars_sent);
        ch->chars_sent += n_chars(gen_mark_text(ch, &ch->mark[k]));
    }
    buf_str(b, "]}");
}

static void completion_delta(struct api_call *c, struct gen *g, int i, struct view text,
                             size_t mark_to)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    gen_frame_begin(c, g);
    GEN_PUT(b, "{\"index\":");
    gen_int(b, i);
    GEN_PUT(b, ",\"text\":");
    buf_json(b, text.p ? text.p : "", text.len);
    GEN_PUT(b, ",\"logprobs\":");
    if (text.p) {
        put_logprobs(b, g, ch, ch->mark_sent, mark_to);
        GEN_PUT(b, ",\"finish_reason\":null}");
    } else {
        buf_fmt(b, "null,\"finish_reason\":\"%s\"}", gen_finish_name(ch->finish));
    }
    gen_frame_end(c, g);
}

static void completion_choice(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    buf_fmt(b, "{\"index\":%d,\"text\":", i);
    buf_json(b, buf_cstr(&ch->text), gen_text_end(ch));
    buf_str(b, ",\"logprobs\":");
    put_logprobs(b, g, ch, 0, gen_marks_end(ch));
    buf_fmt(b, ",\"finish_reason\":\"%s\"", gen_finish_name(ch->finish));
    gen_prompt_logprobs(b, g, i / g->n);
    buf_char(b, '}');
}

static const struct gen_writer writer = {
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .delta = completion_delta,
    .choice = completion_choice,
};

/* ---- prompt: a string, an array of strings, of token ids, or of arrays of token ids ---- */

static int bad_prompt(struct api_call *c, const char *text)
{
    return api__bad(c, "prompt", "invalid_value", "Invalid 'prompt': %s", text);
}

/* What a request says of its prompts. */
struct comp {
    bool special;
    struct view suffix; /* empty: none */
};

static int prompt_text(struct api_call *c, struct gen *g, int i, json_t *v, const struct comp *o)
{
    struct gen_prompt *p = &g->prompt[i];
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (o->suffix.len) {
        struct fim f = {.prefix = {s, n}, .suffix = o->suffix, .special = o->special};
        return fim_encode(c, g, &f, &p->ids);
    }
    int rc = gen_prompt_encode(g, (struct view){s, n}, o->special, &p->ids);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    if (rc)
        return bad_prompt(c, "it could not be tokenised.");
    if (g->echo) {
        p->echo = mem_alloc(n + 1);
        if (!p->echo)
            return api__nomem(c);
        memcpy(p->echo, s, n + 1);
    }
    return 0;
}

static int fill_ids(struct api_call *c, struct gen *g, struct gen_prompt *p, const struct comp *o)
{
    struct tok_ids ids = {0};
    struct fim f = {.prefix_ids = &p->ids, .suffix = o->suffix};
    if (fim_encode(c, g, &f, &ids)) {
        tok_ids_free(&ids);
        return ERR_INVAL;
    }
    tok_ids_free(&p->ids);
    p->ids = ids;
    return 0;
}

static int prompt_ids(struct api_call *c, struct gen *g, int i, json_t *v, const struct comp *o)
{
    struct gen_prompt *p = &g->prompt[i];
    size_t k;
    json_t *x;
    json_array_foreach(v, k, x)
    {
        if (!json_is_integer(x))
            return bad_prompt(c, "an array of token ids holds something else.");
        int64_t id = json_integer_value(x);
        if (id < 0 || id >= g->m->n_vocab)
            return api__bad(c, "prompt", "invalid_value",
                            "Invalid 'prompt': token id %lld is not in the vocabulary (0 to %d).",
                            (long long)id, g->m->n_vocab - 1);
        if (tok_ids_add(&p->ids, (int32_t)id))
            return api__nomem(c);
    }
    if (p->ids.n == 0)
        return bad_prompt(c, "an array of token ids is empty.");
    if (o->suffix.len)
        return fill_ids(c, g, p, o);
    if (g->echo) {
        struct buf b = {0};
        if (tok_decode(g->m->text->tok, p->ids.id, p->ids.n, true, &b) || buf_reserve(&b, 1)) {
            buf_free(&b);
            return api__nomem(c);
        }
        b.p[b.len] = 0;
        p->echo = buf_take(&b, NULL);
    }
    return 0;
}

/* A text behind the answer: of models that know how to fill a hole. */
static int get_suffix(struct api_call *c, struct gen *g, json_t *o, struct comp *k)
{
    if (api__get_str(c, o, "suffix", &k->suffix))
        return ERR_INVAL;
    if (!k->suffix.len)
        return 0;
    if (fim_check(c, g, "suffix"))
        return ERR_INVAL;
    if (g->echo)
        return api__bad(c, "echo", "unsupported_value", "'echo' is not allowed with 'suffix'.");
    fim_stops(g);
    return 0;
}

static int get_prompt(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "prompt");
    struct comp k = {.special = true};
    if (api__get_bool(c, o, "add_special_tokens", &k.special) || get_suffix(c, g, o, &k))
        return ERR_INVAL;
    if (!v || json_is_null(v))
        return api__bad(c, "prompt", "missing_required_parameter",
                        "Missing required parameter: 'prompt'.");
    bool list = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
    if (!json_is_string(v) && !json_is_array(v))
        return api__bad(c, "prompt", "invalid_type",
                        "Invalid type for 'prompt': expected a string or an array, but got %s.",
                        api__json_type(v));
    if (json_is_array(v) && json_array_size(v) == 0)
        return bad_prompt(c, "the array is empty.");
    size_t n = list ? json_array_size(v) : 1;
    if (n > (size_t)c->api->o.max_prompts || n * (size_t)g->n > 256)
        return api__bad(c, "prompt", "array_above_max_length",
                        "Invalid 'prompt': at most %d prompts, and 256 choices in all.",
                        c->api->o.max_prompts);
    if (gen_prompts_alloc(g, (int)n))
        return api__nomem(c);
    for (size_t i = 0; i < n; i++) {
        json_t *x = list ? json_array_get(v, i) : v;
        int rc;
        if (json_is_string(x))
            rc = prompt_text(c, g, (int)i, x, &k);
        else if (json_is_array(x))
            rc = prompt_ids(c, g, (int)i, x, &k);
        else
            rc = bad_prompt(c, "expected strings or arrays of token ids.");
        if (rc)
            return rc;
        if (i && json_typeof(x) != json_typeof(json_array_get(v, 0)))
            return bad_prompt(c, "strings and token ids are mixed.");
    }
    return 0;
}

static int completion_limits(struct api_call *c, struct gen *g, json_t *o)
{
    int64_t max = 16, lp = -1, best = -1;
    if (api__get_bool(c, o, "echo", &g->echo) ||
        api__get_int(c, o, "max_tokens", (int64_t[2]){0, INT32_MAX}, &max) ||
        api__get_int(c, o, "logprobs", (int64_t[2]){0, INT32_MAX}, &lp) ||
        api__get_int(c, o, "best_of", (int64_t[2]){1, 20}, &best))
        return ERR_INVAL;
    if (lp > 5)
        return api__bad(c, "logprobs", NULL, "Invalid 'logprobs': 5 at most, but got %lld.",
                        (long long)lp);
    g->max_tokens = max;
    g->max_param = "max_tokens";
    if (max == 0 && !g->echo)
        return api__bad(c, "max_tokens", "integer_below_min_value",
                        "Invalid 'max_tokens': 0 makes sense only with 'echo'.");
    if (best >= 0 && best < g->n)
        return api__bad(c, "best_of", NULL, "Invalid 'best_of': it must be at least 'n'.");
    if (best > 1 && g->stream)
        return api__bad(c, "best_of", NULL, "'best_of' is not allowed with 'stream'.");
    if (best > g->n)
        return api__bad(c, "best_of", "unsupported_value",
                        "'best_of' above 'n' is not supported by this server.");
    g->n_top = (int)lp;
    g->echo_marks = g->echo && lp >= 0;
    if (g->echo_marks && lp > g->prompt_logprobs)
        g->prompt_logprobs = (int)lp;
    return 0;
}

static int completion_parse(struct api_call *c, struct gen *g, json_t *o)
{
    g->prompt_param = "prompt";
    g->continues = true;
    return completion_limits(c, g, o) ? ERR_INVAL : get_prompt(c, g, o);
}

int api_completions(struct api_call *c)
{
    return gen_run(c, &writer, known, completion_parse);
}
