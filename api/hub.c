/* See hub.h. */
#include "api/hub.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* Names become paths on this machine, so anything odd is left out. */
static bool name_safe(const char *s)
{
    if (!*s || *s == '/' || *s == '.' || strlen(s) > 300 || strstr(s, "..") || strstr(s, "/."))
        return false;
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || strchr("\\:\x7f", *s))
            return false;
    return true;
}

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcasecmp(s + n - k, tail) == 0;
}

/* A whole model in one file: no projector, no part of a split. */
static bool is_gguf(const char *s)
{
    return ends(s, ".gguf") && !strcasestr(s, "mmproj") && !strstr(s, "-of-0");
}

static bool is_part_of_model(const char *s)
{
    static const char *const kinds[] = {".json", ".jinja", ".txt", ".model", ".safetensors"};
    static const char *const other[] = {"onnx/",     "openvino/", "original/", "consolidated",
                                        ".fp16.",    "non_ema",   "flax_",     "README",
                                        ".bf16.saf", "LICENSE",   "coreml/"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strstr(s, other[i]))
            return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (ends(s, kinds[i]))
            return true;
    return false;
}

static const char *best_gguf(const char **name, int n)
{
    static const char *const wish[] = {"q4_k_m", "q4_k_s", "q5_k_m", "q8_0",
                                       "q4_0",   "q6_k",   "bf16",   "f16"};
    for (size_t w = 0; w < sizeof wish / sizeof *wish; w++)
        for (int i = 0; i < n; i++)
            if (is_gguf(name[i]) && strcasestr(name[i], wish[w]))
                return name[i];
    for (int i = 0; i < n; i++)
        if (is_gguf(name[i]))
            return name[i];
    return NULL;
}

/* Copy the safe names of the listing; their number, or ERR_*. */
static int names_read(json_t *root, struct arena *mem, const char ***out, struct err *e)
{
    json_t *list = json_object_get(root, "siblings"), *item;
    size_t i;
    int n = 0;
    if (!json_is_array(list))
        return err_set(e, ERR_PARSE, "the hub's listing has no array 'siblings'");
    const char **name = arena_array(mem, json_array_size(list) + 1, sizeof *name);
    if (!name)
        return err_set(e, ERR_NOMEM, "no memory for the hub's listing");
    json_array_foreach(list, i, item)
    {
        const char *s = json_string_value(json_object_get(item, "rfilename"));
        if (!s || !name_safe(s))
            continue;
        if (!(name[n++] = arena_copy(mem, s, strlen(s))))
            return err_set(e, ERR_NOMEM, "no memory for the hub's listing");
    }
    *out = name;
    return n;
}

static void revision_read(json_t *root, struct api_hub_files *out)
{
    const char *sha = json_string_value(json_object_get(root, "sha"));
    size_t n = sha ? strlen(sha) : 0;
    bool ok = n >= 7 && n <= 64 && strspn(sha, "0123456789abcdef") == n;
    snprintf(out->revision, sizeof out->revision, "%s", ok ? sha : "main");
}

static int pick(json_t *root, struct arena *mem, struct api_hub_files *out, struct err *e)
{
    const char **name = NULL;
    int n = names_read(root, mem, &name, e);
    if (n < 0)
        return n;
    revision_read(root, out);
    for (int i = 0; i < n; i++)
        out->n_gguf += is_gguf(name[i]);
    bool weights = false;
    out->name = name;
    if (out->n_gguf) {
        name[0] = best_gguf(name, n);
        out->n = 1;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (!is_part_of_model(name[i]))
            continue;
        weights = weights || ends(name[i], ".safetensors");
        name[out->n++] = name[i];
    }
    if (!weights)
        return err_set(e, ERR_NOTFOUND, "the repository has no .gguf and no .safetensors file");
    return 0;
}

int api_hub_pick(const char *json, size_t n, struct arena *mem, struct api_hub_files *out,
                 struct err *e)
{
    json_error_t why;
    *out = (struct api_hub_files){0};
    json_t *root = json_loadb(json, n, 0, &why);
    if (!root)
        return err_set(e, ERR_PARSE, "the hub's listing is no JSON: %.80s", why.text);
    int rc = pick(root, mem, out, e);
    json_decref(root);
    return rc;
}
