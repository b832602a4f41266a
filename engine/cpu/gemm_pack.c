/* Blocks of a weight file into panels (gemm_impl.h has the layouts). Values and scales are only moved,
 * never rounded. Any thread; no state. */
#include "engine/cpu/gemm_impl.h"

enum gemm_layout gemm__layout(enum quant_fmt f)
{
    switch (f) {
    case QF_F32:
        return GL_F32;
    case QF_F16:
        return GL_F16;
    case QF_BF16:
        return GL_BF16;
    case QF_Q4_0:
        return GL_Q4;
    case QF_Q4_1:
        return GL_Q4M;
    case QF_Q5_0:
        return GL_Q5;
    case QF_Q5_1:
        return GL_Q5M;
    case QF_Q8_0:
    case QF_IQ4_NL: /* its levels need eight bits */
        return GL_Q8;
    case QF_Q2_K:
        return GL_Q2K;
    case QF_Q3_K:
        return GL_Q3K;
    case QF_Q4_K:
        return GL_Q4K;
    case QF_Q5_K:
        return GL_Q5K;
    case QF_Q6_K:
        return GL_Q6K;
    case QF_IQ4_XS:
        return GL_Q8K;
    case QF_TQ1_0: /* codes 0 to 2, both scales 1 */
    case QF_TQ2_0:
        return GL_Q2K;
    case QF_Q8_1:
        return GL_Q8;
    case QF_Q8_K:
    case QF_I8_32:
    case QF_IQ2_XXS: /* levels out of code books */
    case QF_IQ3_XXS:
    case QF_IQ3_S:
    case QF_IQ1_S:
        return GL_Q8F;
    case QF_IQ2_XS:
    case QF_IQ2_S:
    case QF_IQ1_M:
        return GL_Q8F16;
    case QF_I8M_32:
        return GL_Q8FM;
    case QF_I4_32:
    case QF_Q1_0:
        return GL_Q4F;
    case QF_MXFP4:
        return GL_F4;
    case QF_NVFP4:
    case QF_F4_16:
        return GL_F416;
    case QF_NF4_32:
        return GL_NF4;
    case QF_B4_32:
        return GL_B4;
    case QF_F8_32:
        return GL_F8;
    }
    return GL_N;
}

struct gemm_spec gemm__spec(enum gemm_layout l)
{
    static const struct gemm_spec spec[GL_N] = {
#define X(name, bits, bias, group, scale, has_min, level)                                          \
    [GL_##name] = {bits, bias, group, scale, has_min, level},
        GEMM_QUANT_LAYOUTS(X)
#undef X
    };
    return spec[l];
}

size_t gemm__panel_bytes(enum gemm_layout l, int64_t n_in, int lanes)
{
    if (l == GL_F32)
        return (size_t)n_in * (size_t)lanes * 4;
    if (l == GL_F16 || l == GL_BF16)
        return (size_t)n_in * (size_t)lanes * 2;
    struct gemm_spec s = gemm__spec(l);
    return gemm_scale_bytes(s, n_in, lanes) +
           gemm_pad64((size_t)(n_in / GEMM_CHUNK) * gemm_chunk_bytes(s, lanes)) +
           (lanes == 16 ? GEMM_TAIL : 0);
}

static uint16_t get_u16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* A block taken apart: the words of its chunks, and its scales. */
struct block {
    uint32_t word[8][8];
    uint16_t d, m;
    int8_t s[16], sm[16]; /* GS_K: one a group */
};

/* Exchange the bits of x whose index bits a > b differ. */
static uint32_t swap_index_bits(uint32_t x, int shift, uint32_t mask)
{
    uint32_t t = (x ^ x >> shift) & mask;
    return x ^ t ^ t << shift;
}

/* Bit k goes to gemm_high_bit(k). */
static uint32_t high_plane(uint32_t x)
{
    x = swap_index_bits(x, 16 - 2, 0x0000cccc);   /* index bits 4 and 1 */
    x = swap_index_bits(x, 8 - 1, 0x00aa00aa);    /* 3 and 0 */
    x = swap_index_bits(x, 4 - 2, 0x0c0c0c0c);    /* 2 and 1 */
    return swap_index_bits(x, 2 - 1, 0x22222222); /* 1 and 0 */
}

static void words_from_values(const uint8_t *q, int bits, uint32_t *word)
{
    uint32_t four[8]; /* bytes k to k + 3 */
    memcpy(four, q, sizeof four);
    for (int i = 0; i < 4; i++)
        word[i] = (four[i] & 0x0f0f0f0f) | (four[i + 4] & 0x0f0f0f0f) << 4;
    for (int plane = 4; plane < bits; plane++) {
        word[plane] = 0;
        for (int i = 0; i < 8; i++)
            word[plane] |= (four[i] >> plane & 0x01010101) << i;
    }
}

static void split_q4_0(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    memcpy(o->word[0], b + 2, 16);
}

static void split_q4_1(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    o->m = get_u16(b + 2);
    memcpy(o->word[0], b + 4, 16);
}

static void split_q5_0(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    o->word[0][4] = high_plane(get_u32(b + 2));
    memcpy(o->word[0], b + 6, 16);
}

static void split_q5_1(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    o->m = get_u16(b + 2);
    o->word[0][4] = high_plane(get_u32(b + 4));
    memcpy(o->word[0], b + 8, 16);
}

static void split_q8_0(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    memcpy(o->word[0], b + 2, 32);
    for (int i = 0; i < 8; i++)
        o->word[0][i] ^= 0x80808080; /* signed to biased by 128 */
}

static void iq4_words(const uint8_t *qs, uint32_t *word)
{
    /* The levels of IQ4, biased by 128. */
    static const uint8_t level[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};
    uint8_t q[32];
    for (int i = 0; i < 16; i++) {
        q[i] = level[qs[i] & 15];
        q[i + 16] = level[qs[i] >> 4];
    }
    memcpy(word, q, sizeof q);
}

static void split_iq4_nl(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    iq4_words(b + 2, o->word[0]);
}

static void split_iq4_xs(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    unsigned high = get_u16(b + 2);
    for (int i = 0; i < 8; i++) {
        unsigned s = ((unsigned)b[4 + i / 2] >> 4 * (i % 2) & 15u) | (high >> 2 * i & 3) << 4;
        o->s[i] = (int8_t)((int)s - 32);
        iq4_words(b + 8 + 16 * i, o->word[i]);
    }
}

static void split_q2_k(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b + 80);
    o->m = get_u16(b + 82);
    for (int g = 0; g < 16; g++) {
        o->s[g] = b[g] & 15;
        o->sm[g] = (int8_t)(b[g] >> 4);
    }
    for (int c = 0; c < 8; c++) {
        uint8_t q[32];
        for (int i = 0; i < 32; i++)
            q[i] = b[16 + 32 * (c / 4) + i] >> 2 * (c % 4) & 3;
        words_from_values(q, 4, o->word[c]);
    }
}

static void split_q3_k(const uint8_t *b, struct block *o)
{
    const uint8_t *sc = b + 96;
    o->d = get_u16(b + 108);
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
        o->s[g] = (int8_t)((low | (sc[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32);
    }
    for (int c = 0; c < 8; c++) {
        uint8_t q[32]; /* 0..7: the mask bit is the third bit */
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)((b[32 + 32 * (c / 4) + i] >> 2 * (c % 4) & 3) | (b[i] >> c & 1) << 2);
        words_from_values(q, 4, o->word[c]);
    }
}

/* d, dmin and the six-bit scales of Q4_K and Q5_K. */
static void k4_scales(const uint8_t *b, struct block *o)
{
    const uint8_t *s = b + 4;
    o->d = get_u16(b);
    o->m = get_u16(b + 2);
    for (int j = 0; j < 4; j++) {
        o->s[j] = s[j] & 63;
        o->sm[j] = s[j + 4] & 63;
        o->s[j + 4] = (int8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
        o->sm[j + 4] = (int8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}

static void split_q4_k(const uint8_t *b, struct block *o)
{
    k4_scales(b, o);
    for (int c = 0; c < 8; c++) {
        const uint8_t *qs = b + 16 + 32 * (c / 2);
        uint8_t nib[16];
        for (int i = 0; i < 16; i++)
            nib[i] = (uint8_t)(c % 2 ? qs[i] >> 4 | (qs[i + 16] & 0xf0)
                                     : (qs[i] & 15) | (qs[i + 16] & 15) << 4);
        memcpy(o->word[c], nib, 16);
    }
}

static void split_q5_k(const uint8_t *b, struct block *o)
{
    k4_scales(b, o);
    for (int c = 0; c < 8; c++) {
        const uint8_t *qs = b + 48 + 32 * (c / 2);
        uint8_t q[32];
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)((qs[i] >> 4 * (c % 2) & 15) | (b[16 + i] >> c & 1) << 4);
        words_from_values(q, 5, o->word[c]);
    }
}

static void split_q6_k(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b + 208);
    memcpy(o->s, b + 192, 16);
    for (int c = 0; c < 8; c++) {
        const uint8_t *l = b + 64 * (c / 4) + 32 * (c % 2), *h = b + 128 + 32 * (c / 4);
        uint8_t q[32];
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)((l[i] >> 4 * (c % 4 / 2) & 15) | (h[i] >> 2 * (c % 4) & 3) << 4);
        words_from_values(q, 6, o->word[c]);
    }
}

static void split_ternary(enum quant_fmt f, const uint8_t *b, struct block *o)
{
    uint8_t code[GEMM_SUPER];
    float d[16], m[16];
    int n = quant_format_get(f)->block_len;
    memset(o, 0, sizeof *o);
    quant_split(f, b, n, code, d, m);
    o->d = o->m = f32_to_f16(d[0]);
    memset(o->s, 1, sizeof o->s);
    memset(o->sm, 1, sizeof o->sm);
    for (int c = 0; c < n / 32; c++)
        words_from_values(code + 32 * c, 4, o->word[c]);
}

static void split_tq1_0(const uint8_t *b, struct block *o)
{
    split_ternary(QF_TQ1_0, b, o);
}

static void split_tq2_0(const uint8_t *b, struct block *o)
{
    split_ternary(QF_TQ2_0, b, o);
}

static void split_q8_1(const uint8_t *b, struct block *o)
{
    o->d = get_u16(b);
    memcpy(o->word[0], b + 4, 32);
    for (int i = 0; i < 8; i++)
        o->word[0][i] ^= 0x80808080;
}

static void (*split_of(enum quant_fmt f))(const uint8_t *, struct block *)
{
    switch (f) {
    case QF_Q4_0:
        return split_q4_0;
    case QF_Q4_1:
        return split_q4_1;
    case QF_Q5_0:
        return split_q5_0;
    case QF_Q5_1:
        return split_q5_1;
    case QF_Q8_0:
        return split_q8_0;
    case QF_Q2_K:
        return split_q2_k;
    case QF_Q3_K:
        return split_q3_k;
    case QF_Q4_K:
        return split_q4_k;
    case QF_Q5_K:
        return split_q5_k;
    case QF_Q6_K:
        return split_q6_k;
    case QF_IQ4_NL:
        return split_iq4_nl;
    case QF_IQ4_XS:
        return split_iq4_xs;
    case QF_TQ1_0:
        return split_tq1_0;
    case QF_TQ2_0:
        return split_tq2_0;
    case QF_Q8_1:
        return split_q8_1;
    default: /* dense, or with f32 scales: see f32_put */
        break;
    }
    return NULL;
}

/* Lane r of the words and scales of one block. `at`: number of the block in its row. */
static void block_put(uint8_t *scales, uint8_t *chunks, struct gemm_spec s, int lanes, int64_t at,
                      int r, const struct block *o)
{
    const size_t n = (size_t)lanes, step = 1 + (size_t)s.has_min;
    const size_t n_chunk = s.scale == GS_F16 ? 1 : GEMM_SUPER / GEMM_CHUNK;
    const size_t n_group = s.scale == GS_F16 ? 0 : (size_t)(GEMM_SUPER / s.group);
    uint8_t *sp = scales + (size_t)at * step * (2 + n_group) * n;
    memcpy(sp + 2 * r, &o->d, 2);
    if (s.has_min)
        memcpy(sp + 2 * n + 2 * r, &o->m, 2);
    sp += step * 2 * n + (size_t)r;
    for (size_t g = 0; g < n_group; g++) {
        sp[g * n] = (uint8_t)o->s[g];
        if (s.has_min)
            sp[(n_group + g) * n] = (uint8_t)o->sm[g];
    }
    const int n_word = s.bits; /* 4, 5, 6 or 8 words a chunk */
    uint8_t *cp = chunks + (size_t)at * n_chunk * gemm_chunk_bytes(s, lanes) + 4 * (size_t)r;
    for (size_t c = 0; c < n_chunk; c++)
        for (int i = 0; i < n_word; i++, cp += 4 * n)
            memcpy(cp, &o->word[c][i], 4);
}

/* Row r of a panel with f32 scales, from what every format's parts are. */
static void f32_put(uint8_t *panel, struct gemm_spec s, int lanes, enum quant_fmt f, int64_t n_in,
                    const uint8_t *row, int r)
{
    const struct quant_format *q = quant_format_get(f);
    const size_t n = (size_t)lanes, step = 1 + (size_t)s.has_min;
    const int unit = q->block_len < GEMM_CHUNK ? GEMM_CHUNK : q->block_len, per = s.group / 16;
    const size_t unit_bytes = (size_t)(unit / q->block_len * q->block_bytes);
    uint8_t code[GEMM_SUPER], *sp = panel + 4 * (size_t)r,
                              *cp = panel + gemm_scale_bytes(s, n_in, lanes) + 4 * (size_t)r;
    float d[16], m[16];
    for (int64_t at = 0; at < n_in; at += unit, row += unit_bytes) {
        quant_split(f, row, unit, code, d, m);
        for (int g = 0; g < unit / s.group; g++, sp += step * 4 * n) {
            memcpy(sp, &d[g * per], 4);
            if (s.has_min)
                memcpy(sp + 4 * n, &m[g * per], 4);
        }
        for (int c = 0; c < unit; c += GEMM_CHUNK) {
            uint32_t word[8];
            if (s.bits == 8)
                memcpy(word, code + c, sizeof word);
            else
                words_from_values(code + c, s.bits, word);
            for (int i = 0; i < s.bits; i++, cp += 4 * n)
                memcpy(cp, &word[i], 4);
        }
    }
}

static void dense_put(uint8_t *panel, int lanes, enum gemm_layout l, int64_t n_in,
                      const uint8_t *row, int r)
{
    if (l == GL_F32) {
        for (int64_t k = 0; k < n_in; k++)
            memcpy(panel + 4 * (k * lanes + r), row + 4 * k, 4);
        return;
    }
    for (int64_t k = 0; k < n_in; k++) {
        /* bf16: word 2i + o of a run of four holds k = o and o + 2. */
        int64_t at = k * lanes + r;
        if (l == GL_BF16)
            at = (((k >> 2) * 2 + (k & 1)) * lanes + r) * 2 + (k >> 1 & 1);
        memcpy(panel + 2 * at, row + 2 * k, 2);
    }
}

void gemm__panel_pack(uint8_t *panel, int lanes, enum quant_fmt f, int64_t n_in,
                      const uint8_t *rows, size_t row_bytes, int n_row)
{
    const enum gemm_layout l = gemm__layout(f);
    if (n_row < lanes) /* scales of 0 and values of 0 */
        memset(panel, 0, gemm__panel_bytes(l, n_in, lanes));
    const struct gemm_spec s = gemm__spec(l);
    void (*split)(const uint8_t *, struct block *) = split_of(f);
    for (int r = 0; r < n_row && s.bits && s.scale == GS_F32; r++)
        f32_put(panel, s, lanes, f, n_in, rows + (size_t)r * row_bytes, r);
    if (s.bits && s.scale == GS_F32)
        return;
    if (!split) {
        for (int r = 0; r < n_row; r++)
            dense_put(panel, lanes, l, n_in, rows + (size_t)r * row_bytes, r);
        return;
    }
    const struct quant_format *q = quant_format_get(f);
    uint8_t *chunks = panel + gemm_scale_bytes(s, n_in, lanes);
    struct block o = {0};
    for (int64_t at = 0; at < n_in / q->block_len; at++)
        for (int r = 0; r < n_row; r++) {
            split(rows + (size_t)r * row_bytes + (size_t)at * (size_t)q->block_bytes, &o);
            block_put(panel + 0, chunks, s, lanes, at, r, &o);
        }
}
