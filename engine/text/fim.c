/* Which tokens of a vocabulary mark a hole to be filled: GGUF files may say so, else they are known by their names. */
#include <string.h>

#include "engine/load/gguf.h"
#include "engine/text/text_model_impl.h"

/* How families spell them. Families with a second name for a hole's end mark (DeepSeek) still say prefix, suffix, middle. */
static const struct spelling {
    const char *prefix, *suffix, *middle;
    bool suffix_first;
} spellings[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false},    /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},          /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},          /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false},    /* DeepSeek-Coder */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", false},                            /* CodeLlama */
    {"<PRE>", "<SUF>", "<MID>", false},                               /* the same, elsewhere */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false}, /* GLM-4 */
    {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", true},     /* Seed-Coder */
    {"[PREFIX]", "[SUFFIX]", NULL, true},                             /* Codestral */
};

static int32_t find(const struct text_model *m, const char *name)
{
    return name ? tok_find(m->tok, name, strlen(name)) : -1;
}

/* The first of two keys that is there replaces *id. */
static int from_keys(const struct text_model *m, const struct gguf *g, const char *const key[2],
                     int32_t *id, struct err *e)
{
    for (int i = 0; i < 2 && key[i]; i++) {
        uint32_t v = 0;
        int rc = gguf_get_u32(g, key[i], &v, e);
        if (rc == ERR_NOTFOUND)
            continue;
        if (rc)
            return rc;
        if (v >= (uint32_t)tok_n_vocab(m->tok))
            return err_set(e, ERR_INVAL, "%s: %u is not in the vocabulary", key[i], v);
        *id = (int32_t)v;
        return 0;
    }
    return 0;
}

static int read_keys(struct text_model *m, const struct gguf *g, struct err *e)
{
#define KEY(name) "tokenizer.ggml." name "_token_id"
    struct text_fim *f = &m->fim;
    const struct {
        const char *key[2]; /* as it is written now, and as it was */
        int32_t *id;
    } keys[] = {
        {{KEY("fim_pre"), KEY("prefix")}, &f->prefix},
        {{KEY("fim_suf"), KEY("suffix")}, &f->suffix},
        {{KEY("fim_mid"), KEY("middle")}, &f->middle},
        {{KEY("fim_rep"), NULL}, &f->repo},
        {{KEY("fim_sep"), NULL}, &f->file},
        {{KEY("fim_pad"), NULL}, &f->pad},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof keys / sizeof *keys; i++)
        rc = from_keys(m, g, keys[i].key, keys[i].id, e);
    return rc;
#undef KEY
}

int text__find_fim(struct text_model *m, const struct gguf *g, struct err *e)
{
    static const char *const repos[] = {"<|repo_name|>", "<repo_name>", "<reponame>"};
    static const char *const files[] = {"<|file_sep|>", "<file_sep>", "<filename>"};
    static const char *const pads[] = {"<|fim_pad|>", "<fim_pad>", "<fim-pad>"};
    struct text_fim *f = &m->fim;
    *f = (struct text_fim){-1, -1, -1, -1, -1, -1, false};
    for (size_t i = 0; f->prefix < 0 && i < sizeof spellings / sizeof *spellings; i++) {
        const struct spelling *s = &spellings[i];
        int32_t pre = find(m, s->prefix), suf = find(m, s->suffix), mid = find(m, s->middle);
        if (pre >= 0 && suf >= 0 && (mid >= 0 || !s->middle))
            *f = (struct text_fim){pre, suf, mid, -1, -1, -1, s->suffix_first};
    }
    for (int i = 0; i < 3; i++) {
        f->repo = f->repo < 0 ? find(m, repos[i]) : f->repo;
        f->file = f->file < 0 ? find(m, files[i]) : f->file;
        f->pad = f->pad < 0 ? find(m, pads[i]) : f->pad;
    }
    int rc = g ? read_keys(m, g, e) : 0;
    if (f->prefix < 0 || f->suffix < 0)
        f->prefix = f->suffix = f->middle = -1;
    return rc;
}
