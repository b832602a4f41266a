#include "tests/mutate.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

#define GROW 256 /* bytes that a mutant may be longer */

static const char *const values[] = {
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "65",
    "65536",
    "1e6",
    "2147483647",
    "2147483648",
    "4294967295",
    "1e308",
    "-1e308",
    "0.5",
    "1e-300",
    "null",
    "true",
    "false",
    "\"\"",
    "\"x\"",
    "\"1\"",
    "[]",
    "{}",
    "[0]",
    "[-1,1,2,3]",
    "[[[1]]]",
    "{\"a\":{\"b\":[]}}",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e400",
};
#define N_VALUE (sizeof values / sizeof *values)

static const uint64_t numbers[] = {0,
                                   1,
                                   2,
                                   255,
                                   65535,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   0xffffffffffffffff,
                                   0x2000000000000000,
                                   0xfffffffffffffff0};
#define N_NUMBER (sizeof numbers / sizeof *numbers)

struct dice {
    uint64_t seed, n;
};
static size_t roll(struct dice *d, size_t sides)
{
    return sides ? (size_t)(hash_u64(d->seed * 0x9e3779b97f4a7c15u + d->n++) % sides) : 0;
}

/* ---- what can be damaged ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_text(const char *p, size_t at, size_t n)
{
    for (at++; at < n && p[at] != '"'; at++)
        at += p[at] == '\\';
    return at + 1;
}

static void span_add(struct mutate_file *f, struct mutate_span s)
{
    if ((f->n_span & (f->n_span - 1)) == 0) /* a power of two: full */
        f->span = xrealloc(f->span, (f->n_span ? 2 * f->n_span : 1) * sizeof s);
    f->span[f->n_span++] = s;
}

/* Spans of every value of a well-formed text [at, n), by a stack of what is open. */
static void spans_find(struct mutate_file *f, size_t at, size_t n)
{
    const char *p = f->good;
    size_t key = 0, stack[64], depth = 0;
    bool have_key = false;
    while (at < n) {
        char c = p[at];
        if (c == '{' || c == '[') {
            CHECK(depth < 64);
            stack[depth++] = f->n_span;
            span_add(f, (struct mutate_span){have_key ? key : at, at, at});
            have_key = false;
            at++;
        } else if (c == '}' || c == ']') {
            CHECK(depth > 0);
            f->span[stack[--depth]].to = ++at;
        } else if (is_space(c) || c == ',' || c == ':' || c == 0) {
            at++;
        } else {
            size_t end = at;
            if (c == '"')
                end = skip_text(p, at, n);
            else
                while (end < n && !strchr(" \n\r\t,]}", p[end]))
                    end++;
            size_t next = end;
            while (next < n && is_space(p[next]))
                next++;
            if (c == '"' && next < n && p[next] == ':') {
                key = at;
                have_key = true;
            } else {
                span_add(f, (struct mutate_span){have_key ? key : at, at, end});
                have_key = false;
            }
            at = end;
        }
    }
}

/* Both ends of what looks like a name: numbers stand beside it. */
static void anchors_find(struct mutate_file *f)
{
    size_t run = 0, dots = 0;
    f->anchor = xmalloc((f->head + 2) * sizeof *f->anchor);
    f->anchor[f->n_anchor++] = 0;
    for (size_t i = 0; i < f->head; i++) {
        char c = f->good[i];
        bool in =
            (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/';
        run = in ? run + 1 : 0;
        dots = in ? dots + (c == '.' || c == '/') : 0;
        bool last = i + 1 == f->head || !strchr("abcdefghijklmnopqrstuvwxyz0123456789_./",
                                                f->good[i + 1] ? f->good[i + 1] : ' ');
        if (in && last && run >= 6 && dots) {
            f->anchor[f->n_anchor++] = i + 1 - run;
            f->anchor[f->n_anchor++] = i + 1;
        }
    }
}

void mutate_file_init(struct mutate_file *f, enum mutate_kind kind, char *good, size_t n,
                      size_t head)
{
    *f = (struct mutate_file){.kind = kind, .good = good, .n = n, .head = head ? head : n};
    if (kind == MUTATE_SAFETENSORS) {
        uint64_t len;
        CHECK(n > 8);
        memcpy(&len, good, 8);
        CHECK(len < n);
        f->head = 8 + (size_t)len;
    }
    if (kind == MUTATE_BINARY)
        anchors_find(f);
    else
        spans_find(f, kind == MUTATE_JSON ? 0 : 8, f->head);
}

void mutate_file_free(struct mutate_file *f)
{
    free(f->good);
    free(f->span);
    free(f->anchor);
    *f = (struct mutate_file){0};
}

size_t mutate_room(const struct mutate_file *f)
{
    return 2 * f->head + f->n + GROW;
}

/* ---- damage ---- */

/* dst = good with [from, to) replaced by the n bytes at `by`. */
static size_t splice(const struct mutate_file *f, size_t from, size_t to, const char *by, size_t n,
                     char *dst)
{
    memcpy(dst, f->good, from);
    memcpy(dst + from, by, n);
    memcpy(dst + from + n, f->good + to, f->n - to);
    return f->n - (to - from) + n;
}

/* A member with the comma before or behind it. */
static size_t cut_out(const struct mutate_file *f, const struct mutate_span *s, char *dst)
{
    size_t from = s->key, to = s->to;
    while (to < f->head && is_space(f->good[to]))
        to++;
    if (to < f->head && f->good[to] == ',') {
        to++;
    } else {
        while (from > 0 && is_space(f->good[from - 1]))
            from--;
        from -= from > 0 && f->good[from - 1] == ',';
    }
    return splice(f, from, to, "", 0, dst);
}

size_t mutate_value(const struct mutate_file *f, size_t span, const char *by, char *dst)
{
    const struct mutate_span *s = &f->span[span];
    return by ? splice(f, s->from, s->to, by, strlen(by), dst) : cut_out(f, s, dst);
}

/* A span that is no list or object, from `at` on. */
static size_t leaf(const struct mutate_file *f, size_t at)
{
    size_t i = at % f->n_span;
    while (strchr("{[", f->good[f->span[i].from]))
        i = (i + 1) % f->n_span;
    return i;
}

size_t mutate_pair(const struct mutate_file *f, uint64_t seed, char *dst, char *what, size_t n_what)
{
    static const char *const with[] = {"1",  "2",   "3",   "4",    "8",    "16",    "24",      "48",
                                       "64", "128", "512", "1000", "4096", "65536", "1048576", "0"};
    struct dice d = {.seed = ~seed};
    size_t i = leaf(f, roll(&d, f->n_span)), k = leaf(f, roll(&d, f->n_span));
    const struct mutate_span *a = &f->span[i < k ? i : k], *b = &f->span[i < k ? k : i];
    const char *va = with[roll(&d, 16)], *vb = with[roll(&d, 16)];
    snprintf(what, n_what, "%.30s -> %s, %.30s -> %s", f->good + a->key, va, f->good + b->key, vb);
    if (a == b)
        return splice(f, a->from, a->to, va, strlen(va), dst);
    size_t na = strlen(va), nb = strlen(vb), at = a->from + na, mid = b->from - a->to;
    memcpy(dst, f->good, a->from);
    memcpy(dst + a->from, va, na);
    memcpy(dst + at, f->good + a->to, mid);
    memcpy(dst + at + mid, vb, nb);
    memcpy(dst + at + mid + nb, f->good + b->to, f->n - b->to);
    return at + mid + nb + f->n - b->to;
}

static size_t json_twice(const struct mutate_file *f, const struct mutate_span *s, const char *by,
                         char *dst)
{
    size_t name = s->from - s->key, at = s->key;
    memcpy(dst, f->good, at);
    memcpy(dst + at, f->good + s->key, name);
    at += name;
    memcpy(dst + at, by, strlen(by));
    at += strlen(by);
    dst[at++] = ',';
    memcpy(dst + at, f->good + s->key, f->n - s->key);
    return at + f->n - s->key;
}

/* Two values change places; of offsets, these cross or overlap. */
static size_t json_swap(const struct mutate_file *f, const struct mutate_span *a,
                        const struct mutate_span *b, char *dst)
{
    if (a->from > b->from) {
        const struct mutate_span *t = a;
        a = b;
        b = t;
    }
    if (a->to > b->from)
        return cut_out(f, b, dst);
    size_t at = 0, na = a->to - a->from, nb = b->to - b->from;
    memcpy(dst, f->good, at = a->from);
    memcpy(dst + at, f->good + b->from, nb);
    at += nb;
    memcpy(dst + at, f->good + a->to, b->from - a->to);
    at += b->from - a->to;
    memcpy(dst + at, f->good + a->from, na);
    at += na;
    memcpy(dst + at, f->good + b->to, f->n - b->to);
    return at + f->n - b->to;
}

static size_t damage_json(const struct mutate_file *f, struct dice *d, char *dst, char *what,
                          size_t n)
{
    size_t i = roll(d, f->n_span), kind = roll(d, 8), at = f->head;
    size_t far = roll(d, 3) ? i + 1 + roll(d, 6) : roll(d, f->n_span);
    const struct mutate_span *s = &f->span[i];
    const char *by = values[roll(d, N_VALUE)];
    snprintf(what, n, "%s %.40s -> %s",
             kind < 5    ? "value"
             : kind == 5 ? "twice"
                         : "cut or swap",
             f->good + s->key, by);
    if (kind < 4)
        return mutate_value(f, i, by, dst);
    if (kind == 4)
        return cut_out(f, s, dst);
    if (kind == 5 && s->key < s->from)
        return json_twice(f, s, by, dst);
    if (kind == 6)
        return json_swap(f, s, &f->span[far % f->n_span], dst);
    memcpy(dst, f->good, f->n);
    at = (f->kind == MUTATE_JSON ? 0 : 8) + roll(d, f->head - 8);
    snprintf(what, n, "bytes at %zu", at);
    for (size_t k = 1 + roll(d, 3); k > 0 && at < f->head; k--)
        dst[at++] = (char)roll(d, 256);
    return f->n;
}

static size_t place(const struct mutate_file *f, struct dice *d)
{
    if (roll(d, 4) == 0)
        return roll(d, f->head);
    size_t at = f->anchor[roll(d, f->n_anchor)] + roll(d, 40);
    return at >= 9 ? (at - 9 < f->head ? at - 9 : f->head - 1) : at % f->head;
}

static size_t damage_binary(const struct mutate_file *f, struct dice *d, char *dst, char *what,
                            size_t n)
{
    size_t at = place(f, d), kind = roll(d, 8), left = f->head - at, k;
    uint64_t v = numbers[roll(d, N_NUMBER)], w;
    size_t width = (size_t[]){1, 2, 4, 8}[roll(d, 4)];
    char by[64];
    snprintf(what, n, "kind %zu at %zu width %zu value %llx", kind, at, width,
             (unsigned long long)v);
    memcpy(dst, f->good, f->n);
    if (kind == 6) { /* some bytes are missing */
        k = 1 + roll(d, 16);
        return splice(f, at, at + (k < left ? k : left), "", 0, dst);
    }
    if (kind == 7) { /* some are there twice */
        k = 1 + roll(d, left < 64 ? left : 64);
        memcpy(by, f->good + at, k);
        return splice(f, at, at, by, k, dst);
    }
    if (kind < 2) {
        for (k = 1 + roll(d, 3); k > 0; k--, at = place(f, d))
            dst[at] = (char)(dst[at] ^ (1 << roll(d, 8)));
    } else if (kind == 2) {
        for (k = 1 + roll(d, 8); k > 0 && at < f->head; k--)
            dst[at++] = (char)roll(d, 256);
    } else if (kind < 5) {
        memcpy(dst + at, &v, width < left ? width : left);
    } else if (f->head >= 16) { /* two numbers change places */
        size_t to = place(f, d);
        at = at > f->head - 8 ? f->head - 8 : at;
        to = to > f->head - 8 ? f->head - 8 : to;
        memcpy(&v, f->good + at, 8);
        memcpy(&w, f->good + to, 8);
        memcpy(dst + at, &w, 8);
        memcpy(dst + to, &v, 8);
    }
    return f->n;
}

size_t mutate(const struct mutate_file *f, uint64_t seed, char *dst, char *what, size_t n_what)
{
    struct dice d = {.seed = seed + 1};
    if (f->kind == MUTATE_BINARY)
        return damage_binary(f, &d, dst, what, n_what);
    if (f->kind == MUTATE_SAFETENSORS && roll(&d, 12) == 0) {
        uint64_t v = roll(&d, 2) ? numbers[roll(&d, N_NUMBER)] : f->head - 8 + roll(&d, 65) - 32;
        memcpy(dst, f->good, f->n);
        memcpy(dst, &v, 8);
        snprintf(what, n_what, "header of %llu bytes", (unsigned long long)v);
        return f->n;
    }
    size_t n = damage_json(f, &d, dst, what, n_what);
    if (f->kind == MUTATE_SAFETENSORS && roll(&d, 10)) { /* else the data begins elsewhere */
        uint64_t len = f->head - 8 + n - f->n;
        memcpy(dst, &len, 8);
    }
    return n;
}
