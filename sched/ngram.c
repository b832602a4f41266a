/* See ngram.h. */
#include "sched/ngram.h"

#include <stddef.h>
#include <stdlib.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"

#define SLOTS_MAX (1 << 16)

int ngram_open(struct ngram *x, int32_t n_max)
{
    size_t n = 64;
    while (n < SLOTS_MAX && (int64_t)n < 4 * (int64_t)n_max)
        n *= 2;
    *x = (struct ngram){.mask = (uint32_t)n - 1};
    x->slot = mem_calloc(n, sizeof *x->slot);
    return x->slot ? 0 : ERR_NOMEM;
}

void ngram_close(struct ngram *x)
{
    free(x->slot);
    *x = (struct ngram){0};
}

/* The slot of the run of len tokens before tok[n]. Clients choose the tokens, but all that they can reach by equal hashes
 * is that their own runs are forgotten. */
static uint32_t place(const struct ngram *x, const int32_t *tok, int32_t n, int32_t len)
{
    uint64_t h = (uint64_t)len;
    for (int32_t i = n - len; i < n; i++)
        h = (h ^ (uint32_t)tok[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40) & x->mask;
}

void ngram_extend(struct ngram *x, const int32_t *tok, int32_t n)
{
    for (; x->n < n; x->n++)
        for (int32_t len = NGRAM_MIN; len <= NGRAM_MAX && len <= x->n; len++)
            x->slot[place(x, tok, x->n, len)] = x->n;
}

int32_t ngram_equal(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b, int32_t most)
{
    int32_t n = 0;
    while (n < most && n < n_a && n < n_b && a[n_a - 1 - n] == b[n_b - 1 - n])
        n++;
    return n;
}

int32_t ngram_find(const struct ngram *x, const int32_t *tok, int32_t n, int32_t most, int32_t *len)
{
    for (int32_t k = NGRAM_MAX; k >= NGRAM_MIN; k--) {
        int32_t at = k <= n ? x->slot[place(x, tok, n, k)] : 0;
        if (!at)
            continue;
        *len = ngram_equal(tok, at, tok, n, most);
        if (*len >= k)
            return at;
    }
    return -1;
}
