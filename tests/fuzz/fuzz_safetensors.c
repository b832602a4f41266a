/* Safetensors files: whatever is accepted can be read to its last byte. */
#include "tests/fuzz/fuzz.h"

#include "engine/load/safetensors.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const fuzz_seeds[] = {"tests/data/safetensors/*.safetensors", NULL};

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    struct safetensors *s = NULL;
    struct err e = {0};
    if (fd < 0) {
        fd = memfd_create("safetensors", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    CHECK(ftruncate(fd, (off_t)n) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    int rc = safetensors_open(&s, path, &e);
    CHECK(rc == 0 ? s != NULL : s == NULL && e.code == rc && rc != ERR_NOMEM && e.text[0]);
    for (size_t i = 0; s && i < safetensors_n_tensor(s); i++) {
        const struct st_tensor *t = safetensors_tensor_at(s, i);
        CHECK(safetensors_tensor_find(s, t->name.p) == t);
        for (size_t k = 0; k < t->bytes; k++)
            sink += t->data[k];
    }
    safetensors_close(s);
    return 0;
}
