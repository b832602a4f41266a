/* Chat templates: the methods that change a list or a dict. Published templates build queues with them, so there is no
 * immutable sandbox here; a render changes nothing but its own values, which it made from the request's JSON. */
#include "api/template_impl.h"

#include <string.h>

typedef const struct tcall call_args;
#define METHOD(fn)                                                                                 \
    static struct tv fn(struct tmpl_run *r, struct tv self, struct tv *a, call_args *c)

/* Slots that several lists share (list + list) are copied before one of them changes. */
static struct tseq *own(struct tmpl_run *r, struct tv self)
{
    struct tseq *l = self.u.l;
    if (!l->used)
        return l;
    tmpl__tick(r, l->n * 16);
    struct tv *v = tmpl__alloc(r, l->n + 4, sizeof(*v));
    memcpy(v, l->v, l->n * sizeof(*v));
    l->v = v;
    l->cap = l->n + 4;
    l->used = NULL;
    return l;
}

/* Index as Python has it: from the end when negative. */
static int64_t index_of(struct tmpl_run *r, const struct tseq *l, struct tv at, int64_t if_none)
{
    int64_t i = at.t == TV_MISSING ? if_none : tmpl__as_int(r, at, "index");
    return i < 0 ? i + (int64_t)l->n : i;
}

static void insert_at(struct tmpl_run *r, struct tv self, size_t i, struct tv v)
{
    struct tseq *l = self.u.l;
    tmpl__tick(r, (l->n - i) * 16);
    tmpl__push(r, self, v);
    memmove(l->v + i + 1, l->v + i, (l->n - 1 - i) * sizeof(*l->v));
    l->v[i] = v;
}

static struct tv take_at(struct tmpl_run *r, struct tseq *l, size_t i)
{
    struct tv v = l->v[i];
    tmpl__tick(r, (l->n - i) * 16);
    memmove(l->v + i, l->v + i + 1, (l->n - i - 1) * sizeof(*l->v));
    l->n--;
    return v;
}

METHOD(list_append)
{
    (void)c;
    own(r, self);
    tmpl__push(r, self, a[0]);
    return TV(TV_NONE);
}

METHOD(list_extend)
{
    (void)c;
    struct tseq *more = tmpl__iter(r, a[0]);
    size_t n = more->n; /* which may be the list itself */
    own(r, self);
    tmpl__tick(r, n * 16);
    for (size_t i = 0; i < n; i++)
        tmpl__push(r, self, more->v[i]);
    return TV(TV_NONE);
}

METHOD(list_insert)
{
    (void)c;
    struct tseq *l = own(r, self);
    int64_t i = index_of(r, l, a[0], 0);
    i = i < 0 ? 0 : i > (int64_t)l->n ? (int64_t)l->n : i;
    insert_at(r, self, (size_t)i, a[1]);
    return TV(TV_NONE);
}

METHOD(list_pop)
{
    (void)c;
    struct tseq *l = own(r, self);
    int64_t i = index_of(r, l, a[0], -1);
    if (i < 0 || i >= (int64_t)l->n)
        tmpl__fail(r, ERR_INVAL, l->n ? "pop index out of range" : "pop from empty list");
    return take_at(r, l, (size_t)i);
}

METHOD(list_remove)
{
    (void)c;
    struct tseq *l = own(r, self);
    size_t i = 0;
    while (i < l->n && !tmpl__eq(r, l->v[i], a[0], 0))
        i++;
    if (i == l->n)
        tmpl__fail(r, ERR_INVAL, "list.remove(x): x not in list");
    take_at(r, l, i);
    return TV(TV_NONE);
}

METHOD(list_clear)
{
    (void)a, (void)c;
    own(r, self)->n = 0;
    return TV(TV_NONE);
}

METHOD(list_reverse)
{
    (void)a, (void)c;
    struct tseq *l = own(r, self);
    tmpl__tick(r, l->n * 16);
    for (size_t i = 0; i < l->n / 2; i++) {
        struct tv v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
    return TV(TV_NONE);
}

static void dict_add(struct tmpl_run *r, struct tdict *d, struct tv k, struct tv v)
{
    tmpl__tick(r, 16);
    tmpl__dict_set(r, d, k, v);
}

/* update(mapping or pairs, name=value, ...) */
METHOD(dict_update)
{
    (void)a;
    struct tdict *d = self.u.d;
    if (c->n > 1)
        tmpl__fail(r, ERR_INVAL, "update expected at most 1 argument, got %d", c->n);
    if (c->n && (c->pos[0].t == TV_DICT || c->pos[0].t == TV_NS)) {
        const struct tdict *from = c->pos[0].u.d;
        for (size_t i = 0; i < from->n; i++)
            dict_add(r, d, from->e[i].k, from->e[i].v);
    } else if (c->n) {
        struct tseq *l = tmpl__iter(r, c->pos[0]);
        for (size_t i = 0; i < l->n; i++) {
            struct tseq *pair = tmpl__iter(r, l->v[i]);
            if (pair->n != 2)
                tmpl__fail(r, ERR_INVAL,
                           "dictionary update sequence element %zu has length %zu; "
                           "2 is required",
                           i, pair->n);
            dict_add(r, d, pair->v[0], pair->v[1]);
        }
    }
    for (int i = 0; i < c->n_kw; i++)
        dict_add(r, d, (struct tv){.t = TV_STR, .u.s = c->kwn[i]}, c->kwv[i]);
    return TV(TV_NONE);
}

METHOD(dict_setdefault)
{
    (void)c;
    const struct tv *old = tmpl__dict_get(r, self.u.d, a[0]);
    struct tv v = old ? *old : a[1].t == TV_MISSING ? TV(TV_NONE) : a[1];
    if (!old)
        dict_add(r, self.u.d, a[0], v);
    return v;
}

METHOD(dict_clear)
{
    (void)r, (void)a, (void)c;
    *self.u.d = (struct tdict){0};
    return TV(TV_NONE);
}

METHOD(dict_pop)
{
    (void)c;
    const struct tv *old = tmpl__dict_get(r, self.u.d, a[0]);
    struct tdict rest = {0}, *d = self.u.d;
    if (!old && a[1].t == TV_MISSING)
        tmpl__fail(r, ERR_INVAL, "pop: no such key");
    struct tv v = old ? *old : a[1];
    for (size_t i = 0; old && i < d->n; i++)
        if (&d->e[i].v != old)
            dict_add(r, &rest, d->e[i].k, d->e[i].v);
    if (old)
        *d = rest;
    return v;
}

static const struct tfn list_tab[] = {{"append", "!value", list_append},
                                      {"extend", "!values", list_extend},
                                      {"insert", "!index,!value", list_insert},
                                      {"pop", "index", list_pop},
                                      {"remove", "!value", list_remove},
                                      {"clear", "", list_clear},
                                      {"reverse", "", list_reverse},
                                      {0}};
static const struct tfn dict_tab[] = {{"update", NULL, dict_update},
                                      {"setdefault", "!key,default", dict_setdefault},
                                      {"pop", "!key,default", dict_pop},
                                      {"clear", "", dict_clear},
                                      {0}};

const struct tfn *tmpl__change(struct tv o, const char *name, size_t n)
{
    if (o.t == TV_DICT)
        return tmpl__fn_find(dict_tab, name, n);
    return o.t == TV_SEQ && o.u.l->kind == SEQ_LIST ? tmpl__fn_find(list_tab, name, n) : NULL;
}
