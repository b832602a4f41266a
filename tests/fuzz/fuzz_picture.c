/* Picture files: whatever is accepted has all its pixels, fits the limits, can be resampled, and survives being written without
 * loss and read again. */
#include "tests/fuzz/fuzz.h"

#include "api/picture.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct picture_limits limits = {SIDE, PIXELS, 8u << 20};
    struct picture p;
    struct err e = {0};
    int rc = picture_decode(&p, data, n, &limits, &e);
    if (rc) {
        CHECK(e.code == rc && e.text[0] && !p.rgba);
        CHECK(rc == ERR_PARSE || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT);
        return 0;
    }
    CHECK(p.width >= 1 && p.height >= 1 && p.width <= SIDE && p.height <= SIDE);
    CHECK(p.width * p.height <= PIXELS);
    check_again(&p);
    picture_free(&p);
    return 0;
}
