/* Characters as bytes: UTF-8, and the inside of JSON strings; free text up to a stop text. */
#include <string.h>

#include "engine/text/grammar_expr.h"

#define CP_MAX 0x10FFFFu

struct list { /* alternatives being collected */
    struct gr_builder *b;
    gr_expr e[64];
    size_t n;
};

static void put(struct list *l, gr_expr e)
{
    if (l->n == sizeof l->e / sizeof *l->e) {
        l->e[0] = gr_alt(l->b, l->e, l->n);
        l->n = 1;
    }
    l->e[l->n++] = e;
}

/* One run of code points whose encodings have n bytes and differ in a block of trailing bytes: the table of the
 * well-known split of UTF-8 ranges (Unicode 15.0, table 3-6). */
static gr_expr utf8_block(struct gr_builder *b, uint32_t lo, uint32_t hi, int n)
{
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    gr_expr part[4];
    if (n == 1)
        return gr__range(b, (int)lo, (int)hi);
    for (int i = n - 1; i > 0; i--) {
        part[i] = gr__range(b, (int)(0x80 | (lo & 0x3F)), (int)(0x80 | (hi & 0x3F)));
        lo >>= 6;
        hi >>= 6;
    }
    part[0] = gr__range(b, (int)(lead[n] | lo), (int)(lead[n] | hi));
    return gr_seq(b, part, (size_t)n);
}

/* Split [lo, hi], all of n bytes, until each part is a product of byte ranges. */
static void utf8_split(struct list *l, uint32_t lo, uint32_t hi, int n)
{
    for (int i = 1; i < n; i++) {
        uint32_t m = (1u << (6 * i)) - 1;
        if ((lo & ~m) == (hi & ~m))
            continue;
        if (lo & m) {
            utf8_split(l, lo, lo | m, n);
            utf8_split(l, (lo | m) + 1, hi, n);
            return;
        }
        if ((hi & m) != m) {
            utf8_split(l, lo, (hi & ~m) - 1, n);
            utf8_split(l, hi & ~m, hi, n);
            return;
        }
    }
    put(l, utf8_block(l->b, lo, hi, n));
}

static void utf8_range(struct list *l, uint32_t lo, uint32_t hi)
{
    static const struct gr_range by_len[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, CP_MAX}};
    static const int len[] = {1, 2, 3, 3, 4};
    for (int i = 0; i < 5; i++) {
        uint32_t a = lo > by_len[i].lo ? lo : by_len[i].lo;
        uint32_t z = hi < by_len[i].hi ? hi : by_len[i].hi;
        if (a <= z)
            utf8_split(l, a, z, len[i]);
    }
}

static gr_expr hex_digit(struct gr_builder *b, int lo, int hi)
{
    gr_expr part[3];
    size_t n = 0;
    if (lo < 10)
        part[n++] = gr__range(b, '0' + lo, '0' + (hi < 9 ? hi : 9));
    if (hi > 9) {
        int from = lo > 10 ? lo : 10;
        part[n++] = gr__range(b, 'a' + from - 10, 'a' + hi - 10);
        part[n++] = gr__range(b, 'A' + from - 10, 'A' + hi - 10);
    }
    return gr_alt(b, part, n);
}

/* \u and four digits, the first two given as ranges of a byte each. */
static gr_expr u_escape(struct gr_builder *b, const int d[8])
{
    return gr_seq(b,
                  (gr_expr[]){gr_str(b, "\\u"), hex_digit(b, d[0], d[1]), hex_digit(b, d[2], d[3]),
                              hex_digit(b, d[4], d[5]), hex_digit(b, d[6], d[7])},
                  5);
}

/* A character that must be escaped, in its one spelling. */
static gr_expr json_escape(struct gr_builder *b, uint32_t c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, (int)c) : NULL;
    if (at)
        return gr_lit(b, (char[]){'\\', to[at - from]}, 2);
    int hi = (int)(c >> 4), lo = (int)(c & 15);
    return u_escape(b, (int[]){0, 0, 0, 0, hi, hi, lo, lo});
}

static void json_range(struct list *l, uint32_t lo, uint32_t hi)
{
    static const struct gr_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, CP_MAX}};
    for (uint32_t c = lo; c <= hi && c < 0x20; c++)
        put(l, json_escape(l->b, c));
    for (int i = 0; i < 3; i++) {
        uint32_t a = lo > plain[i].lo ? lo : plain[i].lo;
        uint32_t z = hi < plain[i].hi ? hi : plain[i].hi;
        if (a <= z)
            utf8_range(l, a, z);
    }
    if (lo <= '"' && hi >= '"')
        put(l, json_escape(l->b, '"'));
    if (lo <= '\\' && hi >= '\\')
        put(l, json_escape(l->b, '\\'));
}

gr_expr gr_chars(struct gr_builder *b, enum gr_encoding enc, const struct gr_range *r, size_t n)
{
    struct list l = {.b = b};
    for (size_t i = 0; i < n; i++) {
        uint32_t hi = r[i].hi < CP_MAX ? r[i].hi : CP_MAX;
        if (r[i].lo > hi)
            continue;
        if (enc == GR_UTF8)
            utf8_range(&l, r[i].lo, hi);
        else
            json_range(&l, r[i].lo, hi);
    }
    return gr_alt(b, l.e, l.n);
}

/* Every escape but halves of surrogate pairs that stand alone. */
static gr_expr json_all_escapes(struct gr_builder *b)
{
    gr_expr shorts[8];
    for (size_t i = 0; i < 8; i++)
        shorts[i] = gr_lit(b, (char[]){'\\', "\"\\/bfnrt"[i]}, 2);
    gr_expr high = u_escape(b, (int[]){13, 13, 8, 11, 0, 15, 0, 15});
    gr_expr low = u_escape(b, (int[]){13, 13, 12, 15, 0, 15, 0, 15});
    return gr_alt(
        b,
        (gr_expr[]){gr_alt(b, shorts, 8), u_escape(b, (int[]){0, 12, 0, 15, 0, 15, 0, 15}),
                    u_escape(b, (int[]){13, 13, 0, 7, 0, 15, 0, 15}),
                    u_escape(b, (int[]){14, 15, 0, 15, 0, 15, 0, 15}), gr_seq2(b, high, low)},
        5);
}

gr_expr gr_any(struct gr_builder *b, enum gr_encoding enc)
{
    if (b->any[enc])
        return b->err.code ? GR_FAIL : b->any[enc];
    gr_expr e;
    if (enc == GR_JSON_ALL)
        e = gr_alt2(b,
                    gr_chars(b, GR_JSON,
                             (struct gr_range[]){{0x20, 0x21}, {0x23, 0x5B}, {0x5D, CP_MAX}}, 3),
                    json_all_escapes(b));
    else
        e = gr_chars(b, enc, &(struct gr_range){0, CP_MAX}, 1);
    if (e != GR_FAIL)
        b->any[enc] = e;
    return e;
}

gr_expr gr_text_until(struct gr_builder *b, const struct view *stop, size_t n, bool then)
{
    gr_expr any = gr_repeat(b, gr_any(b, GR_UTF8), 0, GR_INF), stops = gr_never(b);
    for (size_t i = 0; i < n; i++)
        stops = gr_alt2(b, stops, gr_lit(b, stop[i].p, stop[i].len));
    gr_expr up_to = gr_seq2(b, any, stops);
    if (!then)
        return gr_lex(b, n ? gr_and(b, any, gr_not(b, gr_seq2(b, up_to, any))) : any);
    gr_expr more = gr_repeat(b, gr__range(b, 0, 255), 1, GR_INF);
    return gr_lex(b, gr_and(b, up_to, gr_not(b, gr_seq2(b, up_to, more))));
}
