/* POST /v1/chat/completions. */
#include "api/gen.h"

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
                                    NULL};

static void chat_open(struct api_call *c, struct gen *g, int i)
{
    gen_frame_begin(c, g);
    buf_fmt(&c->out,
            "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
            "\"logprobs\":null,\"finish_reason\":null}",
            i);
    gen_frame_end(c, g);
}

static void one_logprob(struct buf *b, const struct gen *g, int32_t id, float lp)
{
    struct view raw = tok_bytes(g->m->text->tok, id, true);
    buf_str(b, "{\"token\":");
    buf_json(b, raw.p, raw.len);
    buf_str(b, ",\"logprob\":");
    gen_logprob(b, lp);
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < raw.len; i++) {
        if (i)
            buf_char(b, ',');
        gen_int(b, (unsigned char)raw.p[i]);
    }
    buf_char(b, ']');
}

/* {"content":[...],"refusal":null} of marks [from, to), or null. */
static void chat_logprobs(struct buf *b, const struct gen *g, const struct gen_choice *ch,
                          size_t from, size_t to)
{
    if (g->n_top < 0) {
        buf_str(b, "null");
        return;
    }
    buf_str(b, "{\"content\":[");
    for (size_t k = from; k < to; k++) {
        const struct sample_out *t = &ch->mark[k].tok;
        if (k > from)
            buf_char(b, ',');
        one_logprob(b, g, t->token, t->logprob);
        buf_str(b, ",\"top_logprobs\":[");
        for (int j = 0; j < t->n_top && j < g->n_top; j++) {
            if (j)
                buf_char(b, ',');
            one_logprob(b, g, t->top_id[j], t->top_logprob[j]);
            buf_char(b, '}');
        }
        buf_str(b, "]}");
    }
    buf_str(b, "],\"refusal\":null}");
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
        buf_fmt(b, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}",
                gen_finish_name(ch->finish));
    }
    gen_frame_end(c, g);
}

static void chat_choice(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    buf_fmt(b, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i);
    buf_json(b, buf_cstr(&ch->text), gen_text_end(ch));
    buf_str(b, ",\"refusal\":null},\"logprobs\":");
    chat_logprobs(b, g, ch, 0, gen_marks_end(ch));
    buf_fmt(b, ",\"finish_reason\":\"%s\"}", gen_finish_name(ch->finish));
}

static const struct gen_writer writer = {
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .open = chat_open,
    .delta = chat_delta,
    .choice = chat_choice,
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

/* Tools are read in a later version; asking for none of them is fine. */
static int chat_tools(struct api_call *c, json_t *o)
{
    json_t *tools = json_object_get(o, "tools"), *choice = json_object_get(o, "tool_choice");
    const char *old = json_string_value(json_object_get(o, "function_call"));
    if (json_is_object(json_object_get(o, "function_call")) ||
        (old && strcmp(old, "none") != 0 && strcmp(old, "auto") != 0))
        return api__bad(c, "function_call", "invalid_value",
                        "Invalid 'function_call': there are no functions to choose from.");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return api__bad(c, "tools", "invalid_type",
                        "Invalid type for 'tools': expected an array, but got %s.",
                        api__json_type(tools));
    if (json_array_size(tools) > 0)
        return api__bad(c, "tools", "unsupported_value",
                        "Tool calling is not supported by this server.");
    const char *word = json_string_value(choice);
    if (choice && !json_is_null(choice) &&
        !(word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0)))
        return api__bad(c, "tool_choice", "invalid_value",
                        "Invalid 'tool_choice': there are no tools to choose from.");
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
    if (chat_limits(c, g, o) || chat_tools(c, o) || chat_modalities(c, o))
        return ERR_INVAL;
    return gen_prompts_alloc(g, 1) ? api__nomem(c) : chat_prompt(c, g, o);
}

int api_chat(struct api_call *c)
{
    return gen_run(c, &writer, known, chat_parse);
}
