/* See kind.h. */
#include "engine/load/kind.h"

#include <stdbool.h>
#include <string.h>

#include "engine/load/map.h"
#include "engine/load/safetensors.h"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

int model_file_gguf(const char *path, struct err *e)
{
    struct file_map m;
    struct safetensors *s = NULL;
    struct err local;
    if (!e)
        e = &local;
    if (file_map_open(&m, path, e))
        return 0; /* the caller's own open says the same, with the path */
    bool gguf = m.size >= 4 && memcmp(m.p, "GGUF", 4) == 0;
    bool other = !gguf && (ends_with(path, ".safetensors") || safetensors_sniff(m.p, m.size));
    file_map_close(&m);
    if (!other)
        return 0;
    int rc = safetensors_open(&s, path, e);
    if (rc)
        return rc;
    err_set(
        e, ERR_UNSUPPORTED,
        "a safetensors file of %zu tensors that is no image model; of a language model give its "
        "folder or a GGUF file",
        safetensors_n_tensor(s));
    safetensors_close(s);
    return file_map_prefix(e, path);
}
