/* POST /v1/chat/completions. */
#include "api/gen.h"

static const char *const known[] = {"model",
                                    "messages",
                                    "stream",
                                    "stream_options",
                                    "n",
                                    "seed",
                                    "temperature",
                                    "top_p",
                                    "top_k",
                                    "min_p",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "repetition_penalty",
                                    "repeat_penalty",
                                    "stop",
                                    "stop_token_ids",
                                    "logit_bias",
                                    "logprobs",
                                    "top_logprobs",
                                    "max_tokens",
                                    "max_completion_tokens",
                                    "min_tokens",
                                    "ignore_eos",
                                    "allowed_token_ids",
                                    "include_stop_str_in_output",
                                    "skip_special_tokens",
                                    "continue_final_message",
                                    "add_generation_prompt",
                                    "chat_template_kwargs",
                                    "cache_salt",
                                    "priority",
                                    "response_format",
                                    "tools",
                                    "tool_choice",
                                    "parallel_tool_calls",
                                    "reasoning_effort",
                                    "user",
                                    "metadata",
                                    "store",
                                    "service_tier",
                                    "safety_identifier",
                                    "prompt_cache_key",
                                    "prompt_cache_retention",
                                    "modalities",
                                    "verbosity",
                                    NULL};

static void chat_open(struct api_call *c, struct gen *g, int i)
{
    gen_frame_begin(c, g);
    buf_fmt(&c->out,
            ",\"choices\":[{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
            "\"logprobs\":null,"
            "\"finish_reason\":null}]",
            i);
    gen_frame_end(c, g);
}

static void one_logprob(struct buf *b, const struct gen *g, int32_t id, float lp, struct view text)
{
    struct view raw = tok_bytes(g->m->text->tok, id, true);
    if (!text.p)
        text = raw;
    buf_str(b, "{\"token\":");
    buf_json(b, text.p, text.len);
    buf_str(b, ",\"logprob\":");
    gen_logprob(b, lp);
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < raw.len; i++)
        buf_fmt(b, "%s%u", i ? "," : "", (unsigned char)raw.p[i]);
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
        one_logprob(b, g, t->token, t->logprob, (struct view){0});
        buf_str(b, ",\"top_logprobs\":[");
        for (int j = 0; j < t->n_top && j < g->n_top; j++) {
            if (j)
                buf_char(b, ',');
            one_logprob(b, g, t->top_id[j], t->top_logprob[j], (struct view){0});
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
    buf_fmt(b, ",\"choices\":[{\"index\":%d,\"delta\":{", i);
    if (text.p) {
        buf_str(b, "\"content\":");
        buf_json(b, text.p, text.len);
    }
    buf_str(b, "},\"logprobs\":");
    if (text.p)
        chat_logprobs(b, g, ch, ch->mark_sent, mark_to);
    else
        buf_str(b, "null");
    if (text.p)
        buf_str(b, ",\"finish_reason\":null}]");
    else
        buf_fmt(b, ",\"finish_reason\":\"%s\"}]", gen_finish_name(ch->finish));
    gen_frame_end(c, g);
}

static void chat_choice(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    struct buf *b = &c->out;
    size_t end = ch->end < ch->text.len ? ch->end : ch->text.len, marks = 0;
    while (marks < ch->n_mark &&
           ch->mark[marks].start < end + (ch->mark[marks].start == ch->mark[marks].end))
        marks++;
    buf_fmt(b, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i);
    buf_json(b, buf_cstr(&ch->text), end);
    buf_str(b, ",\"refusal\":null},\"logprobs\":");
    chat_logprobs(b, g, ch, 0, marks);
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

int api_chat(struct api_call *c)
{
    json_t *o = api__body(c);
    if (!o)
        return ERR_INVAL;
    int rc = ERR_INVAL;
    struct api_model *m = api__get_model(c, o);
    struct gen *g = m ? gen_new(c, m, &writer) : NULL;
    if (g) {
        g->prompt_param = "messages";
        rc = api__check_fields(c, o, known);
        if (!rc)
            rc = gen_params(c, g, o);
        if (!rc)
            rc = chat_limits(c, g, o);
        if (!rc)
            rc = chat_tools(c, o);
        if (!rc && gen_prompts_alloc(g, 1))
            rc = api__nomem(c);
        if (!rc)
            rc = chat_prompt(c, g, o);
        if (!rc)
            rc = gen_submit(c, g);
    }
    json_decref(o);
    return rc;
}
