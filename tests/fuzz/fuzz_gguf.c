/* GGUF files: whatever is accepted can be read to its last value and tensor byte. */
#include "tests/fuzz/fuzz.h"

#include "engine/base/err.h"
#include "engine/load/gguf.h"

#include <sys/mman.h>
#include <unistd.h>

const char *const fuzz_seeds[] = {"tests/data/gguf-tiny/bad-[!e]*.gguf*",
                                  "tests/data/gguf-tiny/tiny-*.gguf.xz", NULL};

static volatile uint64_t sink;

static void walk(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        for (uint64_t k = 0; kv->type == GGUF_ARRAY && k < kv->n; k++) {
            if (kv->elem == GGUF_STRING) {
                struct view s = gguf_arr_str(kv, k);
                sink += s.len ? (uint8_t)s.p[s.len - 1] : 0;
            } else {
                sink += gguf_arr_f32(kv, k) > 0;
            }
        }
    }
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sink += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1];
    }
}

static void getters(const struct gguf *g)
{
    struct err e;
    uint32_t u;
    float f;
    bool b;
    struct view v;
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        char key[64];
        struct view k = gguf_kv_at(g, i)->key;
        snprintf(key, sizeof key, "%.*s", k.len < 63 ? (int)k.len : 63, k.p);
        sink += (uint64_t)gguf_get_u32(g, key, &u, &e) + (uint64_t)gguf_get_f32(g, key, &f, &e) +
                (uint64_t)gguf_get_bool(g, key, &b, &e);
        if (gguf_get_str(g, key, &v, &e) == 0 && v.len)
            sink += (uint8_t)v.p[v.len - 1];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    struct gguf *g = NULL;
    struct err e = {0};
    if (fd < 0) {
        fd = memfd_create("gguf", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    CHECK(ftruncate(fd, (off_t)n) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    int rc = gguf_open(&g, path, &e);
    CHECK(rc == 0 ? g != NULL : g == NULL && e.code == rc && rc != ERR_NOMEM && e.text[0]);
    if (g) {
        walk(g);
        getters(g);
    }
    gguf_close(g);
    return 0;
}
