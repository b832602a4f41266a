/* The front side's view of a Hugging Face folder. Of the weights only the safetensors headers are read
 * (8-byte length and JSON), to count parameters. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/text/text_model_impl.h"
#include "engine/text/tok_hf_impl.h"

#define HEADER_MAX   (100u << 20) /* the limit of the format's own library */
#define TEMPLATE_MAX (4u << 20)

/* dir/name into out; a path that does not fit is an error, never cut. */
static int join(char *out, size_t size, const char *dir, const char *name, struct err *e)
{
    int n = snprintf(out, size, "%s/%s", dir, name);
    return n > 0 && (size_t)n < size ? 0 : err_set(e, ERR_LIMIT, "%s: path is too long", dir);
}

/* Whether the folder has such a file. */
static bool have(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return join(path, sizeof path, dir, name, NULL) == 0 && stat(path, &st) == 0;
}

/* JSON file of the folder; absent is 0 with *out NULL. */
static int load_json(const char *dir, const char *name, json_t **out, struct err *e)
{
    char path[PATH_MAX];
    json_error_t je;
    *out = NULL;
    int rc = join(path, sizeof path, dir, name, e);
    if (rc != 0 || !have(dir, name))
        return rc;
    *out = hf__load(path, &je);
    return *out ? 0 : err_set(e, ERR_PARSE, "%s: line %d: %s", path, je.line, je.text);
}

/* The first tokenizer file that the folder has, in order of how much it says. */
static int open_tokenizer(struct text_model *m, const char *dir, struct err *e)
{
    static const struct {
        const char *name;
        int (*open)(struct tokenizer **out, const char *path, struct err *e);
    } kinds[] = {
        {"tokenizer.json", tok_open_hf},   {"tekken.json", tok_open_tekken},
        {"tokenizer.model", tok_open_spm}, {"spiece.model", tok_open_spm},
        {"merges.txt", tok_open_clip},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char path[PATH_MAX];
        if (!have(dir, kinds[i].name))
            continue;
        int rc = join(path, sizeof path, dir, kinds[i].name, e);
        return rc ? rc : kinds[i].open(&m->tok, path, e);
    }
    return err_set(e, ERR_NOTFOUND, "%s: no tokenizer.json, tekken.json or tokenizer.model", dir);
}

/* A text member; an object stands for its `content`. */
static struct view text_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return (struct view){"", 0};
    return (struct view){json_string_value(v), json_string_length(v)};
}

/* chat_template of tokenizer_config.json: a text, or a list of named ones ("default" is ours). */
static struct view config_template(const json_t *cfg)
{
    const json_t *v = json_object_get(cfg, "chat_template");
    size_t i;
    json_t *x;
    json_array_foreach(v, i,
                       x) if (view_is(text_of(x, "name"), "default")) return text_of(x, "template");
    return text_of(cfg, "chat_template");
}

/* chat_template.jinja wins over the config's member, as in the reference library. */
static int read_template(struct text_model *m, const char *dir, const json_t *cfg, struct err *e)
{
    struct view v = config_template(cfg);
    struct buf b = {.limit = TEMPLATE_MAX};
    int rc = 0;
    if (have(dir, "chat_template.jinja")) {
        char path[PATH_MAX];
        rc = join(path, sizeof path, dir, "chat_template.jinja", e);
        rc = rc ? rc : tok__read_file(path, &b, e);
        v = (struct view){buf_cstr(&b), b.len};
        if (rc != 0)
            err_prefix(e, "%s/chat_template.jinja", dir);
    }
    if (rc == 0 && v.len && text__copy(&m->chat_template, v) != 0)
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", dir);
    buf_free(&b);
    return rc;
}

/* eos_token_id of a config: a number or a list of them. */
static void add_stops(struct tokenizer *t, const json_t *cfg)
{
    const json_t *v = json_object_get(cfg, "eos_token_id"), *x = v;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        if (json_is_array(v))
            x = json_array_get(v, i);
        if (json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) <= INT32_MAX)
            tok__add_stop(t, (int32_t)json_integer_value(x));
    }
}

/* A number of generation_config.json; one that no request may have is refused by name. */
static int sampling_num(const json_t *cfg, const char *key, double lo, double hi, double *out,
                        struct err *e)
{
    const json_t *v = json_object_get(cfg, key);
    if (!v || json_is_null(v))
        return 0;
    double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= lo && d <= hi))
        return err_set(e, ERR_INVAL, "generation_config.json: %s is no number from %g to %g", key,
                       lo, hi);
    *out = d;
    return 0;
}

/* Tokens that end an answer, and defaults of sampling: of generation_config.json, else of config.json. */
static int read_generation(struct text_model *m, const char *dir, struct err *e)
{
    json_t *gen = NULL, *cfg = NULL;
    struct text_sampling *s = &m->sampling;
    double k = -1;
    int rc = load_json(dir, "generation_config.json", &gen, e);
    rc = rc ? rc : load_json(dir, "config.json", &cfg, e);
    if (!rc) {
        add_stops(m->tok, json_object_get(gen, "eos_token_id") ? gen : cfg);
        rc = sampling_num(gen, "temperature", 0, 2, &s->temperature, e);
    }
    rc = rc ? rc : sampling_num(gen, "top_p", 0, 1, &s->top_p, e);
    rc = rc ? rc : sampling_num(gen, "min_p", 0, 1, &s->min_p, e);
    rc = rc ? rc : sampling_num(gen, "repetition_penalty", 1e-3, 100, &s->repetition_penalty, e);
    rc = rc ? rc : sampling_num(gen, "top_k", -1, INT32_MAX, &k, e);
    s->top_k = (int32_t)k;
    json_decref(gen);
    json_decref(cfg);
    return rc;
}

/* Architecture, name and context length; a model with a vision part keeps the latter in text_config. */
static int read_config(struct text_model *m, const char *dir, struct err *e)
{
    json_t *cfg;
    int rc = load_json(dir, "config.json", &cfg, e);
    if (rc != 0)
        return rc;
    const json_t *text = json_object_get(cfg, "text_config");
    const json_t *n = json_object_get(cfg, "max_position_embeddings");
    if (!json_is_integer(n))
        n = json_object_get(text, "max_position_embeddings");
    if (json_is_integer(n) && json_integer_value(n) > 0 && json_integer_value(n) <= INT32_MAX)
        m->n_ctx_train = (int32_t)json_integer_value(n);
    rc = text__copy(&m->arch, text_of(cfg, "model_type"));
    rc = rc ? rc : text__copy(&m->name, text_of(cfg, "_name_or_path"));
    json_decref(cfg);
    return rc ? err_set(e, rc, "%s: out of memory", dir) : 0;
}

/* ---- parameters ---- */

static int add_header(struct text_model *m, const char *path, FILE *f, struct err *e)
{
    uint8_t len[8];
    if (fread(len, 1, sizeof len, f) != sizeof len)
        return err_set(e, ERR_PARSE, "%s: no safetensors header", path);
    if (memcmp(len, "version ", sizeof len) == 0)
        return err_set(e, ERR_PARSE,
                       "%s: a pointer of Git LFS, not the file: `git lfs pull` fetches what it "
                       "stands for",
                       path);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)len[i] << (8 * i);
    char *text = n <= HEADER_MAX ? mem_alloc((size_t)n) : NULL;
    if (!text)
        return err_set(e, n <= HEADER_MAX ? ERR_NOMEM : ERR_LIMIT,
                       "%s: header of %llu bytes (limit %u)", path, (unsigned long long)n,
                       HEADER_MAX);
    json_t *root = fread(text, 1, (size_t)n, f) == n ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    free(text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_PARSE, "%s: malformed safetensors header", path);
    }
    const char *key;
    json_t *v;
    json_object_foreach(root, key, v)
    {
        const json_t *shape = json_object_get(v, "shape");
        int64_t count = json_is_array(shape) ? 1 : 0;
        for (size_t i = 0; i < json_array_size(shape); i++)
            if (__builtin_mul_overflow(count, json_integer_value(json_array_get(shape, i)), &count))
                count = 0; /* a wrong shape is the engine's to report */
        if (__builtin_add_overflow(m->n_params, count, &m->n_params))
            m->n_params = INT64_MAX;
    }
    json_decref(root);
    return 0;
}

/* One weight file: its size and its header. */
static int add_file(struct text_model *m, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    int rc = join(path, sizeof path, dir, name, e);
    if (rc != 0)
        return rc;
    FILE *f = fopen(path, "rbe");
    if (!f || fstat(fileno(f), &st) != 0)
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else
        rc = add_header(m, path, f, e);
    if (rc == 0)
        m->file_bytes += st.st_size;
    if (f)
        fclose(f);
    return rc;
}

/* All *.safetensors of the folder; none is fine (a tokenizer alone can be served by tests). */
static int add_weights(struct text_model *m, const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    int rc = 0;
    for (struct dirent *x; rc == 0 && (x = readdir(d));) {
        const char *dot = strrchr(x->d_name, '.');
        if (dot && strcmp(dot, ".safetensors") == 0)
            rc = add_file(m, dir, x->d_name, e);
    }
    closedir(d);
    return rc;
}

/* Texts named by tokenizer_config.json win over the tokenizer's ids: templates compare with them. */
static int read_tokens(struct text_model *m, const json_t *cfg)
{
    const struct {
        const char *key;
        char **out;
    } names[] = {
        {"bos_token", &m->bos_token},
        {"eos_token", &m->eos_token},
        {"unk_token", &m->unk_token},
        {"pad_token", &m->pad_token},
    };
    int rc = text__token_texts(m, -1);
    for (size_t i = 0; rc == 0 && i < sizeof names / sizeof names[0]; i++) {
        struct view v = text_of(cfg, names[i].key);
        if (v.len)
            rc = text__copy(names[i].out, v);
    }
    return rc;
}

int text__open_hf(struct text_model *m, const char *dir, struct err *e)
{
    json_t *cfg = NULL;
    int rc = read_config(m, dir, e);
    rc = rc ? rc : load_json(dir, "tokenizer_config.json", &cfg, e);
    rc = rc ? rc : open_tokenizer(m, dir, e);
    rc = rc ? rc : read_generation(m, dir, e);
    rc = rc ? rc : text__find_fim(m, NULL, e);
    rc = rc ? rc : read_template(m, dir, cfg, e);
    rc = rc ? rc : add_weights(m, dir, e);
    if (rc == 0 && read_tokens(m, cfg) != 0)
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", dir);
    json_decref(cfg);
    return rc;
}
