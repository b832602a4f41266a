/* See plan.h. */
#include "server/plan.h"
#include "server/models.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

static void usage(FILE *f)
{
    fputs("usage: stepd plan [--json] [options of serve] MODEL...\n"
          "Prints the memory that serving each model would take, without loading it.\n",
          f);
}

/* The word, or NULL for the one that stands for the default. */
static const char *given(const char *word, const char *none)
{
    return strcmp(word, none) == 0 ? NULL : word;
}

void srv_engine_options(const struct conf *c, const char *path, struct eng_opts *o)
{
    *o = (struct eng_opts){.path = path,
                           .device = given(c->device, "auto"),
                           .isa = given(c->isa, "auto"),
                           .loose = !c->batch_invariant,
                           .n_threads = (int)c->threads,
                           .null_step_us = (int64_t)(c->null_step * 1e6),
                           .no_pin = !c->pin,
                           .n_ctx = (int32_t)c->ctx_size,
                           .kv_bytes = (size_t)c->kv_bytes,
                           .n_state = (int)c->state_slots,
                           .quantize = given(c->quantize, "none"),
                           .kv_dtype = given(c->kv_dtype, "auto"),
                           .max_seqs = (int)c->max_sequences,
                           .max_rows = (int)c->step_tokens,
                           .work_bytes = (size_t)c->image_work_bytes,
                           .cond_bytes = (size_t)c->image_prompt_cache_bytes,
                           .max_audio = (int)c->max_running_audio};
    if (strcmp(c->precision, "f32") == 0)
        o->precision = PRECISION_F32;
    else if (strcmp(c->precision, "int8") == 0)
        o->precision = PRECISION_INT8;
}

int srv_refiner_option(const struct conf *c, const char *path, char *buf, size_t n,
                       struct eng_opts *o, struct err *e)
{
    if (!*c->image_refiner || !eng_path_is_image(path))
        return 0;
    o->refiner = buf;
    return srv_model_resolve(c->image_refiner, *c->models_dir ? c->models_dir : NULL, buf, n, e);
}

/* "name=path" of serve: the path. */
static const char *model_argument(const char *s)
{
    const char *eq = strchr(s, '=');
    return eq && !memchr(s, '/', (size_t)(eq - s)) ? eq + 1 : s;
}

static void json_print(struct buf *b, const char *path, const struct eng_memory *m)
{
    buf_str(b, "{\"model\":");
    buf_json(b, path, strlen(path));
    buf_fmt(b,
            ",\"file_bytes\":%zu,\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"work_bytes\":%zu,"
            "\"total_bytes\":%zu,\"available_bytes\":%zu,\"kv_bytes_per_token\":%zu,"
            "\"context_tokens\":%d,\"kv_blocks\":%d",
            m->file, m->weights, m->kv, m->work, m->total, m->available, m->kv_per_token, m->n_ctx,
            m->n_block);
    if (m->state)
        buf_fmt(b, ",\"state_bytes\":%zu", m->state);
    if (m->image_size)
        buf_fmt(b,
                ",\"image_size\":%d,\"image_encode_bytes\":%zu,\"image_denoise_bytes\":%zu,"
                "\"image_decode_bytes\":%zu,\"image_decode_tiled_bytes\":%zu",
                m->image_size, m->image_encode, m->image_denoise, m->image_decode,
                m->image_decode_tiled);
    buf_char(b, '}');
}

static void image_print(struct buf *b, const struct eng_memory *m)
{
    const double mib = 1024.0 * 1024.0;
    buf_fmt(b, "  picture         %10d pixels a side; work memory of one:\n", m->image_size);
    buf_fmt(b, "    prompts       %10.1f MiB\n", (double)m->image_encode / mib);
    buf_fmt(b, "    denoising     %10.1f MiB\n", (double)m->image_denoise / mib);
    buf_fmt(b, "    decoding      %10.1f MiB, in tiles %.1f MiB\n", (double)m->image_decode / mib,
            (double)m->image_decode_tiled / mib);
}

static void text_print(struct buf *b, const char *path, const struct eng_memory *m)
{
    const double mib = 1024.0 * 1024.0;
    buf_fmt(b, "%s\n", path);
    buf_fmt(b, "  file            %10.1f MiB\n", (double)m->file / mib);
    buf_fmt(b, "  weights         %10.1f MiB\n", (double)m->weights / mib);
    if (!m->image_size)
        buf_fmt(b, "  KV cache        %10.1f MiB  %d blocks, %zu bytes a token\n",
                (double)m->kv / mib, m->n_block, m->kv_per_token);
    if (m->state)
        buf_fmt(b, "  states          %10.1f MiB\n", (double)m->state / mib);
    buf_fmt(b, "  work space      %10.1f MiB\n", (double)m->work / mib);
    buf_fmt(b, "  total           %10.1f MiB\n", (double)m->total / mib);
    buf_fmt(b, "  available       %10.1f MiB\n", (double)m->available / mib);
    if (m->image_size)
        image_print(b, m);
    else
        buf_fmt(b, "  context         %10d tokens\n", m->n_ctx);
}

static int model_plan(const struct conf *c, const char *arg, bool json, struct buf *out,
                      struct err *e)
{
    char path[4096], refiner[4096];
    struct eng_opts o;
    struct eng_memory m;
    int rc = srv_model_resolve(model_argument(arg), *c->models_dir ? c->models_dir : NULL, path,
                               sizeof path, e);
    if (rc)
        return rc;
    srv_engine_options(c, path, &o);
    rc = srv_refiner_option(c, path, refiner, sizeof refiner, &o, e);
    if (!rc)
        rc = eng_memory_plan(&o, &m, e);
    if (rc)
        return rc;
    (json ? json_print : text_print)(out, path, &m);
    return 0;
}

/* Errors of the file's own structure name it already. */
static void complain(const char *model, const struct err *e)
{
    if (strncmp(e->text, model, strlen(model)) == 0)
        fprintf(stderr, "stepd plan: %s\n", e->text);
    else
        fprintf(stderr, "stepd plan: %s: %s\n", model, e->text);
}

static int models_plan(const struct conf *c, bool json)
{
    struct buf out = {0};
    int rc = 0;
    for (int i = 0; i < c->model.n && rc == 0; i++) {
        struct err e = {0};
        if (json)
            buf_char(&out, i ? ',' : '[');
        rc = model_plan(c, c->model.v[i], json, &out, &e);
        if (rc)
            complain(c->model.v[i], &e);
    }
    if (rc == 0 && !out.failed)
        printf("%s%s", buf_cstr(&out), json ? "]\n" : "");
    rc = rc || out.failed;
    buf_free(&out);
    return rc ? 1 : 0;
}

int srv_plan_main(int argc, char **argv)
{
    struct conf *c = NULL;
    struct err e = {0};
    bool json = false;
    char **rest = calloc((size_t)argc + 1, sizeof *rest);
    int n = 0;
    for (int i = 1; rest && i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            rest[n++] = argv[i];
    }
    int rc = rest ? conf_parse(&c, n, rest, environ, &e) : err_set(&e, ERR_NOMEM, "no memory");
    free(rest);
    if (rc) {
        fprintf(stderr, "stepd plan: %s\n", e.text);
        return 2;
    }
    int status = 2;
    if (c->action == CONF_HELP) {
        usage(stdout);
        status = 0;
    } else if (c->model.n == 0)
        usage(stderr);
    else
        status = models_plan(c, json);
    conf_free(c);
    return status;
}
