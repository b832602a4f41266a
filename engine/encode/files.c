/* Which folders and files hold encoders, and what sentence-transformers keeps beside a model: folders N_Pooling,
 * sentence_bert_config.json, config_sentence_transformers.json. Without them: the mean over the tokens, normalised. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/encode/encode.h"
#include "engine/encode/encoder.h"
#include "engine/load/config.h"

static bool path_of(char out[PATH_MAX], const char *dir, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    return n > 0 && n < PATH_MAX && access(out, R_OK) == 0;
}

/* Whether a pooling is said: by a GGUF file's configuration, or by a folder. */
static bool has_pooling(struct config *c, const char *path)
{
    char name[40], at[PATH_MAX];
    if (config_has(c, "pooling_mode"))
        return true;
    for (int i = 0; i <= ENCODE_MODULES_MAX; i++) {
        snprintf(name, sizeof name, "%d_Pooling/config.json", i);
        if (path_of(at, path, name))
            return true;
    }
    return false;
}

const struct encoder_ops *encode__family(struct config *c, const char *path)
{
    static const struct encoder_ops *const all[] = {&encoder_bert, &encoder_modernbert, &encoder_lm,
                                                    &encoder_t5};
    const char *type = config_str(c, "model_type", "");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const char *const *t = all[i]->types; *t; t++)
            if (strcmp(*t, type) == 0)
                return all[i]->needs_pooling && !has_pooling(c, path) ? NULL : all[i];
    return NULL;
}

int encode__config_open(struct config **out, const char *dir, struct err *e)
{
    char path[PATH_MAX];
    struct err local;
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    if (n < 0 || (size_t)n >= sizeof path)
        return err_set(e ? e : &local, ERR_LIMIT, "%.150s: path is too long", dir);
    return config_open(out, path, e ? e : &local);
}

int encode__model_config(struct config **out, const char *path, struct err *e)
{
    struct err local;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        return encode__gguf_config(out, path, e ? e : &local);
    return encode__config_open(out, path, e);
}

/* Language models have such a configuration too: the kind of model decides. */
bool eng_path_is_encoder(const char *path)
{
    struct config *c = NULL;
    bool is = false;
    if (!path || encode__model_config(&c, path, NULL))
        return false;
    is = encode__family(c, path) != NULL;
    config_close(c);
    return is;
}

static int pooling_of(struct config *c, enum eng_pooling *out, struct err *e)
{
    static const struct {
        const char *flag, *word;
        enum eng_pooling pooling;
    } modes[] = {{"pooling_mode_mean_tokens", "mean", ENG_POOL_MEAN},
                 {"pooling_mode_cls_token", "cls", ENG_POOL_CLS},
                 {"pooling_mode_lasttoken", "lasttoken", ENG_POOL_LAST},
                 {"pooling_mode_max_tokens", "max", ENG_POOL_MAX}};
    const char *word = config_str(c, "pooling_mode", "");
    int n = 0;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (config_bool(c, modes[i].flag, false) || strcmp(word, modes[i].word) == 0) {
            *out = modes[i].pooling;
            n++;
        }
    int rc = config_error(c, e);
    if (!rc && n != 1)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "pooling: one of mean, cls, lasttoken and max is expected, %d are set", n);
    return rc;
}

/* The pooling module. Of what may follow it dense layers are computed (dense.c), and every answer is normalised; with
 * another module such a model would give other vectors. */
static int read_modules(const char *dir, struct eng_encoder_info *out, struct err *e)
{
    char path[PATH_MAX], name[40];
    static const char *const unknown[] = {"LayerNorm", "CNN", "LSTM", "WeightedLayerPooling",
                                          "WordWeights"};
    struct config *c = NULL;
    int rc = 0;
    for (int i = 0; i <= ENCODE_MODULES_MAX && !rc; i++) {
        for (size_t k = 0; k < sizeof unknown / sizeof *unknown; k++) {
            snprintf(name, sizeof name, "%d_%s", i, unknown[k]);
            if (path_of(path, dir, name))
                return err_set(e, ERR_UNSUPPORTED, "%s: such a module is not supported", path);
        }
        snprintf(name, sizeof name, "%d_Pooling/config.json", i);
        if (!path_of(path, dir, name))
            continue;
        rc = config_open(&c, path, e);
        if (!rc && (rc = pooling_of(c, &out->pooling, e)))
            err_prefix(e, "%s", path);
        config_close(c);
        c = NULL;
    }
    return rc;
}

static int read_length(const char *dir, struct eng_encoder_info *out, struct err *e)
{
    char path[PATH_MAX];
    struct config *c;
    if (!path_of(path, dir, "sentence_bert_config.json"))
        return 0;
    int rc = config_open(&c, path, e);
    if (rc)
        return rc;
    out->n_tok_max = (int32_t)config_int(c, "max_seq_length", 0, 1, INT32_MAX);
    rc = config_error(c, e);
    config_close(c);
    return rc;
}

/* The prompt named by default_prompt_name. */
static int read_prompt(const char *dir, struct eng_encoder_info *out, struct err *e)
{
    char path[PATH_MAX], key[100];
    struct config *c;
    if (!path_of(path, dir, "config_sentence_transformers.json"))
        return 0;
    int rc = config_open(&c, path, e);
    if (rc)
        return rc;
    snprintf(key, sizeof key, "prompts.%.80s", config_str(c, "default_prompt_name", ""));
    const char *text = key[8] ? config_str(c, key, "") : "";
    rc = config_error(c, e);
    if (!rc && strlen(text) >= sizeof out->prompt)
        rc = err_set(e, ERR_LIMIT, "%s: a prompt of %zu bytes, %zu at most", path, strlen(text),
                     sizeof out->prompt - 1);
    if (!rc)
        snprintf(out->prompt, sizeof out->prompt, "%s", text);
    config_close(c);
    return rc;
}

int encode__files_read(const char *dir, struct config *c, struct eng_encoder_info *out,
                       struct err *e)
{
    if (config_has(c, "pooling_mode")) /* a GGUF file's */
        return pooling_of(c, &out->pooling, e);
    int rc = read_modules(dir, out, e);
    rc = rc ? rc : read_length(dir, out, e);
    return rc ? rc : read_prompt(dir, out, e);
}
