/* The pre-tokenisers that GGUF files name in tokenizer.ggml.pre: patterns and options by name. The
 * patterns are those of the models' own tokenizer.json files, in their published form. */
#include "engine/text/tok_impl.h"

#define APOS_ANY "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define TAIL     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SYM      " ?[^\\s\\p{L}\\p{N}]+"
#define WORD     "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define UPPER    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(x)                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" x "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" x

#define RE_GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYM "|\\s+(?!\\S)|\\s+"
#define RE_LLAMA3 APOS_ANY "|" WORD "|\\p{N}{1,3}|" SYM "[\\r\\n]*|" TAIL
#define RE_QWEN2  APOS_ANY "|" WORD "|\\p{N}|" SYM "[\\r\\n]*|" TAIL
#define RE_QWEN35                                                                                  \
    APOS_ANY                                                                                       \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL
#define RE_GPT4O  CASED(APOS_ANY "?") "|\\p{N}{1,3}|" SYM "[\\r\\n/]*|" TAIL
#define RE_TEKKEN CASED("") "|\\p{N}|" SYM "[\\r\\n/]*|" TAIL
#define RE_DS3                                                                                     \
    "[!\"#$%&'()*+,\\-./"                                                                          \
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"              \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL
#define RE_KANA     "[一-龥぀-ゟ゠-ヿ]+"
#define RE_CJK      "[一-龥ࠀ-一가-퟿]+"
#define RE_BLOOM    " ?[^(\\s|.,!?…。，、।۔،)]+"
#define RE_NEWLINES "[^\\n]+|[\\n]+"
/* DeepSeek LLM lists the cased letters of Unicode 12 by hand. */
#define RE_DS_LETTERS                                                                              \
    "\\s?["                                                                                        \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{"    \
    "293}"                                                                                         \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}"          \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{"    \
    "52F}"                                                                                         \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{"     \
    "1CBA}"                                                                                        \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{"   \
    "1F15}"                                                                                        \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}"        \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{"     \
    "1FBE}"                                                                                        \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{"   \
    "1FEC}"                                                                                        \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"         \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212A}-\\x{"     \
    "212D}\\x{212F}-\\x{2134}"                                                                     \
    "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{"     \
    "2C7B}"                                                                                        \
    "\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{"    \
    "A69B}"                                                                                        \
    "\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{"   \
    "FB06}"                                                                                        \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-"    \
    "\\x{104D3}"                                                                                   \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"         \
    "\\x{1E900}-\\x{1E943}"                                                                        \
    "]+"

enum pre_opt {
    PRE_WHOLE = 1,    /* a piece that is an entry is taken as it is */
    PRE_BOS = 2,      /* bos unless the file says otherwise */
    PRE_NFC = 4,      /* text is composed first */
    PRE_MARK = 8,     /* characters, not bytes; spaces become U+2581 */
    PRE_NEWLINE = 16, /* pieces of newlines are looked up whole */
};
#define PRE_RE_MAX 6

struct pre {
    const char *names; /* separated and enclosed by spaces */
    unsigned opt;
    const char *re[PRE_RE_MAX];
};

static const struct pre pre_table[] = {
    {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
     "gigachat "
     "a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4 ",
     0,
     {RE_GPT2}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     0,
     {"\\p{N}", RE_GPT2}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     PRE_WHOLE | PRE_BOS,
     {RE_LLAMA3}},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", 0, {RE_LLAMA3}},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez ", PRE_NFC, {RE_QWEN2}},
    {" stablelm2 hunyuan solar-open grok-2 ", 0, {RE_QWEN2}},
    {" qwen35 ", 0, {RE_QWEN35}},
    {" laguna ", 0, {RE_NEWLINES, RE_QWEN2}},
    {" minicpm5 ", PRE_WHOLE, {"\\p{N}{1,3}", APOS_ANY "|" WORD "|\\p{N}+|" SYM "[\\r\\n]*|" TAIL}},
    {" deepseek-llm ",
     0,
     {"[\\r\\n]", RE_DS_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+", "\\s+$", RE_CJK,
      "\\p{N}+"}},
    {" deepseek-coder ", 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", RE_CJK, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ", 0, {"\\p{N}{1,3}", RE_KANA, RE_DS3}},
    {" falcon ", 0, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", RE_GPT2, "[0-9][0-9][0-9]"}},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", 0, {RE_GPT4O}},
    {" granite-embed-multi-97m ", PRE_WHOLE, {RE_GPT4O}},
    {" tekken ", PRE_WHOLE | PRE_BOS, {RE_TEKKEN}},
    {" youtu ",
     PRE_WHOLE,
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" RE_KANA,
      CASED(APOS_ANY "?") "|\\p{N}|" SYM "[\\r\\n/]*|" TAIL}},
    {" bailingmoe bailingmoe2 llada-moe ",
     0,
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {" seed-coder ", 0, {APOS_ANY "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL}},
    {" poro-chat bloom gpt3-finnish ", 0, {RE_BLOOM}},
    {" viking ", 0, {RE_BLOOM, "\\p{N}"}},
    {" gemma4 granite-embed-multi-311m ", PRE_MARK | PRE_NEWLINE, {RE_NEWLINES}},
    {" sarvam-moe ", PRE_MARK, {RE_NEWLINES}},
    {" default ", 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", RE_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static const struct pre *pre_find(struct view name)
{
    char key[64];
    if (name.len == 0 || name.len > sizeof key - 3 || memchr(name.p, ' ', name.len))
        return NULL;
    snprintf(key, sizeof key, " %.*s ", (int)name.len, name.p);
    for (size_t i = 0; i < sizeof pre_table / sizeof pre_table[0]; i++)
        if (strstr(pre_table[i].names, key))
            return &pre_table[i];
    return NULL;
}

struct view tok__pre_name(int i)
{
    if (i < 0 || i >= (int)(sizeof pre_table / sizeof pre_table[0]))
        return (struct view){0};
    const char *p = pre_table[i].names + 1;
    return (struct view){p, strcspn(p, " ")};
}

int tok__pre_apply(struct tokenizer *t, struct view name, struct err *e)
{
    const struct pre *p = pre_find(name);
    if (!p)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer '%.*s' is not known",
                       (int)(name.len < 80 ? name.len : 80), name.p);
    if (p->opt & PRE_NFC)
        tok__add_norm(t, TOK_NORM_NFC);
    if (p->opt & PRE_MARK) {
        struct tok_norm *op = tok__add_norm(t, TOK_NORM_MARK);
        op->a = VIEW_LIT(TOK_MARK);
    }
    t->byte_level = !(p->opt & PRE_MARK);
    t->byte_fallback = !t->byte_level;
    t->whole_piece = p->opt & PRE_WHOLE;
    t->whole_newline = p->opt & PRE_NEWLINE;
    t->adds_bos = p->opt & PRE_BOS;
    for (int i = 0; i < PRE_RE_MAX && p->re[i]; i++) {
        int rc = tok__add_split(t, p->re[i], TOK_SPLIT_ISOLATE, false, e);
        if (rc != 0)
            return err_prefix(e, "tokenizer.ggml.pre '%.*s'", (int)name.len, name.p);
    }
    return 0;
}
