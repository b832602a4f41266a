/* POST /v1/chat/completions. */
#include "api/gen.h"
#include "api/stream_impl.h"
#include "api/structured.h"

static const char *const known[] = {"messages",
                                    "top_logprobs",
                                    "max_completion_tokens",
                                    "continue_final_message",
                                    "tools",
                                    "add_generation_prompt",
                                    "chat_template_kwargs",
                                    "tool_choice",
                                    "functions",
                                    "function_call",
                                    "parallel_tool_calls",
                                    "reasoning_effort",
                                    "metadata",
                                    "store",
                                    "service_tier",
                                    "safety_identifier",
                                    "modalities",
                                    "prompt_cache_key",
                                    "prompt_cache_retention",
                                    "prompt_cache_options",
                                    "verbosity",
                                    "moderation",
                                    "web_search_options",
                                    "audio",
                                    "prediction",
                                    "documents",
                                    "chat_template",
                                    "include_reasoning",
                                    "thinking_token_budget",
                                    "max_reasoning_tokens",
                                    "thinking_budget_tokens",
                                    NULL};

static const char *finish_name(const struct gen_choice *ch)
{
    if (ch->finish == FINISH_STOP && ch->fold.n_call)
        return "tool_calls";
    return gen_finish_name(ch->finish);
}

static void chat_open(struct api_call *c, struct gen *g, int i)
{
    gen_frame_begin(c, g);
    buf_fmt(&c->out,
            "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
            "\"logprobs\":null,\"finish_reason\":null}",
            i);
    gen_frame_end(c, g);
}

/* {"content":[...],"refusal":null} of marks [from, to), or null. */
static void chat_logprobs(struct buf *b, const struct gen *g, const struct gen_choice *ch,
                          size_t from, size_t to)
{
    if (g->n_top < 0) {
        buf_str(b, "null");
        return;
    }
    GEN_PUT(b, "{\"content\":");
    gen_logprobs(b, g, ch, from, to, true);
    GEN_PUT(b, ",\"refusal\":null}");
}

static void chat_delta(struct api_call *c, struct gen *g, int i, struct view text, size_t mark_to)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    gen_frame_begin(c, g);
    GEN_PUT(b, "{\"index\":");
    gen_int(b, i);
    if (text.p) {
        GEN_PUT(b, ",\"delta\":{\"content\":");
        buf_json(b, text.p, text.len);
        GEN_PUT(b, "},\"logprobs\":");
        chat_logprobs(b, g, ch, ch->mark_sent, mark_to);
        GEN_PUT(b, ",\"finish_reason\":null}");
    } else {
        buf_fmt(b, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}", finish_name(ch));
    }
    gen_frame_end(c, g);
}

static void put_text(struct buf *b, const char *key, struct view text)
{
    buf_fmt(b, "\"%s\":", key);
    buf_json(b, text.p, text.len);
}

static void put_reasoning(struct buf *b, const struct api_call *c, struct view text)
{
    const char *name = c->api->o.reasoning_field;
    bool both = name && strcmp(name, "both") == 0;
    put_text(b, name && !both ? name : "reasoning_content", text);
    if (both) {
        buf_char(b, ',');
        put_text(b, "reasoning", text);
    }
}

/* Reasoning and calls as they come. */
static void chat_event(struct api_call *c, struct gen *g, int i, const struct stream_event *ev)
{
    struct buf *b = &c->out;
    if (ev->kind == STREAM_CALL_END || (ev->kind == STREAM_REASONING && g->hide_reasoning))
        return;
    gen_frame_begin(c, g);
    buf_fmt(b, "{\"index\":%d,\"delta\":{", i);
    if (ev->kind == STREAM_REASONING) {
        put_reasoning(b, c, ev->text);
    } else if (ev->kind == STREAM_CALL_BEGIN) {
        buf_fmt(b, "\"tool_calls\":[{\"index\":%d,\"id\":", ev->call);
        buf_json(b, ev->id, strlen(ev->id));
        GEN_PUT(b, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json(b, ev->name, strlen(ev->name));
        GEN_PUT(b, ",\"arguments\":\"\"}}]");
    } else {
        buf_fmt(b, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", ev->call);
        buf_json(b, ev->text.p, ev->text.len);
        GEN_PUT(b, "}}]");
    }
    GEN_PUT(b, "},\"logprobs\":null,\"finish_reason\":null}");
    gen_frame_end(c, g);
}

static void put_calls(struct buf *b, const struct stream_fold *f)
{
    GEN_PUT(b, ",\"tool_calls\":[");
    for (int k = 0; k < f->n_call; k++) {
        const struct stream_call *t = &f->call[k];
        if (k)
            buf_char(b, ',');
        GEN_PUT(b, "{\"id\":");
        buf_json(b, t->id, strlen(t->id));
        GEN_PUT(b, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json(b, t->name, strlen(t->name));
        GEN_PUT(b, ",\"arguments\":");
        buf_json(b, buf_cstr(&t->args), t->args.len);
        GEN_PUT(b, "}}");
    }
    buf_char(b, ']');
}

static void chat_choice(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    buf_fmt(b, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i);
    if (ch->fold.n_call && !gen_text_end(ch))
        buf_str(b, "null");
    else
        buf_json(b, buf_cstr(&ch->text), gen_text_end(ch));
    buf_str(b, ",\"refusal\":null");
    if (ch->fold.reasoning.len && !g->hide_reasoning) {
        buf_char(b, ',');
        put_reasoning(b, c, (struct view){ch->fold.reasoning.p, ch->fold.reasoning.len});
    }
    if (ch->fold.n_call)
        put_calls(b, &ch->fold);
    buf_str(b, "},\"logprobs\":");
    chat_logprobs(b, g, ch, 0, gen_marks_end(ch));
    buf_fmt(b, ",\"finish_reason\":\"%s\"}", finish_name(ch));
}

static const struct gen_writer writer = {
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .open = chat_open,
    .delta = chat_delta,
    .choice = chat_choice,
    .event = chat_event,
};

static int chat_limits(struct api_call *c, struct gen *g, json_t *o)
{
    int64_t old = -1, now = -1, top = -1;
    int64_t range[2] = {1, INT32_MAX}, top_range[2] = {0, SAMPLE_TOP_MAX};
    bool logprobs = false;
    if (api__get_int(c, o, "max_tokens", range, &old) ||
        api__get_int(c, o, "max_completion_tokens", range, &now) ||
        api__get_bool(c, o, "logprobs", &logprobs) ||
        api__get_int(c, o, "top_logprobs", top_range, &top))
        return ERR_INVAL;
    if (old > 0 && now > 0 && old != now)
        return api__bad(
            c, "max_tokens", NULL,
            "'max_tokens' and 'max_completion_tokens' are both set, to different values.");
    g->max_tokens = now > 0 ? now : old;
    g->max_param = now > 0 ? "max_completion_tokens" : "max_tokens";
    if (top >= 0 && !logprobs)
        return api__bad(c, "top_logprobs", NULL,
                        "'top_logprobs' is only allowed when 'logprobs' is true.");
    if (logprobs)
        g->n_top = top > 0 ? (int)top : 0;
    return 0;
}

/* Only text comes out of this server. */
static int chat_modalities(struct api_call *c, json_t *o)
{
    json_t *v = json_object_get(o, "modalities");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return api__bad(c, "modalities", "invalid_type",
                        "Invalid type for 'modalities': expected an array, but got %s.",
                        api__json_type(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));
        if (!s || strcmp(s, "text") != 0)
            return api__bad(c, "modalities", "unsupported_value",
                            "'modalities' other than [\"text\"] are not supported by this server.");
    }
    return 0;
}

int chat_parse(struct api_call *c, struct gen *g, json_t *o)
{
    if (!g->prompt_param)
        g->prompt_param = "messages";
    if (chat_limits(c, g, o) || chat_tools(c, g, o) || chat_modalities(c, o) ||
        chat_reasoning(c, g, o) || chat_prediction(c, g, o))
        return ERR_INVAL;
    if (gen_prompts_alloc(g, 1))
        return api__nomem(c);
    if (chat_prompt(c, g, o) || chat_think_budget(c, g))
        return ERR_INVAL;
    bool whole = g->parse.family && g->parse.family->whole;
    if (g->samp.grammar &&
        (g->parse.think_close || whole)) { /* the answer's format begins after its reasoning */
        grammar_unref(g->samp.grammar);
        g->samp.grammar = NULL;
        g->think_first = true;
        if (structured_params(c, g, o))
            return ERR_INVAL;
    }
    return tools_grammar(c, g);
}

int api_chat(struct api_call *c)
{
    return gen_run(c, &writer, known, chat_parse);
}
