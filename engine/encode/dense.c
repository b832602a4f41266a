/* Dense layers after the pooling (sentence-transformers' N_Dense folders: sentence-t5, LaBSE and others). One row a text
 * and a few hundred wide: the host does it, sums in double. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/encode/encode.h"
#include "engine/load/config.h"
#include "engine/load/source.h"

#define WIDTH_MAX (1 << 16)

/* A tensor of the folder as f32, of exactly n values. */
static int read_values(const struct source *s, const char *name, int64_t rows, int64_t cols,
                       float **out, struct err *e)
{
    const struct source_tensor *t = source_find(s, name);
    size_t n = (size_t)rows * (size_t)cols;
    if (!t)
        return err_set(e, ERR_NOTFOUND, "%s: no tensor %s", source_path(s), name);
    bool fits =
        t->n_dim == (cols > 1 ? 2 : 1) && t->dim[0] == rows && (t->n_dim == 1 || t->dim[1] == cols);
    if (!fits)
        return err_set(e, ERR_INVAL, "%s: %s is not of the shape that config.json says",
                       source_path(s), name);
    *out = mem_alloc(n * sizeof **out);
    if (!*out)
        return err_set(e, ERR_NOMEM, "%s: no memory", source_path(s));
    return source_decode(t, 0, (int64_t)n, *out)
               ? err_set(e, ERR_UNSUPPORTED, "%s: %s holds no numbers", source_path(s), name)
               : 0;
}

/* torch.nn.modules.linear.Identity, torch.nn.modules.activation.Tanh: what is published. */
static int read_act(struct config *c, bool *tanh_out, struct err *e)
{
    const char *act = config_str(c, "activation_function", "torch.nn.modules.activation.Tanh");
    const char *name = strrchr(act, '.');
    name = name ? name + 1 : act;
    *tanh_out = strcmp(name, "Tanh") == 0;
    if (!*tanh_out && strcmp(name, "Identity") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "activation_function '%.80s' of a dense layer: Identity and Tanh are known",
                       act);
    return 0;
}

static int read_dense(struct encode_dense *d, const char *dir, struct config *c, int dim,
                      struct err *e)
{
    struct source *s = NULL;
    config_need(c, "out_features");
    d->n_in = (int)config_int(c, "in_features", dim, 1, WIDTH_MAX);
    d->n_out = (int)config_int(c, "out_features", dim, 1, WIDTH_MAX);
    bool bias = config_bool(c, "bias", true);
    int rc = read_act(c, &d->tanh, e);
    rc = rc ? rc : config_error(c, e);
    if (!rc && d->n_in != dim)
        rc = err_set(e, ERR_INVAL, "in_features is %d, but %d values come from the layer before it",
                     d->n_in, dim);
    if (rc || (rc = source_open(&s, dir, e)))
        return rc;
    rc = read_values(s, "linear.weight", d->n_out, d->n_in, &d->w, e);
    if (!rc && bias)
        rc = read_values(s, "linear.bias", d->n_out, 1, &d->b, e);
    source_close(s);
    return rc;
}

int encode__dense_open(struct encode_dense list[ENCODE_DENSE_MAX], int *n, const char *dir, int dim,
                       struct err *e)
{
    *n = 0;
    for (int i = 0; i <= ENCODE_MODULES_MAX; i++) {
        char at[PATH_MAX], path[PATH_MAX + 16];
        struct config *c = NULL;
        int len = snprintf(at, sizeof at, "%s/%d_Dense", dir, i);
        if (len < 0 || (size_t)len >= sizeof at)
            return err_set(e, ERR_LIMIT, "%.150s: path is too long", dir);
        if (access(at, F_OK) != 0)
            continue;
        if (*n == ENCODE_DENSE_MAX)
            return err_set(e, ERR_LIMIT, "%s: more than %d dense layers", at, ENCODE_DENSE_MAX);
        snprintf(path, sizeof path, "%s/config.json", at);
        int rc = config_open(&c, path, e);
        rc = rc ? rc : read_dense(&list[(*n)++], at, c, dim, e);
        config_close(c);
        if (rc)
            return err_prefix(e, "%s", at), rc;
        dim = list[*n - 1].n_out;
    }
    return 0;
}

void encode__dense_close(struct encode_dense *list, int n)
{
    for (int i = 0; i < n; i++) {
        free(list[i].w);
        free(list[i].b);
    }
}

void encode__dense_run(const struct encode_dense *d, const float *x, float *y)
{
    for (int o = 0; o < d->n_out; o++) {
        const float *w = d->w + (size_t)o * (size_t)d->n_in;
        double sum = d->b ? (double)d->b[o] : 0;
        for (int i = 0; i < d->n_in; i++)
            sum += (double)w[i] * (double)x[i];
        y[o] = (float)(d->tanh ? tanh(sum) : sum);
    }
}
