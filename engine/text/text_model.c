/* Opening a GGUF file for the front side, and closing either kind. */
#include "engine/text/text_model.h"

#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "engine/load/kind.h"
#include "engine/text/text_model_impl.h"

int text__copy(char **out, struct view v)
{
    char *p = mem_alloc(v.len + 1);
    if (!p)
        return ERR_NOMEM;
    memcpy(p, v.p, v.len);
    p[v.len] = 0;
    free(*out);
    *out = p;
    return 0;
}

/* A text key; `def` when absent (NULL leaves *out alone). */
static int get_text(const struct gguf *g, const char *key, const char *def, char **out,
                    struct err *e)
{
    struct view v = view_str(def);
    int rc = gguf_get_str(g, key, &v, e);
    if (rc == ERR_NOTFOUND && !def)
        return 0;
    if (rc != 0 && rc != ERR_NOTFOUND)
        return rc;
    return text__copy(out, v) == 0 ? 0 : err_set(e, ERR_NOMEM, "%s: out of memory", key);
}

/* <arch>.context_length; absent leaves 0. */
static int get_context(struct text_model *m, const struct gguf *g, struct err *e)
{
    char key[160];
    uint32_t n = 0;
    snprintf(key, sizeof key, "%.120s.context_length", m->arch);
    int rc = gguf_get_u32(g, key, &n, e);
    if (rc != 0 && rc != ERR_NOTFOUND)
        return rc;
    if (n > INT32_MAX)
        return err_set(e, ERR_INVAL, "%s: %u is out of range", key, n);
    m->n_ctx_train = (int32_t)n;
    return 0;
}

/* Elements of all tensors. */
static int64_t count_params(const struct gguf *g)
{
    int64_t sum = 0;
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        int64_t n = 1; /* the reader has checked that the product fits */
        for (int d = 0; d < t->n_dim; d++)
            n *= t->dim[d];
        sum += n;
    }
    return sum;
}

int text__token_texts(struct text_model *m, int32_t pad)
{
    const struct tokenizer *t = m->tok;
    int rc = text__copy(&m->bos_token, tok_entry(t, tok_bos(t)));
    rc = rc ? rc : text__copy(&m->eos_token, tok_entry(t, tok_eos(t)));
    rc = rc ? rc : text__copy(&m->unk_token, tok_entry(t, tok_unk(t)));
    return rc ? rc : text__copy(&m->pad_token, tok_entry(t, pad));
}

/* On failure the caller closes m, whatever it holds by then. */
static int open_gguf(struct text_model *m, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    int rc = model_file_gguf(path, e);
    rc = rc ? rc : gguf_open(&g, path, e);
    if (rc != 0)
        return rc;
    m->priv = g;
    m->file_bytes = (int64_t)gguf_file_bytes(g);
    m->n_params = count_params(g);
    rc = get_text(g, "general.architecture", "", &m->arch, e);
    rc = rc ? rc : get_text(g, "general.name", "", &m->name, e);
    rc = rc ? rc : get_text(g, "tokenizer.chat_template", NULL, &m->chat_template, e);
    rc = rc ? rc : get_context(m, g, e);
    rc = rc ? rc : tok_open_gguf(&m->tok, g, e);
    rc = rc ? rc : text__find_fim(m, g, e);
    if (rc != 0) {
        err_prefix(e, "%s", path);
        return rc;
    }
    uint32_t pad = UINT32_MAX;
    gguf_get_u32(g, "tokenizer.ggml.padding_token_id", &pad, NULL);
    rc = text__token_texts(m, pad <= INT32_MAX ? (int32_t)pad : -1);
    return rc ? err_set(e, rc, "%s: out of memory", path) : 0;
}

int text_model_open(struct text_model **out, const char *path, struct err *e)
{
    struct stat st;
    struct text_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    m->sampling = (struct text_sampling){-1, -1, -1, -1, -1};
    int rc = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? text__open_hf(m, path, e)
                                                         : open_gguf(m, path, e);
    if (rc != 0) {
        text_model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void text_model_close(struct text_model *m)
{
    if (!m)
        return;
    tok_close(m->tok); /* before the file: entries point into it */
    gguf_close(m->priv);
    free(m->chat_template);
    free(m->bos_token);
    free(m->eos_token);
    free(m->unk_token);
    free(m->pad_token);
    free(m->arch);
    free(m->name);
    free(m);
}
