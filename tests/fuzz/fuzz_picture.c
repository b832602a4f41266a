/* Picture files: whatever is accepted has all its pixels, fits the limits, can be resampled, and survives being written without
 * loss and read again. */
#include "tests/fuzz/fuzz.h"

#include "api/picture.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Small files of every kind: large ones leave little to the mutations. */
const char *const fuzz_seeds[] = {"tests/data/image/odd/one-pixel.png",
                                  "tests/data/image/odd/cat-gray*.png",
                                  "tests/data/image/odd/cat-exif*",
                                  "tests/data/image/odd/cat-rgb16-trns.png",
                                  "tests/data/image/odd/cat-la.png",
                                  "tests/data/image/odd/astronaut-palette-trns.png",
                                  "tests/data/image/odd/astronaut*.webp",
                                  "tests/data/image/odd/cat-anim-offset.webp",
                                  "tests/data/image/odd/rocket-anim.webp",
                                  "tests/data/image/odd/rocket-exif*.jpg",
                                  "tests/data/image/odd/cat-restart.jpg",
                                  "tests/data/image/odd/coffee-progressive.jpg",
                                  "tests/data/image/odd/bad-bomb.png",
                                  "tests/data/image/odd/coffee-cmyk-plain.jpg",
                                  NULL};

enum { SIDE = 400, PIXELS = 60000 };

static void check_again(const struct picture *p)
{
    struct picture_encode o = {PICTURE_PNG, 0, "fuzz"};
    struct buf file = {0};
    struct picture q, half;
    struct err e = {0};
    size_t n = (size_t)p->width * (size_t)p->height * 4;
    CHECK(picture_write(&file, p->rgba, p->width, p->height, true, &o, &e) == 0);
    CHECK(picture_decode(&q, file.p, file.len, NULL, &e) == 0);
    CHECK(q.width == p->width && q.height == p->height && memcmp(q.rgba, p->rgba, n) == 0);
    CHECK(picture_resize(&half, p, (p->width + 1) / 2, p->height + 3) == 0);
    picture_free(&half);
    picture_free(&q);
    buf_free(&file);
}

static uint32_t crc(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

/* Right checksums for whatever chunks a PNG file has now: a mutation would get no further than to a wrong one. */
static void mend(uint8_t *p, size_t n)
{
    for (size_t at = 8; at + 12 <= n;) {
        size_t len =
            (size_t)p[at] << 24 | (size_t)p[at + 1] << 16 | (size_t)p[at + 2] << 8 | p[at + 3];
        if (len > n - at - 12)
            return;
        uint32_t c = crc(p + at + 4, len + 4);
        for (int i = 0; i < 4; i++)
            p[at + 8 + len + (size_t)i] = (uint8_t)(c >> (24 - 8 * i));
        at += 12 + len;
    }
}

static void one(const uint8_t *data, size_t n)
{
    static const struct picture_limits limits = {SIDE, PIXELS, 8u << 20};
    struct picture p;
    struct err e = {0};
    int rc = picture_decode(&p, data, n, &limits, &e);
    if (rc) {
        CHECK(e.code == rc && e.text[0] && !p.rgba);
        CHECK(rc == ERR_PARSE || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT);
        return;
    }
    CHECK(p.width >= 1 && p.height >= 1 && p.width <= SIDE && p.height <= SIDE);
    CHECK(p.width * p.height <= PIXELS);
    check_again(&p);
    picture_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    one(data, n);
    if (n > 8 && memcmp(data, "\x89PNG", 4) == 0) {
        uint8_t *copy = memcpy(xmalloc(n), data, n);
        mend(copy, n);
        one(copy, n);
        free(copy);
    }
    return 0;
}
