/* What a window says: segments of tokens with their text. See model.h. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "engine/audio/model.h"
#include "engine/base/arena.h"
#include "engine/base/mem.h"

struct aud_piece *aud_piece_new(int cap)
{
    struct aud_piece *p = mem_calloc(1, sizeof *p);
    struct arena *a = p ? p->arena = mem_calloc(1, sizeof *a) : NULL;
    if (a)
        p->seg = arena_array(a, (size_t)cap, sizeof *p->seg);
    if (a && p->seg)
        return p;
    aud_piece_free(p);
    return NULL;
}

struct arena *aud_piece_arena(struct aud_piece *p)
{
    return p->arena;
}

void aud_piece_free(struct aud_piece *p)
{
    if (p && p->arena)
        arena_free(p->arena);
    if (p)
        free(p->arena);
    free(p);
}

int aud_text(const struct audio_model *m, const int32_t *tok, int n, struct buf *b)
{
    for (int i = 0; i < n; i++) {
        struct view v = tok[i] < m->t.eot ? tok_bytes(m->tok, tok[i], false) : (struct view){0};
        buf_add(b, v.p ? v.p : "", v.len);
    }
    return b->failed ? ERR_NOMEM : 0;
}

/* A window's text is some kilobytes: deflate's memory is the larger part. */
float aud_compression(const char *s, size_t n)
{
    uLong len = compressBound((uLong)n);
    Bytef *out = n ? mem_alloc(len) : NULL;
    float r = 0;
    if (out && compress2(out, &len, (const Bytef *)s, (uLong)n, Z_DEFAULT_COMPRESSION) == Z_OK)
        r = (float)((double)n / (double)len);
    free(out);
    return r;
}

/* Characters that a segment's end cut in two become U+FFFD, as in the reference's decoding. */
static char *clean(struct arena *a, const char *s, size_t n)
{
    struct buf b = {0};
    for (size_t i = 0; i < n;) {
        int k = utf8_len(s + i, n - i);
        if (k > 0) {
            buf_add(&b, s + i, (size_t)k);
            i += (size_t)k;
        } else {
            buf_str(&b, "\xef\xbf\xbd");
            i++;
            while (i < n && ((unsigned char)s[i] & 0xc0) == 0x80)
                i++;
        }
    }
    char *t = b.failed ? NULL : arena_copy(a, buf_cstr(&b), b.len);
    buf_free(&b);
    return t;
}

int aud_piece_add(struct aud_piece *p, const struct aud_job *j, double start, double end,
                  const int32_t *tok, int n_tok)
{
    struct arena *a = p->arena;
    struct aud_segment *s = &p->seg[p->n];
    struct buf b = {0};
    int32_t *ids = arena_array(a, (size_t)n_tok + 1, sizeof *ids);
    char *text = ids && !aud_text(j->m, tok, n_tok, &b) ? clean(a, buf_cstr(&b), b.len) : NULL;
    buf_free(&b);
    if (!text)
        return ERR_NOMEM;
    memcpy(ids, tok, (size_t)n_tok * sizeof *ids);
    bool empty = start >= end || strspn(text, " \t\r\n") == strlen(text);
    *s = (struct aud_segment){.seek = j->seek,
                              .start = start,
                              .end = end,
                              .text = empty ? "" : text,
                              .tok = ids,
                              .n_tok = empty ? 0 : n_tok,
                              .heat = j->p.heat[j->heat],
                              .no_speech = j->no_speech};
    p->n++;
    return 0;
}
