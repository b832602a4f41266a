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
                                                 .loose = "{",
                                                 .step = tools_json_step,
                                                 .form = &hermes_form};

static const struct json_form list_form = {.list = true,
                                           .close = {"</tool_calls>"},
                                           .name = "name",
                                           .args = "arguments",
                                           .args2 = "parameters"};
static const struct tool_family family_tool_calls = {.name = "tool_calls",
                                                     .open = MARKS("<tool_calls>"),
                                                     .control = MARKS("</tool_calls>"),
                                                     .step = tools_json_step,
                                                     .form = &list_form};

static const struct json_form nemotron_form = {.list = true,
                                               .close = {"</TOOLCALL>"},
                                               .name = "name",
                                               .args = "arguments",
                                               .args2 = "parameters"};
static const struct tool_family family_nemotron = {.name = "nemotron",
                                                   .open = MARKS("<TOOLCALL>"),
                                                   .control = MARKS("</TOOLCALL>"),
                                                   .step = tools_json_step,
                                                   .form = &nemotron_form};

static const struct json_form open_form = {
    .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct json_form open_list_form = {
    .list = true, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_granite = {.name = "granite",
                                                  .open = MARKS("<|tool_call|>"),
                                                  .step = tools_json_step,
                                                  .form = &open_list_form};
static const struct tool_family family_granite_fc = {.name = "granite_fc",
                                                     .open = MARKS("<function_call>"),
                                                     .step = tools_json_step,
                                                     .form = &open_form};
static const struct tool_family family_gigachat = {.name = "gigachat",
                                                   .open = MARKS("<|function_call|>"),
                                                   .step = tools_json_step,
                                                   .form = &open_form};
static const struct tool_family family_functools = {.name = "functools",
                                                    .open = MARKS("functools"),
                                                    .bare = "[{",
                                                    .step = tools_json_step,
                                                    .form = &open_list_form};
static const struct tool_family family_xlam = {
    .name = "xlam", .bare = "[{", .step = tools_json_step, .form = &open_list_form};

static const struct named_form mistral_named = {
    .separator = "[ARGS]", .mid = "[CALL_ID]", .id_last = true, .brace = true};
static const struct json_form mistral_form = {.list = true,
                                              .name = "name",
                                              .args = "arguments",
                                              .other = tools_named_step,
                                              .other_form = &mistral_named};
static const struct tool_family family_mistral = {.name = "mistral",
                                                  .open = MARKS("[TOOL_CALLS]"),
                                                  .control = MARKS("[CALL_ID]", "[ARGS]"),
                                                  .brief_id = true,
                                                  .step = tools_json_step,
                                                  .form = &mistral_form};

static const struct json_form command_form = {.list = true,
                                              .close = {"<|END_ACTION|>"},
                                              .name = "tool_name",
                                              .name2 = "name",
                                              .args = "parameters"};
static const struct tool_family family_command = {.name = "command",
                                                  .open = MARKS("<|START_ACTION|>"),
                                                  .control = MARKS("<|END_ACTION|>"),
                                                  .step = tools_json_step,
                                                  .form = &command_form};

static const struct json_form action_form = {.list = true,
                                             .close = {"```", "```", "```"},
                                             .name = "tool_name",
                                             .name2 = "name",
                                             .args = "parameters"};
static const struct tool_family family_action = {
    .name = "action",
    .open = MARKS("Action:\n```json", "Action: ```json", "Action:```json"),
    .step = tools_json_step,
    .form = &action_form};

static const struct json_form internlm_form = {
    .close = {"<|action_end|>"}, .name = "name", .args = "arguments", .args2 = "parameters"};
static const struct tool_family family_internlm = {
    .name = "internlm",
    .open = MARKS("<|action_start|><|plugin|>"),
    .control = MARKS("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    .step = tools_json_step,
    .form = &internlm_form};

static const struct json_form apertus_form = {
    .list = true, .close = {"<|tools_suffix|>"}, .keyed = true};
static const struct tool_family family_apertus = {.name = "apertus",
                                                  .open = MARKS("<|tools_prefix|>"),
                                                  .control = MARKS("<|tools_suffix|>"),
                                                  .step = tools_json_step,
                                                  .form = &apertus_form};

static const struct json_form llama_form = {
    .name = "name", .args = "parameters", .args2 = "arguments", .other = tools_python_step};
static const struct tool_family family_llama = {.name = "llama",
                                                .open = MARKS("<|python_tag|>"),
                                                .bare = "{",
                                                .step = tools_json_step,
                                                .form = &llama_form};

static const struct named_form deepseek_form = {.call_open = "<｜tool▁call▁begin｜>",
                                                .separator = "<｜tool▁sep｜>",
                                                .call_close = "<｜tool▁call▁end｜>",
                                                .close = "<｜tool▁calls▁end｜>",
                                                .fenced = true};
static const struct tool_family family_deepseek = {
    .name = "deepseek",
    .open = MARKS("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    .control = MARKS("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    .step = tools_named_step,
    .form = &deepseek_form};

static const struct named_form kimi_form = {.call_open = "<|tool_call_begin|>",
                                            .separator = "<|tool_call_argument_begin|>",
                                            .call_close = "<|tool_call_end|>",
                                            .close = "<|tool_calls_section_end|>",
                                            .id_head = true};
static const struct tool_family family_kimi = {
    .name = "kimi",
    .open = MARKS("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    .control =
        MARKS("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    .step = tools_named_step,
    .form = &kimi_form};

static const struct named_form solar_form = {.call_open = "<|tool_call:begin|>",
                                             .separator = "<|tool_call:args|>",
                                             .call_close = "<|tool_call:end|>",
                                             .close = "<|calls|>",
                                             .mid = "<|tool_call:name|>"};
static const struct tool_family family_solar = {
    .name = "solar",
    .open = MARKS("<|tool_calls|>", "<|tool_call:begin|>"),
    .control = MARKS("<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"),
    .step = tools_named_step,
    .form = &solar_form};

static const struct named_form functionary_form = {.separator = ">", .call_close = "</function>"};
static const struct tool_family family_functionary = {.name = "functionary",
                                                      .open = MARKS("<function="),
                                                      .step = tools_named_step,
                                                      .form = &functionary_form};

static const struct xml_form coder_form = {.section = true,
                                           .call_open = "<function=",
                                           .name_end = {">"},
                                           .arg_open = "<parameter=",
                                           .arg_name_end = ">",
                                           .arg_close = "</parameter>",
                                           .call_close = "</function>",
                                           .close = "</tool_call>",
                                           .newline = true};
static const struct tool_family family_qwen_coder = {.name = "qwen_coder",
                                                     .open = MARKS("<tool_call>", "<function="),
                                                     .control = MARKS("</tool_call>"),
                                                     .step = tools_xml_step,
                                                     .form = &coder_form};

static const struct xml_form seed_form = {.section = true,
                                          .call_open = "<function=",
                                          .name_end = {">"},
                                          .arg_open = "<parameter=",
                                          .arg_name_end = ">",
                                          .arg_close = "</parameter>",
                                          .call_close = "</function>",
                                          .close = "</seed:tool_call>"};
static const struct tool_family family_seed = {.name = "seed",
                                               .open = MARKS("<seed:tool_call>"),
                                               .control = MARKS("</seed:tool_call>"),
                                               .step = tools_xml_step,
                                               .form = &seed_form};

static const struct xml_form minimax_form = {.section = true,
                                             .call_open = "<invoke name=\"",
                                             .name_end = {"\">"},
                                             .arg_open = "<parameter name=\"",
                                             .arg_name_end = "\">",
                                             .arg_close = "</parameter>",
                                             .call_close = "</invoke>",
                                             .close = "</minimax:tool_call>"};
static const struct tool_family family_minimax = {.name = "minimax",
                                                  .open = MARKS("<minimax:tool_call>"),
                                                  .control = MARKS("</minimax:tool_call>"),
                                                  .step = tools_xml_step,
                                                  .form = &minimax_form};

#define M3 "]<]minimax[>["
static const struct xml_form minimax3_form = {.section = true,
                                              .call_open = M3 "<invoke name=\"",
                                              .name_end = {"\">"},
                                              .arg_open = M3 "<",
                                              .arg_name_end = ">",
                                              .arg_close = M3 "</",
                                              .call_close = M3 "</invoke>",
                                              .close = M3 "</tool_call>",
                                              .ns = M3,
                                              .tight = true};
static const struct tool_family family_minimax3 = {.name = "minimax3",
                                                   .open = MARKS(M3 "<tool_call>"),
                                                   .control = MARKS(M3),
                                                   .step = tools_xml_step,
                                                   .form = &minimax3_form};

static const struct xml_form kimi3_form = {.section = true,
                                           .call_open = "<|open|>call tool=\"",
                                           .name_tail = "\" index=\"1\"",
                                           .name_end = {"<|sep|>"},
                                           .arg_open = "<|open|>argument key=\"",
                                           .arg_name_end = "<|sep|>",
                                           .arg_close = "<|close|>argument<|sep|>",
                                           .call_close = "<|close|>call<|sep|>",
                                           .close = "<|close|>tools<|sep|>",
                                           .attrs = true,
                                           .json_open = "<|open|>json type=\"object\"<|sep|>",
                                           .json_close = "<|close|>json<|sep|>",
                                           .tight = true,
                                           .noise = 3};
static const struct tool_family family_kimi3 = {
    .name = "kimi3",
    .open = MARKS("<|open|>tools<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>",
                  "<|close|>message<|sep|>"),
    .control = MARKS("<|open|>", "<|close|>", "<|sep|>"),
    .wraps = true,
    .step = tools_xml_step,
    .form = &kimi3_form};

static const struct xml_form muse_form = {.section = true,
                                          .call_open = "<atem:invoke name=\"",
                                          .name_end = {"\">"},
                                          .arg_open = "<atem:parameter name=\"",
                                          .arg_name_end = "\">",
                                          .arg_close = "</atem:parameter>",
                                          .call_close = "</atem:invoke>",
                                          .close = "</atem:function_calls>"};
static const struct tool_family family_muse = {.name = "muse",
                                               .open = MARKS("<atem:function_calls>"),
                                               .control = MARKS("</atem:function_calls>"),
                                               .step = tools_xml_step,
                                               .form = &muse_form};

/* DeepSeek V3.2 and V4 differ in the section's name only. */
#define DSML_FORM(section_name)                                                                    \
    {                                                                                              \
        .section = true, .call_open = "<｜DSML｜invoke name=\"", .name_end = {"\">"},              \
        .arg_open = "<｜DSML｜parameter name=\"", .arg_name_end = ">",                             \
        .arg_close = "</｜DSML｜parameter>", .call_close = "</｜DSML｜invoke>",                    \
        .close = "</｜DSML｜" section_name ">", .attrs = true                                      \
    }
static const struct xml_form dsml_form = DSML_FORM("function_calls");
static const struct tool_family family_dsml = {.name = "dsml",
                                               .open = MARKS("<｜DSML｜function_calls>"),
                                               .control = MARKS("｜DSML｜"),
                                               .step = tools_xml_step,
                                               .form = &dsml_form};
static const struct xml_form dsml4_form = DSML_FORM("tool_calls");
static const struct tool_family family_dsml4 = {.name = "dsml4",
                                                .open = MARKS("<｜DSML｜tool_calls>"),
                                                .control = MARKS("｜DSML｜"),
                                                .step = tools_xml_step,
                                                .form = &dsml4_form};

static const struct xml_form glm_form = {.call_open = "<tool_call>",
                                         .name_end = {"<arg_key>", "</tool_call>", "\n"},
                                         .arg_open = "<arg_key>",
                                         .arg_name_end = "</arg_key>",
                                         .arg_mid = "<arg_value>",
                                         .arg_close = "</arg_value>",
                                         .call_close = "</tool_call>"};
static const struct tool_family family_glm = {
    .name = "glm",
    .open = MARKS("<tool_call>"),
    .control = MARKS("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    .step = tools_xml_step,
    .form = &glm_form};

static const struct xml_form hunyuan_form = {.section = true,
                                             .call_open = "<tool_call:opensource>",
                                             .name_end = {"<tool_sep:opensource>"},
                                             .arg_open = "<arg_key:opensource>",
                                             .arg_name_end = "</arg_key:opensource>",
                                             .arg_mid = "<arg_value:opensource>",
                                             .arg_close = "</arg_value:opensource>",
                                             .call_close = "</tool_call:opensource>",
                                             .close = "</tool_calls:opensource>"};
static const struct tool_family family_hunyuan = {
    .name = "hunyuan",
    .open = MARKS("<tool_calls:opensource>", "<tool_call:opensource>"),
    .control = MARKS("<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>",
                     "<arg_value:opensource>", "</arg_value:opensource>", "</tool_call:opensource>",
                     "</tool_calls:opensource>"),
    .step = tools_xml_step,
    .form = &hunyuan_form};

static const struct xml_form minicpm_form = {.call_open = "<function name=\"",
                                             .name_end = {"\">"},
                                             .arg_open = "<param name=\"",
                                             .arg_name_end = "\">",
                                             .arg_close = "</param>",
                                             .call_close = "</function>"};
static const struct tool_family family_minicpm = {.name = "minicpm",
                                                  .open = MARKS("<function name=\""),
                                                  .step = tools_xml_step,
                                                  .form = &minicpm_form};

static const struct other_form python_form = {0};
static const struct tool_family family_python = {
    .name = "python", .bare = "[", .step = tools_python_step, .form = &python_form};
static const struct other_form lfm_form = {.close = "<|tool_call_end|>"};
static const struct tool_family family_lfm = {.name = "lfm",
                                              .open = MARKS("<|tool_call_start|>"),
                                              .control = MARKS("<|tool_call_end|>"),
                                              .step = tools_python_step,
                                              .form = &lfm_form};

static const struct other_form gemma_form = {.close = "<end_function_call>", .quote = "<escape>"};
static const struct tool_family family_gemma_function = {
    .name = "gemma_function",
    .open = MARKS("<start_function_call>"),
    .control = MARKS("<end_function_call>", "<escape>"),
    .step = tools_gemma_step,
    .form = &gemma_form};
static const struct other_form gemma4_form = {.close = "<tool_call|>", .quote = "<|\"|>"};
static const struct tool_family family_gemma4 = {.name = "gemma4",
                                                 .open = MARKS("<|tool_call>"),
                                                 .control = MARKS("<tool_call|>", "<|\"|>"),
                                                 .step = tools_gemma_step,
                                                 .form = &gemma4_form};

static const struct tool_family family_harmony = {
    .name = "harmony",
    .control = MARKS("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>",
                     "<|constrain|>"),
    .whole = true,
    .step = tools_harmony_step};

static const struct tool_family family_recipient = {
    .name = "recipient", .whole = true, .step = tools_recipient_step};

static const struct {
    const struct tool_family *family;
    const char *mark, *mark2;
} families[] = {
#define FAMILY(table, mark, mark2) {&family_##table, mark, mark2},
#include "api/tools.def"
#undef FAMILY
};

/* Marks of reasoning: the first line of which the template has `sign`. */
static const struct {
    const char *open, *close, *sign;
} thoughts[] = {
    {"[THINK]", "[/THINK]", "[/THINK]"},
    {"<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"},
    {"<seed:think>", "</seed:think>", "</seed:think>"},
    {"<think:opensource>", "</think:opensource>", ":opensource"},
    {"<mm:think>", "</mm:think>", "</mm:think>"},
    {"<|open|>think<|sep|>", "<|close|>think<|sep|>", "'<|open|>' + tag"},
    {"<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"},
    {"<|channel>thought\n", "<channel|>", "<channel|>"},
    {"Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]", "[BEGIN FINAL RESPONSE]"},
    {"<think>", "</think>", "</think>"},
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
        if (strstr(tmpl, thoughts[i].sign) ||
            (plain && (think_token || strstr(tmpl, thoughts[i].open)))) {
            out->think_open = thoughts[i].open;
            out->think_close = thoughts[i].close;
        }
    }
}
