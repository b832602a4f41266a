/* See inspect.h. */
#include "server/inspect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/tools.h"

static int inspect_usage(FILE *f, int code)
{
    fputs("usage: stepd inspect [--json] FILE\n"
          "Prints a model file's metadata, its tensors with shapes, types and bytes, and the "
          "memory that\n"
          "serving it would take. FILE: a GGUF file, a safetensors file, or a folder.\n",
          f);
    return code;
}

/* A file that is no model (a part of one, an adapter) is shown all the same; the plan then says why there is none. */
static void plan_put(struct buf *b, const char *path, bool json)
{
    struct eng_opts o = {.path = path};
    struct eng_memory m;
    struct err e = {0};
    int rc = eng_memory_plan(&o, &m, &e);
    if (json && rc) {
        buf_str(b, ",\"plan_error\":");
        buf_json(b, e.text, strlen(e.text));
    } else if (json) {
        buf_fmt(b,
                ",\"plan\":{\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"work_bytes\":%zu,"
                "\"total_bytes\":%zu,\"context_tokens\":%d}",
                m.weights, m.kv, m.work, m.total, m.n_ctx);
    } else if (rc) {
        buf_fmt(b, "plan: none: %s\n", e.text);
    } else {
        buf_fmt(b,
                "plan: weights %zu, KV cache %zu, work space %zu, total %zu bytes; context %d "
                "tokens\n",
                m.weights, m.kv, m.work, m.total, m.n_ctx);
    }
}

int srv_inspect_main(int argc, char **argv)
{
    bool json = false;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--help") == 0)
            return inspect_usage(stdout, 0);
        else if (path || argv[i][0] == '-')
            return inspect_usage(stderr, 2);
        else
            path = argv[i];
    }
    if (!path)
        return inspect_usage(stderr, 2);
    struct buf b = {0};
    struct err e = {0};
    int rc = tools_inspect(path, json, &b, &e);
    if (rc) {
        fprintf(stderr, "stepd inspect: %s\n", e.text);
        buf_free(&b);
        return 1;
    }
    if (json)
        b.len--; /* the object goes on */
    plan_put(&b, path, json);
    if (json)
        buf_str(&b, "}\n");
    fwrite(b.p, 1, b.len, stdout);
    buf_free(&b);
    return fflush(stdout) ? 1 : 0;
}

static int quantize_usage(FILE *f, int code)
{
    struct buf types = {0};
    tools_quantize_types(&types);
    fprintf(f,
            "usage: stepd quantize [--quiet] IN OUT TYPE\n"
            "Writes the GGUF file or Hugging Face folder IN as a GGUF file with its matrices in a type.\n"
            "types: %s\n",
            buf_cstr(&types));
    buf_free(&types);
    return code;
}

static void progress(void *arg, int i, int n, const char *line)
{
    (void)arg;
    bool terminal = isatty(STDERR_FILENO);
    fprintf(stderr, terminal ? "\r\033[K[%d/%d] %s%s" : "[%d/%d] %s%s", i, n, line,
            terminal && i < n ? "" : "\n");
}

int srv_quantize_main(int argc, char **argv)
{
    const char *arg[3];
    int n = 0;
    bool quiet = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return quantize_usage(stdout, 0);
        if (strcmp(argv[i], "--quiet") == 0)
            quiet = true;
        else if (n == 3 || argv[i][0] == '-')
            return quantize_usage(stderr, 2);
        else
            arg[n++] = argv[i];
    }
    if (n != 3)
        return quantize_usage(stderr, 2);
    struct err e = {0};
    int rc = tools_quantize(arg[0], arg[1], arg[2], quiet ? NULL : progress, NULL, &e);
    if (rc)
        fprintf(stderr, "stepd quantize: %s\n", e.text);
    return rc ? 1 : 0;
}
