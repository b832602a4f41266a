/* What the text encoders share: reading configurations, checking and embedding a batch, residual sums. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/image/enc_impl.h"

/* ---- configurations ---- */

#define KEY_MAX 128

static const char *key_of(struct enc_cfg g, const char *key, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s%s", g.at, key);
    return out;
}

struct enc_cfg enc__cfg(struct config *c, const char *object, const char *probe)
{
    char k[KEY_MAX];
    struct enc_cfg in = {c, object}, top = {c, ""};
    return config_has(c, key_of(in, probe, k)) ? in : top;
}

int enc__cfg_int(struct enc_cfg g, const char *key, int def, int min, int max)
{
    char k[KEY_MAX];
    return (int)config_int(g.c, key_of(g, key, k), def, min, max);
}

int enc__cfg_need(struct enc_cfg g, const char *key, int min, int max)
{
    char k[KEY_MAX];
    config_need(g.c, key_of(g, key, k));
    return (int)config_int(g.c, k, min, min, max);
}

double enc__cfg_num(struct enc_cfg g, const char *key, double def, double min, double max)
{
    char k[KEY_MAX];
    return config_num(g.c, key_of(g, key, k), def, min, max);
}

const char *enc__cfg_str(struct enc_cfg g, const char *key, const char *def)
{
    char k[KEY_MAX];
    return config_str(g.c, key_of(g, key, k), def);
}

bool enc__cfg_bool(struct enc_cfg g, const char *key, bool def)
{
    char k[KEY_MAX];
    return config_bool(g.c, key_of(g, key, k), def);
}

const char *enc__prefix(const struct nn_load *l, const char *const *prefix, int n, const char *name)
{
    for (int i = 0; i + 1 < n; i++)
        if (nn_load_has(l, NULL, "%s%s", prefix[i], name))
            return prefix[i];
    return prefix[n - 1];
}

int enc__act(const char *name, enum image_act *out, struct err *e)
{
    static const struct {
        const char *name;
        enum image_act act;
    } acts[] = {
        {"quick_gelu", IMAGE_ACT_QUICK_GELU},
        {"gelu", IMAGE_ACT_GELU_ERF},
        {"gelu_new", IMAGE_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", IMAGE_ACT_GELU_TANH},
        {"relu", IMAGE_ACT_RELU},
        {"silu", IMAGE_ACT_SILU},
        {"swish", IMAGE_ACT_SILU},
    };
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(name, acts[i].name) == 0) {
            *out = acts[i].act;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "activation '%.60s' is not supported", name);
}

int enc__opened(const struct comp *c, int rc, struct err *e)
{
    if (rc)
        err_prefix(e, "%s", c->name);
    return rc;
}

/* ---- runs ---- */

void enc__fail(struct nn *n, int rc, const char *what)
{
    if (n->rc)
        return;
    n->rc = rc;
    n->failed = what;
}

static int check(const struct nn *n, const struct enc_batch *b, int64_t n_vocab, int len_max,
                 const char **what)
{
    *what = "encode (number of prompts)";
    if (b->n < 1 || b->n > ENC_TEXTS || !b->start || b->start[0] != 0 || (!b->ids && !n->dry))
        return ERR_INVAL;
    for (int i = 0; i < b->n; i++) {
        *what = "encode (a prompt without tokens)";
        if (b->start[i + 1] <= b->start[i])
            return ERR_INVAL;
        *what = "encode (more tokens than the encoder takes)";
        if (b->start[i + 1] - b->start[i] > len_max)
            return ERR_LIMIT;
    }
    *what = "encode (a token id outside the vocabulary)";
    for (int32_t i = 0; b->ids && i < b->start[b->n]; i++)
        if (b->ids[i] < 0 || b->ids[i] >= n_vocab)
            return ERR_INVAL;
    return 0;
}

bool enc__begin(struct nn *n, const struct enc_batch *b, int64_t n_vocab, int len_max)
{
    const char *what;
    int rc = n->rc ? n->rc : check(n, b, n_vocab, len_max, &what);
    if (rc != 0) {
        enc__fail(n, rc, what);
        return false;
    }
    nn_layouts(n,
               &(struct image_meta){.n_layout = 1, .layout = {{.n_seg = b->n, .start = b->start}}});
    return true;
}

int enc__longest(const struct enc_batch *b)
{
    int max = 0;
    for (int i = 0; i < b->n; i++)
        if (b->start[i + 1] - b->start[i] > max)
            max = b->start[i + 1] - b->start[i];
    return max;
}

/* Position of every row in its prompt, on the device. */
static struct tensor positions(struct nn *n, const struct enc_batch *b)
{
    size_t rows = (size_t)enc__rows(b);
    struct tensor t = nn_tmp(n, DT_I32, 1, (int64_t)rows);
    int32_t *pos = n->dry ? NULL : mem_alloc(rows * sizeof *pos);
    if (!n->dry && !pos)
        enc__fail(n, ERR_NOMEM, "encode (positions)");
    for (int s = 0; pos && s < b->n; s++)
        for (int32_t i = b->start[s]; i < b->start[s + 1]; i++)
            pos[i] = i - b->start[s];
    if (!n->rc)
        nn_put(n, &t, pos);
    free(pos);
    return t;
}

struct tensor enc__embed(struct nn *n, const struct enc_batch *b, const struct nn_linear *tok,
                         const struct nn_linear *pos)
{
    struct tensor x = nn_tmp(n, DT_F32, enc__rows(b), tok->n_in);
    struct tensor ids = nn_tmp(n, DT_I32, 1, enc__rows(b)), at = {0};
    if (!n->rc)
        nn_put(n, &ids, b->ids);
    if (pos)
        at = positions(n, b);
    NN_OP(n, lookup, .dst = x, .ids = ids, .pos = at, .w = tok->w, .w2 = pos ? pos->w : NULL);
    nn_free(n, &at);
    nn_free(n, &ids);
    return x;
}

struct tensor enc__rms(struct nn *n, struct tensor x, struct tensor *add, struct tensor w,
                       float eps, enum dtype to)
{
    struct tensor t = nn_tmp(n, to, x.shape[0], x.shape[1]);
    NN_OP(n, rmsnorm, .dst = t, .x = x, .add = *add, .w = w, .eps = eps);
    nn_free(n, add);
    return t;
}

void enc__add(struct nn *n, struct tensor x, struct tensor *y)
{
    NN_OP(n, gate_add, .x = x, .y = *y, .factor = 1, .layout = -1);
    nn_free(n, y);
}
