/* Chat templates: methods of strings, lists, dicts and loops that change nothing (template_change.c has the others). What
 * is named only to be hidden gives undefined when read and fails when called, as in Jinja's sandbox. */
#include "api/template_impl.h"

#include <string.h>

typedef const struct tcall call_args;
#define METHOD(fn)                                                                                 \
    static struct tv fn(struct tmpl_run *r, struct tv self, struct tv *a, call_args *c)

static bool given(struct tv v)
{
    return v.t != TV_MISSING && v.t != TV_NONE;
}

static struct tstr *need_str(struct tmpl_run *r, struct tv v, const char *what)
{
    if (v.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "%s must be a string, not '%s'", what, tmpl__type(v));
    return v.u.s;
}

/* --- strip, case --- */
/* Is the character p[0..k) one of the set's? */
static bool in_set(const struct tstr *set, const char *p, size_t k)
{
    for (size_t i = 0, w; i < set->n; i += w) {
        w = tmpl__char(set->p + i, set->n - i);
        if (w == k && memcmp(set->p + i, p, k) == 0)
            return true;
    }
    return false;
}

/* White space, or the characters of `chars`, off the chosen ends. */
static struct tv strip(struct tmpl_run *r, struct tv self, struct tv chars, bool left, bool right)
{
    const char *p = self.u.s->p;
    size_t n = self.u.s->n, k;
    tmpl__tick(r, n);
    if (!given(chars)) {
        n = right ? tmpl__rspace(p, n) : n;
        k = left ? tmpl__lspace(p, n) : 0;
    } else {
        struct tstr *set = need_str(r, chars, "strip: chars");
        tmpl__tick(r, set->n);
        while (right && n > 0) {
            size_t i = n - 1;
            while (i > 0 && ((unsigned char)p[i] & 0xC0) == 0x80)
                i--;
            if (!in_set(set, p + i, n - i))
                break;
            n = i;
        }
        for (k = 0; left && k < n; k += tmpl__char(p + k, n - k))
            if (!in_set(set, p + k, tmpl__char(p + k, n - k)))
                break;
    }
    struct tv v = tmpl__ref(r, p + k, n - k);
    v.safe = self.safe;
    return v;
}

METHOD(str_strip)
{
    (void)c;
    return strip(r, self, a[0], true, true);
}

METHOD(str_lstrip)
{
    (void)c;
    return strip(r, self, a[0], true, false);
}

METHOD(str_rstrip)
{
    (void)c;
    return strip(r, self, a[0], false, true);
}

METHOD(str_upper)
{
    (void)a, (void)c;
    return tmpl__case(r, self, CASE_UPPER);
}

METHOD(str_lower)
{
    (void)a, (void)c;
    return tmpl__case(r, self, CASE_LOWER);
}

METHOD(str_title)
{
    (void)a, (void)c;
    return tmpl__case(r, self, CASE_TITLE);
}

METHOD(str_capitalize)
{
    (void)a, (void)c;
    return tmpl__case(r, self, CASE_CAPITAL);
}

METHOD(str_swapcase)
{
    (void)a, (void)c;
    return tmpl__case(r, self, CASE_SWAP);
}

/* --- search --- */
static bool affix(struct tmpl_run *r, const struct tstr *s, struct tv x, bool end)
{
    if (x.t == TV_SEQ && x.u.l->kind == SEQ_TUPLE) {
        for (size_t i = 0; i < x.u.l->n; i++)
            if (affix(r, s, x.u.l->v[i].t == TV_SEQ ? TV(TV_NONE) : x.u.l->v[i], end))
                return true;
        return false;
    }
    struct tstr *t = need_str(r, x, "startswith/endswith: argument");
    return t->n <= s->n && memcmp(end ? s->p + s->n - t->n : s->p, t->p, t->n) == 0;
}

METHOD(str_startswith)
{
    (void)c;
    return tmpl__bool(affix(r, self.u.s, a[0], false));
}

METHOD(str_endswith)
{
    (void)c;
    return tmpl__bool(affix(r, self.u.s, a[0], true));
}

METHOD(str_removeprefix)
{
    (void)c;
    size_t k = affix(r, self.u.s, a[0], false) ? need_str(r, a[0], "prefix")->n : 0;
    return tmpl__ref(r, self.u.s->p + k, self.u.s->n - k);
}

METHOD(str_removesuffix)
{
    (void)c;
    size_t k = affix(r, self.u.s, a[0], true) ? need_str(r, a[0], "suffix")->n : 0;
    return tmpl__ref(r, self.u.s->p, self.u.s->n - k);
}

/* Start of the last q in s, NULL when there is none. */
static const char *find_last(const struct tstr *s, const struct tstr *q)
{
    const char *last = NULL;
    if (q->n == 0)
        return s->p + s->n;
    for (size_t at = s->n; at + 1 > q->n && !last; at--)
        if (s->n >= at && at >= q->n && memcmp(s->p + at - q->n, q->p, q->n) == 0)
            last = s->p + at - q->n;
    return last;
}

static int64_t position(struct tmpl_run *r, struct tv self, struct tv sub, bool last)
{
    struct tstr *s = self.u.s, *q = need_str(r, sub, "substring");
    tmpl__tick(r, s->n);
    if (last)
        tmpl__tick(r, s->n * (q->n / 16 + 1));
    const char *p = last ? find_last(s, q) : tmpl__find(s->p, s->n, q->p, q->n);
    return p ? tmpl__len(r, tmpl__ref(r, s->p, (size_t)(p - s->p))) : -1;
}

METHOD(str_find)
{
    (void)c;
    return tmpl__int(position(r, self, a[0], false));
}

METHOD(str_rfind)
{
    (void)c;
    return tmpl__int(position(r, self, a[0], true));
}

METHOD(str_index)
{
    (void)c;
    int64_t i = position(r, self, a[0], false);
    if (i < 0)
        tmpl__fail(r, ERR_INVAL, "substring not found");
    return tmpl__int(i);
}

METHOD(str_count)
{
    (void)c;
    struct tstr *s = self.u.s, *q = need_str(r, a[0], "substring");
    int64_t n = 0;
    tmpl__tick(r, s->n);
    if (q->n == 0)
        return tmpl__int(tmpl__len(r, self) + 1);
    for (const char *p = s->p, *end = s->p + s->n, *f;
         (f = tmpl__find(p, (size_t)(end - p), q->p, q->n)) != NULL; p = f + q->n)
        n++;
    return tmpl__int(n);
}

METHOD(str_replace)
{
    (void)c;
    struct tstr *s = self.u.s, *old = need_str(r, a[0], "replace: old"),
                *new = need_str(r, a[1], "replace: new");
    int64_t left = given(a[2]) ? tmpl__as_int(r, a[2], "replace: count") : -1;
    struct tsb b = {0};
    const char *p = s->p, *end = s->p + s->n, *f;
    tmpl__tick(r, s->n);
    while (left != 0 && (f = tmpl__find(p, (size_t)(end - p), old->p, old->n)) != NULL) {
        tmpl__tick(r, new->n);
        tmpl__sb_add(r, &b, p, (size_t)(f - p));
        tmpl__sb_add(r, &b, new->p, new->n);
        p = f + old->n;
        left -= left > 0;
        if (old->n == 0) { /* between all characters and at both ends */
            if (p == end)
                break;
            size_t k = tmpl__char(p, (size_t)(end - p));
            tmpl__sb_add(r, &b, p, k);
            p += k;
        }
    }
    tmpl__sb_add(r, &b, p, (size_t)(end - p));
    return tmpl__sb_take(r, &b);
}

/* --- split, join --- */
/* Bytes of self as a value of its own; parts of markup are markup. */
static struct tv part(struct tmpl_run *r, struct tv self, const char *p, size_t n)
{
    struct tv v = tmpl__ref(r, p, n);
    v.safe = self.safe;
    return v;
}

/* Words between white space, at most `max` cuts (negative: no bound); the rest stays whole. */
static void split_words(struct tmpl_run *r, struct tv self, struct tv out, const char *p, size_t n,
                        int64_t max)
{
    for (;;) {
        size_t k = tmpl__lspace(p, n);
        p += k;
        n -= k;
        if (!n)
            return;
        if (max-- == 0) {
            tmpl__push(r, out, part(r, self, p, n));
            return;
        }
        for (k = 0; k < n && tmpl__lspace(p + k, n - k) == 0;)
            k += tmpl__char(p + k, n - k);
        tmpl__push(r, out, part(r, self, p, k));
        p += k;
        n -= k;
    }
}

METHOD(str_split)
{
    (void)c;
    struct tv out = tmpl__seq(r, SEQ_LIST, 0);
    int64_t max = given(a[1]) ? tmpl__as_int(r, a[1], "split: maxsplit") : -1;
    const char *p = self.u.s->p, *end = p + self.u.s->n, *f;
    tmpl__tick(r, self.u.s->n * 4);
    if (!given(a[0])) {
        split_words(r, self, out, p, self.u.s->n, max);
        return out;
    }
    struct tstr *sep = need_str(r, a[0], "split: separator");
    if (!sep->n)
        tmpl__fail(r, ERR_INVAL, "empty separator");
    while (max-- != 0 && (f = tmpl__find(p, (size_t)(end - p), sep->p, sep->n)) != NULL) {
        tmpl__tick(r, 0);
        tmpl__push(r, out, part(r, self, p, (size_t)(f - p)));
        p = f + sep->n;
    }
    tmpl__push(r, out, part(r, self, p, (size_t)(end - p)));
    return out;
}

static struct tv reversed(struct tmpl_run *r, struct tv l)
{
    struct tv out = tmpl__seq(r, l.u.l->kind, l.u.l->n);
    for (size_t i = l.u.l->n; i-- > 0;)
        tmpl__push(r, out, l.u.l->v[i]);
    return out;
}

/* From the right: only a limit makes a difference to split. */
METHOD(str_rsplit)
{
    int64_t max = given(a[1]) ? tmpl__as_int(r, a[1], "rsplit: maxsplit") : -1;
    if (max < 0)
        return str_split(r, self, a, c);
    struct tv out = tmpl__seq(r, SEQ_LIST, 0);
    struct tstr rest = *self.u.s, *sep = given(a[0]) ? need_str(r, a[0], "separator") : NULL;
    const char *f;
    if (sep && !sep->n)
        tmpl__fail(r, ERR_INVAL, "empty separator");
    tmpl__tick(r, rest.n * (sep ? sep->n / 16 + 1 : 4));
    while (sep && max-- > 0 && (f = find_last(&rest, sep)) != NULL) {
        tmpl__tick(r, 0);
        tmpl__push(r, out, part(r, self, f + sep->n, (size_t)(rest.p + rest.n - f) - sep->n));
        rest.n = (size_t)(f - rest.p);
    }
    if (sep) {
        tmpl__push(r, out, part(r, self, rest.p, rest.n));
        return reversed(r, out);
    }
    for (rest.n = tmpl__rspace(rest.p, rest.n); rest.n; rest.n = tmpl__rspace(rest.p, rest.n)) {
        size_t i = rest.n;
        if (max-- == 0) {
            tmpl__push(r, out, part(r, self, rest.p, rest.n));
            break;
        }
        while (i > 0 && tmpl__rspace(rest.p, i) == i)
            i--; /* a byte inside a character is no white space */
        tmpl__push(r, out, part(r, self, rest.p + i, rest.n - i));
        rest.n = i;
    }
    return reversed(r, out);
}

METHOD(str_partition)
{
    (void)c;
    struct tstr *s = self.u.s, *sep = need_str(r, a[0], "separator");
    struct tv out = tmpl__seq(r, SEQ_TUPLE, 3);
    if (!sep->n)
        tmpl__fail(r, ERR_INVAL, "empty separator");
    tmpl__tick(r, s->n);
    const char *f = tmpl__find(s->p, s->n, sep->p, sep->n);
    size_t k = f ? (size_t)(f - s->p) : s->n, m = f ? sep->n : 0;
    tmpl__push(r, out, part(r, self, s->p, k));
    tmpl__push(r, out, part(r, self, s->p + k, m));
    tmpl__push(r, out, part(r, self, s->p + k + m, s->n - k - m));
    return out;
}

METHOD(str_rpartition)
{
    (void)c;
    struct tstr *s = self.u.s, *sep = need_str(r, a[0], "separator");
    struct tv out = tmpl__seq(r, SEQ_TUPLE, 3);
    if (!sep->n)
        tmpl__fail(r, ERR_INVAL, "empty separator");
    tmpl__tick(r, s->n * (sep->n / 16 + 1));
    const char *f = find_last(s, sep);
    size_t k = f ? (size_t)(f - s->p) : 0, m = f ? sep->n : 0;
    tmpl__push(r, out, part(r, self, s->p, k));
    tmpl__push(r, out, part(r, self, s->p + k, m));
    tmpl__push(r, out, part(r, self, s->p + k + m, s->n - k - m));
    return out;
}

METHOD(str_splitlines)
{
    (void)c;
    struct tv out = tmpl__seq(r, SEQ_LIST, 0);
    bool keep = a[0].t != TV_MISSING && tmpl__truth(a[0]);
    const char *p = self.u.s->p;
    size_t n = self.u.s->n, len, skip;
    tmpl__tick(r, n * 4);
    for (; tmpl__splitline(p, n, &len, &skip); p += skip, n -= skip)
        tmpl__push(r, out, part(r, self, p, keep ? skip : len));
    return out;
}

METHOD(str_join)
{
    (void)c;
    struct tsb b = {0};
    struct tseq *l = tmpl__iter(r, a[0]);
    for (size_t i = 0; i < l->n; i++) {
        tmpl__tick(r, need_str(r, l->v[i], "join: item")->n);
        if (i)
            tmpl__sb_add(r, &b, self.u.s->p, self.u.s->n);
        if (self.safe) /* markup joins escaped text */
            tmpl__escape(r, &b, l->v[i]);
        else
            tmpl__sb_add(r, &b, l->v[i].u.s->p, l->v[i].u.s->n);
    }
    struct tv v = tmpl__sb_take(r, &b);
    v.safe = self.safe;
    return v;
}

METHOD(str_format)
{
    return tmpl__format(r, self, a, c);
}

/* --- classes of characters --- */
static bool all_ascii(const struct tstr *s, const char *lo_hi)
{
    for (size_t i = 0; i < s->n; i++) {
        bool in = false;
        for (const char *k = lo_hi; *k; k += 2)
            in = in || (s->p[i] >= k[0] && s->p[i] <= k[1]);
        if (!in)
            return false;
    }
    return s->n > 0;
}

/* All characters in the ranges (pairs of bytes); beyond ASCII we would need Unicode's tables, so refuse. */
static struct tv is_class(struct tmpl_run *r, struct tv self, const char *lo_hi)
{
    for (size_t i = 0; i < self.u.s->n; i++)
        if ((unsigned char)self.u.s->p[i] >= 0x80)
            tmpl__fail(r, ERR_UNSUPPORTED, "character class of text beyond ASCII");
    return tmpl__bool(all_ascii(self.u.s, lo_hi));
}

METHOD(str_isdigit)
{
    (void)a, (void)c;
    return is_class(r, self, "09");
}

METHOD(str_isalpha)
{
    (void)a, (void)c;
    return is_class(r, self, "azAZ");
}

METHOD(str_isalnum)
{
    (void)a, (void)c;
    return is_class(r, self, "azAZ09");
}

METHOD(str_isspace)
{
    (void)r, (void)a, (void)c;
    size_t n = self.u.s->n;
    return tmpl__bool(n > 0 && tmpl__lspace(self.u.s->p, n) == n);
}

static bool cased_as(struct tmpl_run *r, struct tv s, int how, int other)
{
    return tmpl__eq(r, s, tmpl__case(r, s, how), 0) && !tmpl__eq(r, s, tmpl__case(r, s, other), 0);
}

METHOD(str_isupper)
{
    (void)a, (void)c;
    return tmpl__bool(cased_as(r, self, CASE_UPPER, CASE_LOWER));
}

METHOD(str_islower)
{
    (void)a, (void)c;
    return tmpl__bool(cased_as(r, self, CASE_LOWER, CASE_UPPER));
}

/* --- padding --- */
/* To a[0] characters with a[1] or blanks: side < 0 text left, > 0 text right, 0 in the middle. */
static struct tv padded(struct tmpl_run *r, struct tv self, struct tv *a, int side)
{
    struct tsb b = {0};
    struct tstr space = {.p = " ", .n = 1},
                *fill = given(a[1]) ? need_str(r, a[1], "fill") : &space;
    int64_t len = tmpl__len(r, self), room = tmpl__as_int(r, a[0], "width");
    int64_t pad = room > len ? room - len : 0;
    /* Python puts the odd one left only when the width is odd */
    int64_t left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & room & 1);
    tmpl__sb_pad(r, &b, fill->p, fill->n, left);
    tmpl__sb_add(r, &b, self.u.s->p, self.u.s->n);
    tmpl__sb_pad(r, &b, fill->p, fill->n, pad - left);
    return tmpl__sb_take(r, &b);
}

METHOD(str_ljust)
{
    (void)c;
    return padded(r, self, a, -1);
}

METHOD(str_rjust)
{
    (void)c;
    return padded(r, self, a, 1);
}

METHOD(str_center)
{
    (void)c;
    return padded(r, self, a, 0);
}

METHOD(str_zfill)
{
    (void)c;
    struct tv pad[2] = {a[0], tmpl__ref(r, "0", 1)};
    if (self.u.s->n && (self.u.s->p[0] == '-' || self.u.s->p[0] == '+'))
        tmpl__fail(r, ERR_UNSUPPORTED, "zfill of a signed number");
    return padded(r, self, pad, 1);
}

/* --- lists and dicts --- */
METHOD(seq_index)
{
    (void)c;
    for (size_t i = 0; i < self.u.l->n; i++)
        if (tmpl__eq(r, self.u.l->v[i], a[0], 0))
            return tmpl__int((int64_t)i);
    tmpl__fail(r, ERR_INVAL, "value is not in the list");
}

METHOD(seq_count)
{
    (void)c;
    int64_t n = 0;
    for (size_t i = 0; i < self.u.l->n; i++)
        n += tmpl__eq(r, self.u.l->v[i], a[0], 0);
    return tmpl__int(n);
}

METHOD(list_copy)
{
    (void)a, (void)c;
    struct tseq *l = self.u.l;
    struct tv out = tmpl__seq(r, l->kind, l->n);
    tmpl__tick(r, l->n * 16);
    for (size_t i = 0; i < l->n; i++)
        tmpl__push(r, out, l->v[i]);
    return out;
}

METHOD(dict_copy)
{
    (void)a, (void)c;
    struct tv out = tmpl__dict(r);
    tmpl__tick(r, self.u.d->n * 32);
    for (size_t i = 0; i < self.u.d->n; i++)
        tmpl__dict_set(r, out.u.d, self.u.d->e[i].k, self.u.d->e[i].v);
    return out;
}

METHOD(dict_get)
{
    (void)c;
    const struct tv *v = tmpl__dict_get(r, self.u.d, a[0]);
    return v ? *v : a[1].t == TV_MISSING ? TV(TV_NONE) : a[1];
}

static struct tv dict_view(struct tmpl_run *r, const struct tdict *d, int kind)
{
    struct tv out = tmpl__seq(r, kind, d->n);
    tmpl__tick(r, d->n * 16);
    for (size_t i = 0; i < d->n; i++)
        tmpl__push(r, out,
                   kind == SEQ_KEYS     ? d->e[i].k
                   : kind == SEQ_VALUES ? d->e[i].v
                                        : tmpl__pair(r, d->e[i].k, d->e[i].v));
    return out;
}

METHOD(dict_items)
{
    (void)a, (void)c;
    return dict_view(r, self.u.d, SEQ_ITEMS);
}

METHOD(dict_keys)
{
    (void)a, (void)c;
    return dict_view(r, self.u.d, SEQ_KEYS);
}

METHOD(dict_values)
{
    (void)a, (void)c;
    return dict_view(r, self.u.d, SEQ_VALUES);
}

/* --- loop, cycler --- */
METHOD(loop_cycle)
{
    (void)a;
    if (c->n == 0)
        tmpl__fail(r, ERR_INVAL, "no items for cycling given");
    return c->pos[self.u.loop->i % (size_t)c->n];
}

METHOD(loop_changed)
{
    (void)a;
    struct tv now = tmpl__seq(r, SEQ_TUPLE, (size_t)c->n), old = self.u.loop->changed;
    for (int i = 0; i < c->n; i++)
        tmpl__push(r, now, c->pos[i]);
    self.u.loop->changed = now;
    return tmpl__bool(old.t == TV_MISSING || !tmpl__eq(r, old, now, 0));
}

METHOD(cycler_next)
{
    (void)r, (void)a, (void)c;
    struct tcycler *y = self.u.cyc;
    struct tv v = y->items->v[y->pos];
    y->pos = (y->pos + 1) % y->items->n;
    return v;
}

METHOD(cycler_reset)
{
    (void)r, (void)a, (void)c;
    self.u.cyc->pos = 0;
    return TV(TV_NONE);
}

static const struct tfn str_tab[] = {
    {"strip", "chars", str_strip},
    {"lstrip", "chars", str_lstrip},
    {"rstrip", "chars", str_rstrip},
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"casefold", "", str_lower},
    {"title", "", str_title},
    {"capitalize", "", str_capitalize},
    {"swapcase", "", str_swapcase},
    {"startswith", "!prefix", str_startswith},
    {"endswith", "!suffix", str_endswith},
    {"removeprefix", "!prefix", str_removeprefix},
    {"removesuffix", "!suffix", str_removesuffix},
    {"find", "!sub", str_find},
    {"rfind", "!sub", str_rfind},
    {"index", "!sub", str_index},
    {"count", "!sub", str_count},
    {"replace", "!old,!new,count", str_replace},
    {"split", "sep,maxsplit", str_split},
    {"rsplit", "sep,maxsplit", str_rsplit},
    {"partition", "!sep", str_partition},
    {"rpartition", "!sep", str_rpartition},
    {"splitlines", "keepends", str_splitlines},
    {"join", "!iterable", str_join},
    {"format", NULL, str_format},
    {"isdigit", "", str_isdigit},
    {"isnumeric", "", str_isdigit},
    {"isdecimal", "", str_isdigit},
    {"isalpha", "", str_isalpha},
    {"isalnum", "", str_isalnum},
    {"isspace", "", str_isspace},
    {"isupper", "", str_isupper},
    {"islower", "", str_islower},
    {"ljust", "!width,fill", str_ljust},
    {"rjust", "!width,fill", str_rjust},
    {"center", "!width,fill", str_center},
    {"zfill", "!width", str_zfill},
    {0},
};
static const struct tfn list_tab[] = {
    {"index", "!value", seq_index}, {"count", "!value", seq_count}, {"copy", "", list_copy}, {0}};
static const struct tfn dict_tab[] = {
    {"get", "!key,default", dict_get}, {"items", "", dict_items}, {"keys", "", dict_keys},
    {"values", "", dict_values},       {"copy", "", dict_copy},   {0}};
static const struct tfn loop_tab[] = {
    {"cycle", NULL, loop_cycle}, {"changed", NULL, loop_changed}, {0}};
static const struct tfn cycler_tab[] = {
    {"next", "", cycler_next}, {"reset", "", cycler_reset}, {0}};

METHOD(not_here)
{
    (void)self, (void)a, (void)c;
    tmpl__fail(r, ERR_UNSUPPORTED, "this string method is not supported");
}
static const struct tfn no_method = {"method", NULL, not_here};

/* Methods of Python's types that we do not have. */
static const char list_hidden[] = " append clear pop reverse insert sort extend remove ";
static const char dict_hidden[] = " popitem fromkeys ";
static const char str_missing[] = " encode expandtabs format_map isascii isidentifier isprintable "
                                  "istitle maketrans rindex translate ";

const struct tfn *tmpl__fn_find(const struct tfn *tab, const char *name, size_t n)
{
    for (; tab->name; tab++)
        if (strlen(tab->name) == n && memcmp(tab->name, name, n) == 0)
            return tab;
    return NULL;
}

const struct tfn *tmpl__str_method(const char *name, size_t n)
{
    return tmpl__fn_find(str_tab, name, n);
}

static bool one_of(const char *words, const char *name, size_t n)
{
    for (const char *w = words + 1; *w; w += strcspn(w, " ") + 1)
        if (strcspn(w, " ") == n && memcmp(w, name, n) == 0)
            return true;
    return false;
}

static bool dunder(const char *name, size_t n)
{
    return n > 4 && memcmp(name, "__", 2) == 0 && memcmp(name + n - 2, "__", 2) == 0;
}

const struct tfn *tmpl__method(struct tv o, const char *name, size_t n, bool *blocked)
{
    const struct tfn *tab = NULL;
    const char *bad = " ";
    if (o.t == TV_STR) {
        tab = str_tab;
        if (one_of(str_missing, name, n))
            return &no_method;
    } else if (o.t == TV_SEQ && o.u.l->kind <= SEQ_RANGE) {
        tab = list_tab;
        bad = list_hidden;
    } else if (o.t == TV_DICT) {
        tab = dict_tab;
        bad = dict_hidden;
    } else if (o.t == TV_LOOP) {
        tab = loop_tab;
    } else if (o.t == TV_CYCLER) {
        tab = cycler_tab;
    }
    const struct tfn *fn = tab ? tmpl__fn_find(tab, name, n) : NULL;
    fn = fn ? fn : tmpl__change(o, name, n);
    *blocked = !fn && (one_of(bad, name, n) || dunder(name, n));
    return fn;
}
