/* Tokenizers of text encoders: finding their files, and prompts as the fixed-length rows that CLIP and T5 take. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/image/encoders.h"

static bool path_in(const struct comp *c, const char *name, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s%s", c->dir, *name ? "/" : "", name);
    return n > 0 && n < PATH_MAX && access(path, R_OK) == 0;
}

int enc_tokenizer_open(struct tokenizer **out, const struct comp *c, struct err *e)
{
    static const struct {
        const char *name[2]; /* all must be there */
        const char *open;    /* what the reader takes: one of them, or the folder */
        int (*reader)(struct tokenizer **out, const char *path, struct err *e);
    } kinds[] = {
        {{"tokenizer.json", ""}, "tokenizer.json", tok_open_hf},
        {{"vocab.json", "merges.txt"}, "", tok_open_files},
        {{"merges.txt", ""}, "merges.txt", tok_open_clip},
        {{"spiece.model", ""}, "spiece.model", tok_open_spm},
        {{"tokenizer.model", ""}, "tokenizer.model", tok_open_spm},
    };
    char path[PATH_MAX];
    if (!*c->dir && c->map.src && source_gguf(c->map.src))
        return tok_open_gguf(out, source_gguf(c->map.src), e);
    if (!*c->dir && strcmp(c->cls, "CLIPTokenizer") == 0)
        return tok_open_clip_published(out, e);
    for (size_t i = 0; *c->dir && i < sizeof kinds / sizeof kinds[0]; i++)
        if (path_in(c, kinds[i].name[0], path) && path_in(c, kinds[i].name[1], path) &&
            path_in(c, kinds[i].open, path))
            return kinds[i].reader(out, path, e);
    return err_set(e, ERR_NOTFOUND,
                   "%s: no tokenizer.json, vocab.json with merges.txt, or spiece.model in %s",
                   c->name, *c->dir ? c->dir : "the model's files");
}

/* A named token's text of one of the folder's files; `out` is empty if it has none. *list: whether the file lists
 * added tokens by id. */
static void read_pad(const struct comp *c, const char *name, char *out, size_t size, bool *list)
{
    char path[PATH_MAX];
    struct config *g = NULL;
    out[0] = 0;
    if (!path_in(c, name, path) || config_open(&g, path, NULL) != 0)
        return;
    if (config_has(g, "pad_token"))
        snprintf(out, size, "%s",
                 config_str(g,
                            config_has(g, "pad_token.content") ? "pad_token.content" : "pad_token",
                            ""));
    *list = config_has(g, "added_tokens_decoder");
    config_close(g);
}

int32_t enc_pad_id(const struct tokenizer *t, const struct comp *c)
{
    char pad[2][128];
    bool list = false, ignored;
    const char *said = c->cfg ? config_str(c->cfg, "pad_token", NULL) : NULL;
    if (said)
        return tok_find(t, said, strlen(said));
    read_pad(c, "tokenizer_config.json", pad[0], sizeof pad[0], &list);
    read_pad(c, "special_tokens_map.json", pad[1], sizeof pad[1], &ignored);
    /* the configuration of newer files is complete; of older ones the map has the last word */
    const char *text = *pad[1] && !(list && *pad[0]) ? pad[1] : pad[0];
    return *text ? tok_find(t, text, strlen(text)) : -1;
}

/* [before] text [after] cut to `len`, then `pad` (before and pad: -1 for none, after). */
static int wrap(const struct tokenizer *t, const char *text, int len, const int32_t mark[3],
                int32_t *ids, int *n_real)
{
    struct tok_ids v = {0};
    int rc = tok_encode(t, text, strlen(text), TOK_SPECIAL, &v), n = 0;
    int extra = (mark[0] >= 0) + 1;
    if (rc == 0) {
        int keep = v.n < (size_t)(len - extra) ? (int)v.n : len - extra;
        if (mark[0] >= 0)
            ids[n++] = mark[0];
        for (int i = 0; i < keep; i++)
            ids[n++] = v.id[i];
        ids[n++] = mark[1];
        *n_real = n;
        while (n < len)
            ids[n++] = mark[2];
    }
    tok_ids_free(&v);
    return rc;
}

int enc_clip_ids(const struct tokenizer *t, const char *text, int len, int32_t pad, int32_t *ids,
                 int *n_real)
{
    int32_t bos = tok_bos(t), eos = tok_eos(t);
    if (bos < 0 || eos < 0 || len < 2)
        return ERR_INVAL;
    return wrap(t, text, len, (int32_t[]){bos, eos, pad < 0 ? eos : pad}, ids, n_real);
}

int enc_t5_ids(const struct tokenizer *t, const char *text, int len, int32_t *ids, int *n_real)
{
    int32_t pad = tok_find(t, "<pad>", 5), eos = tok_eos(t);
    if (eos < 0 || len < 1)
        return ERR_INVAL;
    return wrap(t, text, len, (int32_t[]){-1, eos, pad < 0 ? 0 : pad}, ids, n_real);
}
