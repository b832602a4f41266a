/* Pieces that families of encoders share. See encoder.h. */
#include "engine/encode/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

int encoder_act(const char *name, enum image_act *out, struct err *e)
{
    static const struct {
        const char *name;
        enum image_act act;
    } acts[] = {{"gelu", IMAGE_ACT_GELU_ERF},       {"gelu_new", IMAGE_ACT_GELU_TANH},
                {"gelu_fast", IMAGE_ACT_GELU_TANH}, {"gelu_pytorch_tanh", IMAGE_ACT_GELU_TANH},
                {"relu", IMAGE_ACT_RELU},           {"silu", IMAGE_ACT_SILU},
                {"swiglu", IMAGE_ACT_SILU}};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(acts[i].name, name) == 0) {
            *out = acts[i].act;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "config.json: hidden_act '%.60s' is not supported", name);
}

int encoder_need(struct config *c, const char *key, int max)
{
    config_need(c, key);
    return (int)config_int(c, key, 1, 1, max);
}

int encoder_labels(struct config *c)
{
    const char *arch = config_len(c, "architectures") ? config_str_at(c, "architectures", 0) : "";
    if (!arch || !strstr(arch, "ForSequenceClassification"))
        return 0;
    char key[32];
    int n = 0;
    for (;; n++) {
        snprintf(key, sizeof key, "id2label.%d", n);
        if (!config_has(c, key))
            break;
    }
    return (int)config_int(c, "num_labels", n ? n : 2, 1, 4096);
}

bool encoder_raw_scores(struct config *c)
{
    return strstr(config_str(c, "sentence_transformers.activation_fn",
                             config_str(c, "sbert_ce_default_activation_function", "")),
                  "Identity") != NULL;
}

struct tensor encoder_put(struct nn *n, enum dtype d, int64_t rows, int64_t cols, const void *v)
{
    struct tensor t = nn_tmp(n, d, rows, cols);
    if (!n->rc)
        nn_put(n, &t, v);
    return t;
}

void encoder_add(struct nn *n, struct tensor x, struct tensor *y)
{
    NN_OP(n, gate_add, .x = x, .y = *y, .factor = 1, .layout = -1);
    nn_free(n, y);
}

void encoder_rotation(struct nn *n, const struct encoder_batch *b, int half, float theta,
                      struct tensor cs[2])
{
    size_t rows = (size_t)b->start[b->n], all = rows * (size_t)half;
    float *v = n->rc || n->dry ? NULL : mem_alloc(2 * all * sizeof *v);
    if (!n->rc && !n->dry && !v) {
        n->rc = ERR_NOMEM;
        n->failed = "rotation";
    }
    for (size_t i = 0; v && i < all; i++) {
        size_t k = i % (size_t)half;
        float f = 1 / powf(theta, (float)(2 * k) / (float)(2 * half));
        float a = (float)b->pos[i / (size_t)half] * f;
        v[i] = cosf(a);
        v[all + i] = sinf(a);
    }
    cs[0] = encoder_put(n, DT_F32, (int64_t)rows, half, v);
    cs[1] = encoder_put(n, DT_F32, (int64_t)rows, half, v ? v + all : NULL);
    free(v);
}
