/* The families: tables of marks and keys, and which of them a chat template speaks. */
#include <string.h>

#include "api/stream_impl.h"

#define MARKS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const struct json_form hermes_form = {
    .close = {"</tool_call>"}, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_hermes = {.name = "hermes",
                                                 .open = MARKS("<tool_call>"),
                                                 .control = MARKS("</tool_call>"),
                                                 .step = tools_json_step,
                                                 .form = &hermes_form};

static const struct json_form list_form = {
    .close = {"</tool_calls>"}, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_tool_calls = {.name = "tool_calls",
                                                     .open = MARKS("<tool_calls>"),
                                                     .control = MARKS("</tool_calls>"),
                                                     .step = tools_json_step,
                                                     .form = &list_form};

static const struct json_form nemotron_form = {
    .close = {"</TOOLCALL>"}, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_nemotron = {.name = "nemotron",
                                                   .open = MARKS("<TOOLCALL>"),
                                                   .control = MARKS("</TOOLCALL>"),
                                                   .step = tools_json_step,
                                                   .form = &nemotron_form};

static const struct json_form open_form = {
    .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_granite = {
    .name = "granite", .open = MARKS("<|tool_call|>"), .step = tools_json_step, .form = &open_form};
static const struct tool_family family_granite_fc = {.name = "granite_fc",
                                                     .open = MARKS("<function_call>"),
                                                     .step = tools_json_step,
                                                     .form = &open_form};
static const struct tool_family family_gigachat = {.name = "gigachat",
                                                   .open = MARKS("<|function_call|>"),
                                                   .step = tools_json_step,
                                                   .form = &open_form};
static const struct tool_family family_functools = {
    .name = "functools", .open = MARKS("functools"), .step = tools_json_step, .form = &open_form};
static const struct tool_family family_xlam = {
    .name = "xlam", .bare = "[{", .step = tools_json_step, .form = &open_form};

static const struct json_form mistral_form = {.name = "name", .args = "arguments", .other = NULL};
static const struct tool_family family_mistral = {.name = "mistral",
                                                  .open = MARKS("[TOOL_CALLS]"),
                                                  .control = MARKS("[CALL_ID]", "[ARGS]"),
                                                  .brief_id = true,
                                                  .step = tools_json_step,
                                                  .form = &mistral_form};

static const struct json_form command_form = {
    .close = {"<|END_ACTION|>"}, .name = "tool_name", .name2 = "name", .args = "parameters"};
static const struct tool_family family_command = {.name = "command",
                                                  .open = MARKS("<|START_ACTION|>"),
                                                  .control = MARKS("<|END_ACTION|>"),
                                                  .step = tools_json_step,
                                                  .form = &command_form};

static const struct json_form internlm_form = {
    .close = {"<|action_end|>"}, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_internlm = {
    .name = "internlm",
    .open = MARKS("<|action_start|><|plugin|>"),
    .control = MARKS("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    .step = tools_json_step,
    .form = &internlm_form};

static const struct json_form apertus_form = {.close = {"<|tools_suffix|>"}, .keyed = true};
static const struct tool_family family_apertus = {.name = "apertus",
                                                  .open = MARKS("<|tools_prefix|>"),
                                                  .control = MARKS("<|tools_suffix|>"),
                                                  .step = tools_json_step,
                                                  .form = &apertus_form};

static const struct json_form llama_form = {
    .name = "name", .args = "parameters", .args2 = "arguments", .other = NULL};
static const struct tool_family family_llama = {.name = "llama",
                                                .open = MARKS("<|python_tag|>"),
                                                .bare = "{",
                                                .step = tools_json_step,
                                                .form = &llama_form};

static const struct {
    const struct tool_family *family;
    const char *mark, *mark2;
} families[] = {
#define FAMILY(table, mark, mark2) {&family_##table, mark, mark2},
#include "api/tools.def"
#undef FAMILY
};

/* Marks of reasoning; the first of which the template has the closing one. */
static const struct {
    const char *open, *close;
} thoughts[] = {
    {"[THINK]", "[/THINK]"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<seed:think>", "</seed:think>"},
    {"<think:opensource>", "</think:opensource>"},
    {"<mm:think>", "</mm:think>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"<|channel>thought\n", "<channel|>"},
    {"Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"},
    {"<think>", "</think>"},
};

const struct tool_family *tools_family(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].family->name, name) == 0)
            return families[i].family;
    return NULL;
}

const char *tools_family_name(const struct tool_family *f)
{
    return f->name;
}

void tools_detect(const char *tmpl, bool think_token, struct chat_format *out)
{
    *out = (struct chat_format){.family = &family_hermes};
    if (!tmpl)
        return;
    out->declares = strstr(tmpl, "tools") != NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!strstr(tmpl, families[i].mark) || !strstr(tmpl, families[i].mark2))
            continue;
        if (out->declares || families[i].family->whole)
            out->family = families[i].family;
        break;
    }
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts && !out->think_close; i++) {
        bool plain = strcmp(thoughts[i].open, "<think>") == 0;
        if (strstr(tmpl, thoughts[i].close) ||
            (plain && (think_token || strstr(tmpl, thoughts[i].open)))) {
            out->think_open = thoughts[i].open;
            out->think_close = thoughts[i].close;
        }
    }
}
