/* Runs: temporaries by first fit in one buffer, operations with a sticky error. See nn.h. */
#include "engine/base/mem.h"
#include "engine/nn/nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TMP_ALIGN 256

void nn_begin(struct nn *n, bool dry)
{
    n->dry = dry;
    n->rc = 0;
    n->failed = "";
    n->mem.n = 0;
    n->mem.peak = 0;
}

void nn_layouts(struct nn *n, const struct image_meta *m)
{
    n->meta = *m;
    if (n->rc || n->dry)
        return;
    if (!n->be->image_begin)
        nn_done(n, "image_begin", ERR_UNSUPPORTED);
    else
        nn_done(n, "image_begin", n->be->image_begin(n->dev, &n->meta));
}

int nn_reserve(struct nn *n, size_t bytes)
{
    if (bytes <= n->mem.cap)
        return 0;
    if (n->mem.buf) {
        n->be->sync(n->dev);
        n->be->buf_free(n->dev, n->mem.buf);
        n->mem.buf = 0;
        n->mem.cap = 0;
    }
    int rc = n->be->buf_alloc(n->dev, bytes, &n->mem.buf);
    if (rc) {
        n->mem.buf = 0;
        return rc;
    }
    n->mem.cap = bytes;
    return 0;
}

void nn_close(struct nn *n)
{
    if (n->mem.buf) {
        n->be->sync(n->dev);
        n->be->buf_free(n->dev, n->mem.buf);
    }
    *n = (struct nn){.be = n->be, .dev = n->dev};
}

void nn_done(struct nn *n, const char *op, int rc)
{
    if (rc && !n->rc) {
        n->rc = rc;
        n->failed = op;
    }
    if (n->yield && !n->rc && n->yield->fn(n->yield->arg)) {
        n->rc = ERR_CANCELLED;
        n->failed = op;
    }
}

int nn_end(struct nn *n, struct err *e)
{
    /* After an error too: what was queued before it still reads and writes the caller's memory. */
    if (!n->dry)
        nn_done(n, "sync", n->be->sync(n->dev));
    if (!n->rc)
        return 0;
    return err_set(e, n->rc, "operation %s of an image step failed: %s", n->failed,
                   err_name(n->rc));
}

struct tensor nn_tmp(struct nn *n, enum dtype d, int64_t rows, int64_t cols)
{
    size_t bytes, at = 0;
    int i = 0;
    if (n->rc)
        return (struct tensor){0};
    if (rows < 0 || cols < 1 || !ck_mul((size_t)rows, (size_t)cols, &bytes) ||
        !ck_mul(bytes, dtype_bytes(d), &bytes) || !ck_add(bytes, 1, &bytes) ||
        !ck_round_up(bytes, TMP_ALIGN, &bytes)) {
        nn_done(n, "tmp", ERR_LIMIT);
        return (struct tensor){0};
    }
    for (; i < n->mem.n; i++) {
        if (n->mem.live[i].at - at >= bytes)
            break;
        at = n->mem.live[i].at + n->mem.live[i].bytes;
    }
    if (n->mem.n == NN_LIVE || (!n->dry && at + bytes > n->mem.cap)) {
        nn_done(n, "tmp", n->mem.n == NN_LIVE ? ERR_LIMIT : ERR_NOMEM);
        return (struct tensor){0};
    }
    memmove(n->mem.live + i + 1, n->mem.live + i, (size_t)(n->mem.n - i) * sizeof n->mem.live[0]);
    n->mem.live[i].at = at;
    n->mem.live[i].bytes = bytes;
    n->mem.n++;
    if (at + bytes > n->mem.peak)
        n->mem.peak = at + bytes;
    return tensor_2d(d, n->mem.buf, at, rows, cols);
}

void nn_free(struct nn *n, struct tensor *t)
{
    for (int i = 0; t->n_dim && i < n->mem.n; i++)
        if (n->mem.live[i].at == t->off) {
            n->mem.n--;
            memmove(n->mem.live + i, n->mem.live + i + 1,
                    (size_t)(n->mem.n - i) * sizeof n->mem.live[0]);
            break;
        }
    *t = (struct tensor){0};
}

static size_t tensor_size(const struct tensor *t)
{
    size_t n = dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dim; i++)
        n *= (size_t)t->shape[i];
    return n;
}

void nn_put(struct nn *n, const struct tensor *t, const void *src)
{
    if (!n->rc && !n->dry && tensor_size(t))
        nn_done(n, "write", n->be->write(n->dev, t->buf, t->off, src, tensor_size(t)));
}

void nn_get(struct nn *n, const struct tensor *t, void *dst)
{
    if (!n->rc && !n->dry && tensor_size(t))
        nn_done(n, "read", n->be->read(n->dev, t->buf, t->off, dst, tensor_size(t)));
}

struct tensor nn_act(struct nn *n, struct tensor x, enum image_act act, enum dtype to)
{
    struct tensor y = nn_tmp(n, to, x.shape[0], x.shape[1]);
    NN_OP(n, act, .dst = y, .x = x, .act = act);
    return y;
}

void nn_linear_to(struct nn *n, const struct nn_linear *l, struct tensor x, struct tensor dst)
{
    struct tensor h = {0};
    if (n->rc)
        return;
    if (x.dtype != n->mul)
        x = h = nn_act(n, x, IMAGE_ACT_NONE, n->mul);
    NN_OP(n, linear, .dst = dst, .src = x, .w = l->w, .bias = l->bias);
    nn_free(n, &h);
}

struct tensor nn_linear(struct nn *n, const struct nn_linear *l, struct tensor x)
{
    struct tensor y = nn_tmp(n, DT_F32, x.shape[0], l->n_out);
    nn_linear_to(n, l, x, y);
    return y;
}

struct tensor nn_norm_mul(struct nn *n, struct tensor x, const struct nn_norm *w, float eps,
                          bool rms)
{
    struct tensor y = nn_tmp(n, n->mul, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = y, .x = x, .w = w->w, .b = w->b, .rms = rms, .eps = eps,
          .layout = -1);
    return y;
}

struct tensor nn_concat(struct nn *n, struct tensor a, struct tensor b)
{
    int64_t ca = a.shape[1], cb = b.shape[1];
    struct tensor y = nn_tmp(n, DT_F32, a.shape[0], ca + cb);
    NN_OP(n, act, .dst = tensor_cols(y, 0, ca), .x = a);
    NN_OP(n, act, .dst = tensor_cols(y, ca, cb), .x = b);
    return y;
}

/* In floats and in this order, as the reference does it: at t = 999 a phase in doubles differs by 1e-4. */
void nn_sinusoid(float t, int dim, bool flip, float shift, float scale, float max_period,
                 float *dst)
{
    int half = dim / 2;
    float top = (float)-log((double)max_period);
    for (int i = 0; i < half; i++) {
        float f = expf(top * (float)i / ((float)half - shift));
        float a = scale * (t * f);
        dst[flip ? half + i : i] = sinf(a);
        dst[flip ? i : half + i] = cosf(a);
    }
    if (dim % 2)
        dst[dim - 1] = 0;
}
