/* Parsing JSON when memory may run out. jansson 2.14 does not look whether the text of a token could grow: a failed
 * growth drops bytes from the text without a word, and with the closing quote dropped its decoder runs past the
 * buffer. So an allocation that fails while a text is parsed is served from a spare block, the text is ended
 * there, and the result is thrown away. */
#include <stdint.h>

#include "api/api_impl.h"
#include "engine/base/mem.h"

enum {
    SPARE_MIN = 64 << 10
}; /* bytes; values of the at most 1,024 bytes that are read after a failure */

/* One parse at a time in each thread. */
static _Thread_local struct {
    char *p; /* NULL outside a parse */
    size_t used, size;
    bool failed; /* an allocation failed in this parse */
} spare;

static void *json_take(size_t n)
{
    void *p = mem_alloc(n);
    if (p || !spare.p)
        return p;
    spare.failed = true;
    if (!ck_round_up(n ? n : 1, 16, &n) || n > spare.size - spare.used)
        return NULL;
    p = spare.p + spare.used;
    spare.used += n;
    return p;
}

static void json_drop(void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)spare.p;
    if (!spare.p || at < from || at - from >= spare.size)
        free(p);
}

void api__json_init(void)
{
    json_set_alloc_funcs(json_take, json_drop);
}

static size_t feed(void *dst, size_t max, void *arg)
{
    struct view *left = arg;
    size_t n = left->len < max ? left->len : max;
    if (spare.failed)
        return 0;
    memcpy(dst, left->p, n);
    left->p += n;
    left->len -= n;
    return n;
}

int api__json_load(json_t **out, struct view text, size_t flags, json_error_t *je)
{
    size_t n;
    CHECK(!spare.p);
    *out = NULL;
    /* The longest token grows by doubling: its last growth is under twice the text. */
    if (!ck_mul(text.len, 2, &n) || !ck_add(n, SPARE_MIN, &n) || !(spare.p = mem_alloc(n)))
        return ERR_NOMEM;
    spare.size = n;
    spare.used = 0;
    spare.failed = false;
    json_t *v = json_load_callback(feed, &text, flags, je);
    bool failed = spare.failed;
    if (failed) {
        json_decref(v);
        v = NULL;
    }
    free(spare.p);
    spare.p = NULL;
    *out = v;
    return failed ? ERR_NOMEM : v ? 0 : ERR_PARSE;
}
