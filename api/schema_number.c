/* Numbers: digit automata for ranges and multiples. Plain numbers are JSON's, with bounded digits; where there is a bound or a
 * multiple, they are written without exponent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/schema_impl.h"

#define INT_DIGITS                                                                                 \
    60 /* of unbounded integers: more helps nobody, and a model may write digits for ever */
#define FRAC_DIGITS 40
/* JSON's numbers that a double can hold. */
#define ANY_NUMBER                                                                                 \
    "-?((0|[1-9][0-9]{0,59})(\\.[0-9]{1,40})?([eE](-[0-9]{1,3}|[+]?[0-9]{1,2}))?"                  \
    "|[0-9](\\.[0-9]{1,40})?[eE][+]?([12][0-9]{2}|30[0-7])"                                        \
    "|1(\\.([0-6][0-9]{0,39}|7[0-8][0-9]{0,38}|79[0-6][0-9]{0,30}|79769313486231[0-5][0-7]?))?"    \
    "[eE][+]?308)"
#define BIG 1e15 /* bounds beyond are none that doubles can say exactly */

static gr_expr digit(struct sc *s, int lo, int hi)
{
    char text[16];
    snprintf(text, sizeof text, "[%d-%d]", lo, hi);
    return gr_regex(s->b, view_str(text), GR_UTF8, 0);
}

static gr_expr digits(struct sc *s, int32_t min, int32_t max)
{
    return gr_repeat(s->b, digit(s, 0, 9), min, max);
}

/* Texts of exactly len digits from lo to hi (both of len digits). */
static gr_expr same_length(struct sc *s, const char *lo, const char *hi, int len)
{
    struct gr_builder *b = s->b;
    if (len == 0)
        return gr_empty(b);
    if (strspn(lo, "0") >= (size_t)len && strspn(hi, "9") >= (size_t)len)
        return digits(s, len, len);
    int l = lo[0] - '0', h = hi[0] - '0';
    if (l == h)
        return gr_seq2(b, digit(s, l, l), same_length(s, lo + 1, hi + 1, len - 1));
    char nines[32], zeros[32];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    nines[31] = zeros[31] = 0;
    gr_expr r = gr_alt2(b, gr_seq2(b, digit(s, l, l), same_length(s, lo + 1, nines, len - 1)),
                        gr_seq2(b, digit(s, h, h), same_length(s, zeros, hi + 1, len - 1)));
    if (h - l > 1)
        r = gr_alt2(b, r, gr_seq2(b, digit(s, l + 1, h - 1), digits(s, len - 1, len - 1)));
    return r;
}

/* Non-negative integers lo..hi without leading zeros; hi < 0: no bound. */
static gr_expr range(struct sc *s, int64_t lo, int64_t hi)
{
    gr_expr r = gr_never(s->b);
    char l[32], h[32];
    if (lo < 0)
        lo = 0;
    if (hi >= 0 && hi < lo)
        return r;
    for (int len = 1; len <= 18; len++) {
        int64_t first = len == 1 ? 0 : 1, last = 9;
        for (int i = 1; i < len; i++) {
            first *= 10;
            last = last * 10 + 9;
        }
        if (last < lo)
            continue;
        if (hi >= 0 && first > hi)
            break;
        if (first < lo)
            first = lo;
        if (hi >= 0 && last > hi)
            last = hi;
        snprintf(l, sizeof l, "%lld", (long long)first);
        snprintf(h, sizeof h, "%lld", (long long)last);
        r = gr_alt2(s->b, r, same_length(s, l, h, len));
    }
    if (hi < 0) /* more digits than that */
        r = gr_alt2(s->b, r, gr_seq2(s->b, digit(s, 1, 9), digits(s, 18, INT_DIGITS - 1)));
    return r;
}

/* m as p / 10^k in lowest terms of p. */
static bool decimal(double m, int64_t *p, int *k)
{
    double v = m;
    for (*k = 0; *k <= 9; (*k)++, v = m * pow(10, *k))
        if (fabs(v - nearbyint(v)) < 1e-9 * v && v >= 0.5) {
            *p = (int64_t)nearbyint(v);
            return v < 1e9;
        }
    return false;
}

/* Whole numbers that are multiples of all: multiples of what follows. < 0: cannot be done. */
static int64_t whole_step(struct sc *s, const struct conj *c)
{
    int64_t step = 1;
    for (int i = 0; i < c->multiple.n; i++) {
        int64_t p, q = 1, a, g;
        int k;
        if (!decimal(json_number_value(c->multiple.v[i]), &p, &k)) {
            sc__fail(s, ERR_UNSUPPORTED, "multipleOf", "of this number is not supported");
            return -1;
        }
        for (; k > 0; k--)
            q *= 10;
        for (a = p, g = q; g;) { /* p / q in lowest terms: whole multiples are those of p */
            int64_t t = a % g;
            a = g;
            g = t;
        }
        p /= a;
        int64_t x = step, y = p;
        while (y) {
            int64_t t = x % y;
            x = y;
            y = t;
        }
        step = step / x * p;
        if (step > 10000) {
            sc__fail(s, ERR_UNSUPPORTED, "multipleOf", "over 10000 is not supported");
            return -1;
        }
    }
    return step;
}

static gr_expr whole_part(struct sc *s, int64_t lo, int64_t hi, int64_t step)
{
    gr_expr r = range(s, lo, hi);
    return step > 1 ? gr_and(s->b, r, gr_multiple(s->b, (int32_t)step)) : r;
}

static gr_expr integer(struct sc *s, const struct conj *c)
{
    int64_t step = whole_step(s, c);
    bool has_lo = c->has_lo && c->lo > -BIG, has_hi = c->has_hi && c->hi < BIG;
    if (step < 0)
        return GR_FAIL;
    if ((c->has_lo && c->lo > BIG) || (c->has_hi && c->hi < -BIG))
        return sc__fail(s, ERR_UNSUPPORTED, c->has_lo ? "minimum" : "maximum",
                        "beyond 10^15 is not supported");
    int64_t lo = 0, hi = -1;
    if (has_lo) {
        lo = (int64_t)ceil(c->lo);
        lo += c->lo_open && (double)lo <= c->lo;
    }
    if (has_hi) {
        hi = (int64_t)floor(c->hi);
        hi -= c->hi_open && (double)hi >= c->hi;
    }
    gr_expr plus = gr_never(s->b), minus = gr_never(s->b);
    if (!has_hi || hi >= 0)
        plus = whole_part(s, has_lo ? lo : 0, has_hi ? hi : -1, step);
    if (!has_lo || lo < 0) /* |x| from -hi to -lo; no minus zero */
        minus = whole_part(s, has_hi && hi < 0 ? -hi : 1, has_lo ? -lo : -1, step);
    gr_expr r = gr_alt2(s->b, plus, gr_seq2(s->b, gr_str(s->b, "-"), minus));
    return gr_lex(s->b, r);
}

/* ---- numbers with a fraction ---- */

/* A non-negative bound as text: whole part and the digits behind the point. */
struct bound {
    int64_t whole;
    char frac[64];
    int n;
};

static bool bound_of(double v, struct bound *b)
{
    char text[400];
    if (v >= BIG)
        return false;
    snprintf(text, sizeof text, "%.17g", v);
    for (int d = 1; d < 17; d++) { /* the shortest that reads back */
        char shorter[400];
        snprintf(shorter, sizeof shorter, "%.*g", d, v);
        if (strtod(shorter, NULL) == v) {
            memcpy(text, shorter, sizeof shorter);
            break;
        }
    }
    if (strchr(text, 'e')) {
        for (int d = 0; d < 40; d++) {
            snprintf(text, sizeof text, "%.*f", d, v);
            if (strtod(text, NULL) == v)
                break;
        }
    }
    b->whole = strtoll(text, NULL, 10);
    const char *dot = strchr(text, '.');
    snprintf(b->frac, sizeof b->frac, "%.60s", dot ? dot + 1 : "");
    b->n = (int)strlen(b->frac);
    while (b->n && b->frac[b->n - 1] == '0')
        b->frac[--b->n] = 0;
    return true;
}

static gr_expr any_frac(struct sc *s)
{
    return gr_opt(s->b, gr_seq2(s->b, gr_str(s->b, "."), digits(s, 1, FRAC_DIGITS)));
}

/* ".digits" (or nothing) above or below .frac; equal when `eq`. */
static gr_expr frac_side(struct sc *s, const struct bound *b, bool above, bool eq)
{
    gr_expr r = gr_never(s->b), zeros = gr_repeat(s->b, gr_str(s->b, "0"), 0, FRAC_DIGITS);
    gr_expr tail = digits(s, 0, FRAC_DIGITS);
    for (int i = 0; i < b->n; i++) {
        int d = b->frac[i] - '0', lo = above ? d + 1 : 0, hi = above ? 9 : d - 1;
        gr_expr head = gr_lit(s->b, b->frac, (size_t)i);
        if (lo <= hi)
            r = gr_alt2(s->b, r, gr_seq(s->b, (gr_expr[]){head, digit(s, lo, hi), tail}, 3));
        if (!above && i) /* ended early: what is missing is zeros */
            r = gr_alt2(s->b, r, head);
    }
    gr_expr all = gr_lit(s->b, b->frac, (size_t)b->n);
    gr_expr nonzero = gr_seq(s->b, (gr_expr[]){zeros, digit(s, 1, 9), tail}, 3);
    if (above)
        r = gr_alt2(s->b, r, gr_seq2(s->b, all, nonzero));
    if (eq)
        r = gr_alt2(s->b, r,
                    b->n ? gr_seq2(s->b, all, zeros)
                         : gr_repeat(s->b, gr_str(s->b, "0"), 1, FRAC_DIGITS));
    r = gr_seq2(s->b, gr_str(s->b, "."), r);
    bool bare = above ? eq && !b->n : b->n > 0 || eq; /* no fraction at all */
    return bare ? gr_opt(s->b, r) : r;
}

/* Non-negative decimals at least (above) or at most `v`. */
static gr_expr side(struct sc *s, double v, bool above, bool open)
{
    struct bound b;
    if (!bound_of(v, &b))
        return sc__fail(s, ERR_UNSUPPORTED, above ? "minimum" : "maximum",
                        "beyond 10^15 is not supported");
    gr_expr at = gr_seq2(s->b, range(s, b.whole, b.whole), frac_side(s, &b, above, !open));
    gr_expr rest = gr_never(s->b);
    if (above)
        rest = range(s, b.whole + 1, -1);
    else if (b.whole > 0)
        rest = range(s, 0, b.whole - 1);
    return gr_alt2(s->b, at, gr_seq2(s->b, rest, any_frac(s)));
}

/* Decimals from lo to hi, both >= 0; has[]: which bounds are there; open[] likewise. */
static gr_expr decimals(struct sc *s, const double v[2], const bool has[2], const bool open[2])
{
    gr_expr r = gr_seq2(s->b, range(s, 0, -1), any_frac(s));
    if (has[0])
        r = gr_and(s->b, r, side(s, v[0], true, open[0]));
    if (has[1])
        r = gr_and(s->b, r, side(s, v[1], false, open[1]));
    return r;
}

/* Multiples of p / 10^k with p == 1: at most k digits behind the point; else the whole multiples. */
static gr_expr with_multiple(struct sc *s, const struct conj *c)
{
    int64_t p = 0;
    int k = 0;
    if (c->multiple.n == 1 && decimal(json_number_value(c->multiple.v[0]), &p, &k) && p == 1 &&
        k > 0)
        return gr_seq2(s->b, gr_opt(s->b, gr_str(s->b, "-")),
                       gr_seq2(s->b, range(s, 0, -1),
                               gr_opt(s->b, gr_seq2(s->b, gr_str(s->b, "."), digits(s, 1, k)))));
    return integer(s, c);
}

/* Every plain spelling of a number. */
static gr_expr spellings(struct sc *s, double v)
{
    struct bound at;
    char whole[40];
    if (!bound_of(fabs(v), &at))
        return sc__fail(s, ERR_UNSUPPORTED, "not", "of a number beyond 10^15 is not supported");
    snprintf(whole, sizeof whole, "%s%lld", v < 0 ? "-" : "", (long long)at.whole);
    gr_expr e = gr_str(s->b, whole), zeros = gr_repeat(s->b, gr_str(s->b, "0"), 0, FRAC_DIGITS);
    if (at.n)
        return gr_seq(
            s->b, (gr_expr[]){e, gr_str(s->b, "."), gr_lit(s->b, at.frac, (size_t)at.n), zeros}, 4);
    e = gr_seq2(s->b, e, gr_opt(s->b, gr_seq2(s->b, gr_str(s->b, "."), zeros)));
    return v == 0 ? gr_seq2(s->b, gr_opt(s->b, gr_str(s->b, "-")), e) : e;
}

/* The numbers of c->not_values. */
static gr_expr excluded(struct sc *s, const struct conj *c)
{
    gr_expr e = gr_never(s->b);
    for (int i = 0; i < c->not_values.n; i++)
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++) {
            const json_t *v = json_array_get(c->not_values.v[i], k);
            if (json_is_number(v))
                e = gr_alt2(s->b, e, spellings(s, json_number_value(v)));
        }
    return e;
}

static gr_expr number(struct sc *s, const struct conj *c);

gr_expr sc__number(struct sc *s, const struct conj *c)
{
    gr_expr out = excluded(s, c);
    if (out == GR_FAIL || out == gr_never(s->b))
        return number(s, c);
    gr_expr plain =
        gr_seq(s->b, (gr_expr[]){gr_opt(s->b, gr_str(s->b, "-")), range(s, 0, -1), any_frac(s)}, 3);
    return gr_lex(s->b, gr_and(s->b, gr_and(s->b, number(s, c), plain), gr_not(s->b, out)));
}

static gr_expr number(struct sc *s, const struct conj *c)
{
    struct gr_builder *b = s->b;
    if (!(c->types & T_REAL))
        return integer(s, c);
    if (!(c->types & T_INT))
        return sc__fail(s, ERR_UNSUPPORTED, "type",
                        "numbers that are no integers are not supported");
    bool bounded = c->has_lo || c->has_hi;
    gr_expr minus = gr_str(b, "-");
    if (!bounded && !c->multiple.n)
        return gr_lex(b, gr_regex(b, VIEW_LIT(ANY_NUMBER), GR_UTF8, 0));
    gr_expr r = GR_FAIL;
    if (bounded) {
        gr_expr plus = gr_never(b), neg = gr_never(b);
        if (!c->has_hi || c->hi > 0 || (c->hi >= 0 && !c->hi_open)) {
            bool low = c->has_lo && (c->lo > 0 || (c->lo >= 0 && c->lo_open));
            plus = decimals(s, (double[]){c->lo, c->hi}, (bool[]){low, c->has_hi},
                            (bool[]){c->lo_open, c->hi_open});
        }
        if (!c->has_lo || c->lo < 0) { /* above 0, so that there is no minus zero */
            bool low = c->has_hi && c->hi <= 0;
            neg = decimals(s, (double[]){low ? -c->hi : 0, -c->lo}, (bool[]){true, c->has_lo},
                           (bool[]){low && c->hi < 0 ? c->hi_open : true, c->lo_open});
        }
        r = gr_alt2(b, plus, gr_seq2(b, minus, neg));
    }
    if (c->multiple.n) {
        gr_expr m = with_multiple(s, c);
        r = r == GR_FAIL ? m : gr_and(b, r, m);
    }
    return r == GR_FAIL ? r : gr_lex(b, r);
}
