/* See weights_out.h. */
#include "engine/load/weights_out.h"
#include "engine/base/mem.h"
#include "engine/load/hfq.h"
#include "engine/load/weights_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
    const struct weight_plan *p;
    const struct weight_table *t;
    const struct weight_out_rope *rope;
    struct weight_out *w;
    int n, n_max;
};

/* Whether a row has names of whole tensors in a GGUF file. */
static bool has_names(const struct weight_row *r)
{
    return r->name[0] && !strstr(r->name[0], "{}");
}

/* The row that names a slot's tensors in a GGUF file: its own, or another one of the same slot; experts with gate and up
 * apart, as every reader has them. */
static const struct weight_row *row_of(const struct weight_table *t, const struct bind *b)
{
    const struct weight_row *own = has_names(b->row) ? b->row : NULL;
    bool fused = own && (own->flags & WEIGHT_EXPERTS) && strstr(own->name[0], "gate_up");
    const unsigned same = WEIGHT_GLOBAL | WEIGHT_VECTOR | WEIGHT_EXPERTS;
    /* A row that only GGUF files have stands before the folder's: so does the converter write it. */
    const unsigned by_heads = WEIGHT_ALT | WEIGHT_ROW_ANY, norm = WEIGHT_ELSE | WEIGHT_VECTOR;
    bool other = own && (((own->flags & norm) == norm && !own->name[1]) ||
                         (own->flags & by_heads) == by_heads);
    if (own && !fused && !other)
        return own;
    for (int i = 0; i < t->n_row; i++) {
        const struct weight_row *r = &t->row[i];
        if (r != b->row && r->slot == b->row->slot && has_names(r) && !(other && r->hf[0]) &&
            (r->flags & same) == (b->row->flags & same) && weights__row_has(t, r, b->layer))
            return r;
    }
    return own;
}

static int add(struct list *l, const struct weight_out *w, struct err *e)
{
    if (l->n == l->n_max) {
        int n = l->n_max * 2 + 64;
        struct weight_out *q = mem_realloc(l->w, (size_t)n * sizeof *q);
        if (!q)
            return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
        l->w = q;
        l->n_max = n;
    }
    l->w[l->n++] = *w;
    return 0;
}

/* Shape of a vector: flat, an expert a row, or as the folder has it without dimensions of one. */
static void vector_shape(const struct list *l, const struct bind *b, int n_part,
                         struct weight_out *w)
{
    const struct ckpt_tensor *t = &l->p->piece[b->piece].t;
    int64_t n = w->rows, turn = b->n_expert ? b->n_expert : b->n_turn;
    w->n_dim = 1;
    w->dim[0] = n;
    if (turn > 1) {
        w->n_dim = 2;
        w->dim[0] = n / turn;
        w->dim[1] = turn;
    } else if (b->n_part == 1 && n_part == 1) {
        int d = 0;
        for (int i = t->n_dim - 1; i >= 0; i--)
            if (t->dim[i] != 1)
                w->dim[d++] = t->dim[i];
        w->n_dim = d > 0 ? d : 1;
    }
}

/* Rows of a part come from one tensor, or from several of one format. */
static int format_of(const struct list *l, const struct bind *b, struct weight_out *w,
                     struct err *e)
{
    int64_t at = 0;
    bool first = true;
    for (int i = 0; i < b->n_part; i++) {
        const struct piece *q = &l->p->piece[b->piece + i];
        bool in = at < w->at + w->rows && at + q->n_out > w->at;
        /* A GGUF file has no order of columns of its own. */
        enum quant_fmt fmt = q->col ? QF_F32 : q->t.fmt;
        if (in && !first && w->fmt != fmt)
            return err_set(e, ERR_UNSUPPORTED, "tensor %s: parts in different formats", b->name);
        if (in)
            w->fmt = fmt;
        first = first && !in;
        at += q->n_out;
    }
    return first ? err_set(e, ERR_UNSUPPORTED, "tensor %s: no rows for %s", b->name, w->name) : 0;
}

static void rope_set(const struct list *l, const struct bind *b, struct weight_out *w)
{
    const struct weight_out_rope *o = l->rope;
    bool here = !(b->row->flags & WEIGHT_GLOBAL) &&
                b->row->slot == (b->row->flags & WEIGHT_VECTOR ? o->qkv_bias : o->qkv);
    if (here && o->head && w->at < o->n_q + o->n_k) {
        w->head = o->head;
        w->rot = o->rot;
    }
}

static int item_add(struct list *l, int item, struct err *e)
{
    const struct bind *b = &l->p->item[item];
    const struct weight_row *r = row_of(l->t, b);
    int n_part = 0, rc;
    int64_t at = 0;
    if (!r)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s has no place in a GGUF file", b->name);
    while (n_part < 3 && r->name[n_part])
        n_part++;
    for (int i = 0; i < n_part; i++) {
        struct weight_out w = {.item = item, .at = at, .dim = {1, 1, 1, 1}};
        w.rows = l->t->dim[r->n_out[i]];
        w.n_expert = b->n_expert;
        w.slot_order = !(r->flags & WEIGHT_ROW_ANY);
        int len = (r->flags & WEIGHT_GLOBAL)
                      ? snprintf(w.name, sizeof w.name, "%s", r->name[i])
                      : snprintf(w.name, sizeof w.name, "blk.%d.%s", b->layer, r->name[i]);
        if (len >= 64) /* the format's own limit */
            return err_set(e, ERR_UNSUPPORTED, "tensor %s: name is too long", w.name);
        if (r->flags & WEIGHT_VECTOR) {
            vector_shape(l, b, n_part, &w);
            w.fmt = QF_F32;
        } else {
            w.n_dim = w.rows == 1 && !b->n_expert ? 1 : b->n_expert ? 3 : 2;
            w.dim[0] = b->n_in;
            w.dim[1] = w.rows;
            w.dim[2] = b->n_expert ? b->n_expert : 1;
            if ((rc = format_of(l, b, &w, e)))
                return rc;
        }
        rope_set(l, b, &w);
        if ((rc = add(l, &w, e)))
            return rc;
        at += w.rows;
    }
    return at == b->n_out
               ? 0
               : err_set(e, ERR_UNSUPPORTED, "tensor %s: %lld rows, a GGUF file has %lld", b->name,
                         (long long)b->n_out, (long long)at);
}

int weights_out_list(struct weight_out **out, int *n, const struct weight_plan *p,
                     const struct weight_table *t, const struct weight_out_rope *rope,
                     struct err *e)
{
    struct list l = {.p = p, .t = t, .rope = rope};
    int rc = 0;
    for (int i = 0; i < p->n && !rc; i++)
        rc = item_add(&l, i, e);
    if (rc) {
        free(l.w);
        return rc;
    }
    *out = l.w;
    *n = l.n;
    return 0;
}

/* Pairs beside each other, from pairs half the rotated part apart. */
static int64_t folder_row(const struct weight_out *w, int64_t r)
{
    int64_t h = w->head ? r / w->head * w->head : 0, i = r - h;
    return !w->head || i >= w->rot ? r : h + i / 2 + (i % 2) * (w->rot / 2);
}

static int vector_values(const struct weight_plan *p, const struct weight_out *w, float *dst,
                         struct err *e)
{
    const struct bind *b = &p->item[w->item];
    float *all = mem_alloc((size_t)b->n_out * sizeof *all);
    if (!all)
        return err_set(e, ERR_NOMEM, "no memory for tensor %s", b->name);
    weights__vector(p, b, all);
    int64_t turn = b->n_turn, width = b->n_out / turn, n = w->rows / turn, at = w->at / turn;
    for (int64_t x = 0; x < turn; x++)
        for (int64_t i = 0; i < n; i++)
            dst[x * n + i] = all[x * width + at + folder_row(w, i)];
    free(all);
    return 0;
}

bool weights_out_is_vector(const struct weight_plan *p, const struct weight_out *w)
{
    return p->item[w->item].row->flags & WEIGHT_VECTOR;
}

bool weights_out_is_multiplied(const struct weight_plan *p, const struct weight_out *w)
{
    return p->item[w->item].multiplied;
}

int weights_out_row(const struct weight_plan *p, const struct weight_out *w, int64_t r, void *dst,
                    struct err *e)
{
    const struct bind *b = &p->item[w->item];
    const struct weight_row *row = b->row;
    if (row->flags & WEIGHT_VECTOR)
        return vector_values(p, w, dst, e);
    int64_t x = r / w->rows, at = w->at + folder_row(w, r % w->rows);
    const struct piece *q = &p->piece[b->piece + x * b->n_part];
    int part = 0;
    for (; at >= q->n_out; part++, q++)
        at -= q->n_out;
    if (row->hf_row && w->slot_order)
        at = row->hf_row(p->hp, part, at);
    if (q->turned)
        return hfq_turned(q->t.hfq, q->row, b->n_in, at, 1, dst, e);
    if (q->t.hfq && hfq_col(q->t.hfq))
        return hfq_rows_dense(q->t.hfq, q->col ? QF_F32 : QF_F16, q->row + at, 1, dst, e);
    if (q->t.hfq)
        return hfq_rows(q->t.hfq, q->row + at, 1, dst, e);
    const struct quant_format *f = quant_format_get(q->t.fmt);
    size_t bytes, v = (size_t)f->block_bytes, n_in = (size_t)b->n_in, n_out = (size_t)q->n_out;
    quant_row_bytes(f, b->n_in, &bytes); /* the plan checked it */
    if (!weights__is_turned(p, row, &q->t))
        memcpy(dst, q->at + (size_t)at * bytes, bytes);
    else
        for (size_t k = 0; k < n_in; k++)
            memcpy((char *)dst + k * v, q->at + (k * n_out + (size_t)at) * v, v);
    return 0;
}
