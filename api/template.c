/* Chat templates: the public calls, errors and memory. See template_impl.h for the parts. */
#include "api/template_impl.h"

#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room of a render's arena for each byte of output: intermediate strings, and the 1.5 to 3 fold slack
 * of builders that double. */
#define ARENA_PER_OUTPUT 8
#define MAX_SOURCE       ((size_t)4 << 20)
#define COMPILE_ARENA    ((size_t)256 << 20)

void tmpl__fail(struct tmpl_run *r, int code, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->code = r->line > 0 ? err_set(r->e, code, "template line %d: %s", r->line, text)
                          : err_set(r->e, code, "%s", text);
    longjmp(r->jb, 1);
}

void *tmpl__alloc(struct tmpl_run *r, size_t n, size_t size)
{
    size_t bytes, total;
    void *p = arena_array(&r->arena, n, size);
    if (p)
        return p;
    if (!ck_mul(n, size, &bytes) || !ck_add(bytes, r->arena.used, &total) ||
        total + 16 > r->arena.limit)
        tmpl__fail(r, ERR_LIMIT, "template needs more than %zu bytes of memory", r->arena.limit);
    tmpl__fail(r, ERR_NOMEM, "out of memory");
}

void tmpl__tick(struct tmpl_run *r, size_t bytes)
{
    r->steps += 1 + (int64_t)(bytes / 256);
    if (r->lim.max_steps && r->steps > r->lim.max_steps)
        tmpl__fail(r, ERR_LIMIT, "template took more than %lld steps", (long long)r->lim.max_steps);
}

static char *sb_room(struct tmpl_run *r, struct tsb *b, size_t n)
{
    size_t need;
    if (!ck_add(b->n, n, &need) || (r->lim.max_output && need > r->lim.max_output))
        tmpl__fail(r, ERR_LIMIT, "template makes more than %zu bytes of text", r->lim.max_output);
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 32;
        while (cap < need)
            cap *= 2;
        char *p = tmpl__alloc(r, cap, 1);
        if (b->n)
            memcpy(p, b->p, b->n);
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

void tmpl__sb_add(struct tmpl_run *r, struct tsb *b, const char *p, size_t n)
{
    char *to = sb_room(r, b, n);
    if (n)
        memcpy(to, p, n);
    b->n += n;
}

void tmpl__sb_str(struct tmpl_run *r, struct tsb *b, const char *s)
{
    tmpl__sb_add(r, b, s, strlen(s));
}

void tmpl__sb_pad(struct tmpl_run *r, struct tsb *b, const char *fill, size_t fill_n, int64_t times)
{
    size_t total = 0;
    if (times <= 0 || fill_n == 0)
        return;
    if (!ck_mul((size_t)times, fill_n, &total))
        total = SIZE_MAX;
    char *to = sb_room(r, b, total);
    tmpl__tick(r, total);
    for (int64_t i = 0; i < times; i++)
        memcpy(to + (size_t)i * fill_n, fill, fill_n);
    b->n += total;
}

struct tv tmpl__sb_take(struct tmpl_run *r, struct tsb *b)
{
    struct tv v = tmpl__ref(r, b->p ? b->p : "", b->n);
    *b = (struct tsb){0};
    return v;
}

/* --- compile --- */
static int compile(struct tmpl_run *r, struct api_template *t, const char *src, size_t n)
{
    struct parser p = {.r = r, .t = t};
    if (setjmp(r->jb))
        return r->code;
    p.tok = tmpl__lex(r, src, n);
    t->root = tmpl__parse(&p);
    return 0;
}

int api_template_compile(struct api_template **out, const char *src, size_t n, struct err *e)
{
    if (n > MAX_SOURCE)
        return err_set(e, ERR_LIMIT, "template of %zu bytes is over the limit of %zu", n,
                       MAX_SOURCE);
    if (!utf8_valid(src, n))
        return err_set(e, ERR_PARSE, "template is not UTF-8");
    struct api_template *t = mem_calloc(1, sizeof(*t));
    if (!t)
        return err_set(e, ERR_NOMEM, "template: out of memory");
    struct tmpl_run r = {.e = e, .arena.limit = COMPILE_ARENA};
    int rc = compile(&r, t, src, n);
    t->arena = r.arena;
    if (rc) {
        api_template_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void api_template_free(struct api_template *t)
{
    if (!t)
        return;
    arena_free(&t->arena);
    free(t);
}

/* --- render --- */
static void bind_vars(struct tmpl_run *r, json_t *vars)
{
    const struct api_template *t = r->t;
    r->root = tmpl__alloc(r, (size_t)t->n_sym + 1, sizeof(*r->root));
    for (int i = 0; i < t->n_sym; i++) {
        const struct tstr *s = t->sym[i];
        const json_t *j = json_object_getn(vars, s->p, s->n);
        const struct tfn *fn = tmpl__global(s->p, s->n);
        r->root[i] = TV(TV_MISSING);
        if (j)
            r->root[i] = tmpl__from_json(r, j, 0);
        else if (fn)
            r->root[i] = (struct tv){.t = TV_FN, .u.fn = fn};
    }
}

static int render(struct tmpl_run *r, json_t *vars, struct buf *out)
{
    struct tsb text = {0};
    if (setjmp(r->jb))
        return r->code;
    bind_vars(r, vars);
    r->out = &text;
    tmpl__exec(r, r->t->root);
    buf_add(out, text.p, text.n);
    if (out->failed)
        return err_set(r->e, out->limit ? ERR_LIMIT : ERR_NOMEM, "no room for the rendered text");
    return 0;
}

int api_template_render(const struct api_template *t, json_t *vars, const struct tm *now,
                        const struct api_template_limits *lim, struct buf *out, struct err *e)
{
    struct tmpl_run r = {.e = e, .t = t, .now = now, .key = hash_key_random()};
    if (lim)
        r.lim = *lim;
    if (!r.lim.max_steps)
        r.lim.max_steps = 1000000;
    if (!r.lim.max_output)
        r.lim.max_output = (size_t)16 << 20;
    if (!r.lim.max_loop)
        r.lim.max_loop = 10000;
    if (!r.lim.max_depth)
        r.lim.max_depth = 100;
    size_t room;
    if (!ck_mul(r.lim.max_output, ARENA_PER_OUTPUT, &room) ||
        !ck_add(room, (size_t)16 << 20, &r.arena.limit))
        r.arena.limit = SIZE_MAX / 2;
    int rc = render(&r, vars, out);
    arena_free(&r.arena);
    return rc;
}
