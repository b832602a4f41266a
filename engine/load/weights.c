/* See weights.h. */
#include "engine/load/weights.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/load/hfq.h"
#include "engine/load/round.h"
#include "engine/load/weights_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct weight_set {
    const struct backend *be;
    struct dev *dev;
    struct dev_weight **w; /* slots of experts point into it */
    void **own;            /* bytes that were made here and must stay; [n_own] */
    int n, n_own;
    dev_buf vec;
};

static void shape_text(char *dst, size_t n, const struct ckpt_tensor *t)
{
    size_t at = 0;
    dst[0] = 0;
    for (int i = 0; i < t->n_dim && at < n; i++) {
        int r = snprintf(dst + at, n - at, "%s%lld", at ? ", " : "", (long long)t->dim[i]);
        at += r > 0 ? (size_t)r : 0;
    }
}

static int64_t n_values(const struct ckpt_tensor *t)
{
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; /* the readers checked it */
}

static int vector_check(const struct ckpt_tensor *t, const struct weight_row *r, int64_t n_out,
                        struct err *e)
{
    char have[96];
    shape_text(have, sizeof have, t);
    bool flat = r->flags & WEIGHT_FLAT;
    if (flat ? n_values(t) != n_out : t->n_dim != 1 || t->dim[0] != n_out)
        return err_set(e, ERR_INVAL, "tensor %.64s has shape [%s], expected [%lld]", t->name, have,
                       (long long)n_out);
    if (t->fmt != QF_F32 && t->fmt != QF_F16 && t->fmt != QF_BF16)
        return err_set(e, ERR_INVAL, "tensor %.64s: a vector must be F32, F16 or BF16, not %s",
                       t->name, quant_format_get(t->fmt)->name);
    return 0;
}

/* Of a whole matrix, or of all experts' in one tensor (n_expert > 0). */
static int matrix_check(const struct ckpt_tensor *t, int64_t n_expert, int64_t n_out, int64_t n_in,
                        bool turned, struct err *e)
{
    char have[96], want[96];
    struct ckpt_tensor w = {.n_dim = n_expert ? 3 : 2};
    int at = 0;
    if (n_expert)
        w.dim[at++] = n_expert;
    w.dim[at++] = turned ? n_in : n_out;
    w.dim[at] = turned ? n_out : n_in;
    shape_text(have, sizeof have, t);
    shape_text(want, sizeof want, &w);
    bool row = !n_expert && n_out == 1 && t->n_dim == 1 && t->dim[0] == n_in;
    if (!row && (t->n_dim != w.n_dim || strcmp(have, want) != 0))
        return err_set(e, ERR_INVAL, "tensor %.64s has shape [%s], expected [%s]", t->name, have,
                       want);
    return 0;
}

/* The text before a layer's names, "%d" replaced by its number; its length. */
static int layer_name(char *dst, const char *format, int layer)
{
    const char *d = strstr(format, "%d");
    int n = (int)(d - format);
    return snprintf(dst, NAME_MAX_LEN, "%.*s%d%s", n, format, layer, d + 2);
}

/* Name of a part; "{}" becomes the expert. */
static void part_name(char *dst, const struct weight_plan *p, const struct weight_table *t,
                      const struct weight_row *r, int layer, int part, int expert)
{
    const char *name = p->hf ? r->hf[part] : r->name[part], *brace = strstr(name, "{}");
    int at = 0;
    if (!(r->flags & WEIGHT_GLOBAL))
        at = p->hf ? layer_name(dst, t->hf_layer, layer)
                   : snprintf(dst, NAME_MAX_LEN, "blk.%d.", layer);
    if (!brace)
        snprintf(dst + at, NAME_MAX_LEN - (size_t)at, "%s", name);
    else
        snprintf(dst + at, NAME_MAX_LEN - (size_t)at, "%.*s%d%s", (int)(brace - name), name, expert,
                 brace + 2);
}

static int piece_add(struct weight_plan *p, const struct piece *x, struct err *e)
{
    if (p->n_piece == p->n_piece_max) {
        size_t n = (size_t)p->n_piece_max * 2 + 256;
        struct piece *q = mem_realloc(p->piece, n * sizeof *q);
        if (!q)
            return err_set(e, ERR_NOMEM, "no memory for the weight plan");
        p->piece = q;
        p->n_piece_max = (int)n;
    }
    p->piece[p->n_piece++] = *x;
    return 0;
}

static int64_t part_rows(const struct weight_plan *p, const struct weight_table *t,
                         const struct weight_row *r, int i)
{
    return t->dim[p->hf && r->hf_n_out[0] ? r->hf_n_out[i] : r->n_out[i]];
}

bool weights__is_turned(const struct weight_plan *p, const struct weight_row *r,
                        const struct ckpt_tensor *t)
{
    return p->hf && (r->flags & WEIGHT_HF_T) && !t->hfq &&
           (t->fmt == QF_F32 || t->fmt == QF_F16 || t->fmt == QF_BF16);
}

/* An expert's rows inside one matrix (weight_row.hf_step). */
static int slice_check(struct piece *x, const struct weight_table *t, const struct bind *b,
                       int expert, bool turned, struct err *e)
{
    const struct weight_row *r = b->row;
    int64_t step = t->dim[r->hf_step], from = r->hf_from ? t->dim[r->hf_from] : 0;
    int64_t cols = turned ? x->n_out : b->n_in;
    size_t row = 0;
    int rc = matrix_check(&x->t, 0, step * b->n_expert, cols, false, e);
    if (rc)
        return rc;
    x->row = expert * step + from;
    x->turned = turned && x->t.hfq;
    if (x->turned)
        x->t.fmt = hfq_turned_fmt(x->t.hfq, x->row, b->n_in);
    if (x->t.hfq) {
        x->at = x->t.data;
        return 0;
    }
    if (turned && quant_format_get(x->t.fmt)->block_len != 1)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.64s: %s can't be transposed", x->t.name,
                       quant_format_get(x->t.fmt)->name);
    quant_row_bytes(quant_format_get(x->t.fmt), cols, &row); /* the reader checked it */
    x->at = (const char *)x->t.data + (size_t)x->row * row;
    return 0;
}

/* The parts of one matrix or vector (of one expert). */
static int bind_parts(struct weight_plan *p, const struct ckpt *c, const struct weight_table *t,
                      struct bind *b, int layer, int expert, struct err *e)
{
    const struct weight_row *r = b->row;
    const char *const *names = p->hf ? r->hf : r->name;
    bool vector = r->flags & WEIGHT_VECTOR;
    int n_have = 0, n_want = 0;
    int64_t sum = 0;
    for (int i = 0; i < 3 && names[i]; i++, n_want++) {
        char name[NAME_MAX_LEN];
        struct piece x = {.n_out = part_rows(p, t, r, i)};
        part_name(name, p, t, r, layer, i, expert);
        if (!ckpt_has(c, name)) {
            memcpy(p->missing, name, sizeof name);
            continue;
        }
        int rc = ckpt_tensor(c, name, &x.t, e);
        if (rc)
            return rc;
        if (i == 0 && expert <= 0)
            snprintf(b->name, sizeof b->name, "%s", name);
        p->claimed[x.t.index] = true;
        bool all = b->n_expert && !strstr(names[i], "{}");
        if (p->hf && r->hf_step) {
            rc = slice_check(&x, t, b, expert, r->flags & WEIGHT_HF_T, e);
        } else {
            rc = vector ? vector_check(&x.t, r, x.n_out, e)
                        : matrix_check(&x.t, all ? b->n_expert : 0, x.n_out, b->n_in,
                                       weights__is_turned(p, r, &x.t), e);
            x.row = all ? expert * x.n_out : 0;
            x.at = (const char *)x.t.data +
                   (all ? x.t.bytes / (size_t)b->n_expert * (size_t)expert : 0);
        }
        if (rc || (rc = piece_add(p, &x, e)))
            return rc;
        sum += x.n_out;
        n_have++;
    }
    if (n_have < n_want && (n_have || !(r->flags & (WEIGHT_OPTIONAL | WEIGHT_ALT))))
        return err_set(e, ERR_NOTFOUND, "tensor %s is missing", p->missing);
    b->n_part = n_have;
    b->n_out = sum;
    return 0;
}

static int vector_place(struct weight_plan *p, struct bind *b, struct err *e)
{
    size_t bytes = (size_t)b->n_out * sizeof(float); /* the file holds them: no overflow */
    b->vec_off = p->vec_bytes;
    if (!ck_round_up(bytes, VEC_ALIGN, &bytes) || !ck_add(p->vec_bytes, bytes, &p->vec_bytes))
        return err_set(e, ERR_INVAL, "tensor %s is too long", b->name);
    p->vec_max = b->n_out > p->vec_max ? b->n_out : p->vec_max;
    return 0;
}

static void *slot_of(const struct weight_table *t, const struct weight_row *r, int layer)
{
    char *base =
        (r->flags & WEIGHT_GLOBAL) ? t->global : (char *)t->layer + (size_t)layer * t->layer_bytes;
    return base + r->slot;
}

/* The parts of a row are known, if there. */
static int unused_claim(struct weight_plan *p, const struct ckpt *c, const struct weight_table *t,
                        const struct weight_row *r, int layer, struct err *e)
{
    const char *const *names = p->hf ? r->hf : r->name;
    for (int i = 0; i < 3 && names[i]; i++) {
        char name[NAME_MAX_LEN];
        struct ckpt_tensor x;
        part_name(name, p, t, r, layer, i, 0);
        int rc = ckpt_has(c, name) ? ckpt_tensor(c, name, &x, e) : ERR_NOTFOUND;
        if (rc == 0)
            p->claimed[x.index] = true;
        else if (rc != ERR_NOTFOUND)
            return rc;
    }
    return 0;
}

/* Parts of one matrix are multiplied by one row: sorted columns stay only where all parts have the same order. */
static void order_set(struct weight_plan *p, const struct bind *b)
{
    const int n = b->n_part * (b->n_expert ? b->n_expert : 1);
    bool any = false, same = !(b->row->flags & WEIGHT_ROWS);
    for (int i = 0; i < n; i++) {
        const struct piece *q = &p->piece[b->piece + i],
                           *first = &p->piece[b->piece + i / b->n_part * b->n_part];
        const int32_t *col = q->t.hfq && !q->turned ? hfq_col(q->t.hfq) : NULL,
                      *other = first->t.hfq && !first->turned ? hfq_col(first->t.hfq) : NULL;
        any = any || col;
        same =
            same && !col == !other && (!col || !memcmp(col, other, (size_t)b->n_in * sizeof *col));
    }
    for (int i = 0; i < n && any; i++) {
        struct piece *q = &p->piece[b->piece + i];
        const int32_t *col = q->t.hfq && !q->turned ? hfq_col(q->t.hfq) : NULL;
        q->col = same ? col : NULL;
        if (col && !same)
            q->t.fmt = QF_F16;
    }
    p->n_f16 += any && !same;
}

/* Find and check the parts of one row; nothing is added when an optional one is absent. */
static int bind_row(struct weight_plan *p, const struct ckpt *c, const struct weight_table *t,
                    const struct weight_row *r, int layer, struct err *e)
{
    bool vector = r->flags & WEIGHT_VECTOR;
    struct bind b = {.row = r, .multiplied = true, .piece = p->n_piece, .layer = layer};
    if (!(p->hf ? r->hf : r->name)[0])
        return 0;
    if (r->flags & WEIGHT_UNUSED)
        return unused_claim(p, c, t, r, layer, e);
    b.n_in = vector ? 0 : t->dim[r->n_in];
    bool whole = vector && !strstr((p->hf ? r->hf : r->name)[0], "{}");
    int n_expert = r->flags & WEIGHT_EXPERTS ? (int)t->dim[r->n_expert] : 0;
    b.n_expert = whole ? 0 : n_expert;
    b.n_turn = whole && n_expert ? n_expert : 1;
    for (int x = 0; x < (b.n_expert ? b.n_expert : 1); x++) {
        int rc = bind_parts(p, c, t, &b, layer, x, e);
        if (rc)
            return rc;
        if (b.n_part == 0)
            break;
    }
    if (b.n_part == 0)
        return 0;
    order_set(p, &b);
    const char *tied_by = p->hf ? r->hf_tied_by : r->tied_by;
    if (r->flags & WEIGHT_ROWS)
        b.multiplied = (r->flags & WEIGHT_ROWS_TIED) && !(tied_by && ckpt_has(c, tied_by));
    b.slot = slot_of(t, r, layer);
    if (vector) {
        b.n_out *= b.n_expert ? b.n_expert : 1;
        int rc = vector_place(p, &b, e);
        if (rc)
            return rc;
    }
    p->item[p->n++] = b;
    return 0;
}

/* Whether the first part of a row is there. */
static bool row_there(const struct weight_plan *p, const struct ckpt *c,
                      const struct weight_table *t, const struct weight_row *r, int layer)
{
    char name[NAME_MAX_LEN];
    if (!(p->hf ? r->hf : r->name)[0])
        return false;
    part_name(name, p, t, r, layer, 0, 0);
    return ckpt_has(c, name);
}

/* Whether a layer's tensor is of a layer behind the last: draft heads (multi-token prediction). */
static bool is_extra_layer(const struct weight_plan *p, const struct weight_table *t,
                           const char *name)
{
    const char *at = strstr(name, p->hf ? ".layers." : "blk.");
    return at && strtol(at + (p->hf ? 8 : 4), NULL, 10) >= t->n_layer;
}

/* A tensor that no row names would be a term left out of the sum: refuse it. */
static int unclaimed_check(const struct weight_plan *p, const struct ckpt *c,
                           const struct weight_table *t, struct err *e)
{
    /* Tables that follow from the metadata. */
    static const char *const derived[] = {"rotary_emb.inv_freq", "attn_rot_embd", NULL};
    for (size_t i = 0; i < ckpt_n_tensor(c); i++) {
        const char *n = ckpt_tensor_name(c, i, NULL);
        bool known = p->claimed[i] || ckpt_is_part(c, i) || is_extra_layer(p, t, n);
        for (const char *const *d = derived; *d && !known; d++)
            known = strstr(n, *d) != NULL;
        for (const char *const *d = t->hf_ignore; p->hf && d && *d && !known; d++)
            known = strstr(n, *d) != NULL;
        if (!known)
            return err_set(e, ERR_UNSUPPORTED, "tensor %.96s is not known to this architecture", n);
    }
    return 0;
}

bool weights__row_has(const struct weight_table *t, const struct weight_row *r, int layer)
{
    return !r->kind || !t->kind || (r->flags & WEIGHT_GLOBAL) || (t->kind[layer] & r->kind);
}

/* Slots of WEIGHT_ALT rows are filled. */
static int alt_check(struct weight_plan *p, const struct weight_table *t, struct err *e)
{
    for (int i = 0; i < t->n_row; i++) {
        const struct weight_row *r = &t->row[i];
        int times = !(r->flags & WEIGHT_ALT) ? 0 : (r->flags & WEIGHT_GLOBAL) ? 1 : t->n_layer;
        for (int l = 0; l < times; l++) {
            int k = 0;
            while (k < p->n && p->item[k].slot != slot_of(t, r, l))
                k++;
            if (k < p->n || !weights__row_has(t, r, l) || !(p->hf ? r->hf : r->name)[0])
                continue;
            part_name(p->missing, p, t, r, l, 0, 0);
            return err_set(e, ERR_NOTFOUND, "tensor %s is missing", p->missing);
        }
    }
    return 0;
}

static int plan_fill(struct weight_plan *p, const struct ckpt *c, const struct weight_table *t,
                     struct err *e)
{
    size_t n = 0, n_layer = (size_t)t->n_layer;
    for (int i = 0; i < t->n_row; i++)
        n += (t->row[i].flags & WEIGHT_GLOBAL) ? 1 : n_layer;
    p->item = mem_calloc(n, sizeof *p->item);
    p->claimed = mem_calloc(ckpt_n_tensor(c) + 1, sizeof *p->claimed);
    if (!p->item || !p->claimed)
        return err_set(e, ERR_NOMEM, "no memory for the weight plan");
    for (int i = 0; i < t->n_row; i++) {
        const struct weight_row *r = &t->row[i];
        int times = (r->flags & WEIGHT_GLOBAL) ? 1 : t->n_layer;
        for (int l = 0; l < times; l++) {
            bool has = weights__row_has(t, r, l);
            if ((r->flags & WEIGHT_ELSE) && row_there(p, c, t, r - 1, l))
                has = false;
            int rc = has ? bind_row(p, c, t, r, l, e) : 0;
            if (rc)
                return rc;
        }
    }
    int rc = alt_check(p, t, e);
    return rc ? rc : unclaimed_check(p, c, t, e);
}

int weights_plan_open(struct weight_plan **out, const struct ckpt *c, const struct weight_table *t,
                      struct err *e)
{
    *out = NULL;
    struct weight_plan *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the weight plan");
    p->hf = ckpt_is_hf(c);
    p->hp = t->hp;
    int rc = plan_fill(p, c, t, e);
    free(p->claimed);
    p->claimed = NULL;
    if (p->n_f16)
        log_warn("load",
                 "%d matrices are made of parts whose columns lie in different orders: decoded to "
                 "f16",
                 p->n_f16);
    if (rc) {
        weights_plan_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void weights_plan_round(struct weight_plan *p, const char *to)
{
    p->round = to;
}

void weights_plan_close(struct weight_plan *p)
{
    if (!p)
        return;
    free(p->item);
    free(p->piece);
    free(p->claimed);
    free(p);
}

/* The bytes of expert x (or of the matrix) as the file has them. */
static struct weight_desc bind_desc(const struct weight_plan *p, const struct bind *b, int x)
{
    struct weight_desc d = {.name = b->name,
                            .n_in = b->n_in,
                            .n_part = b->n_part,
                            .rows = b->row->flags & WEIGHT_ROWS,
                            .only_rows = !b->multiplied};
    for (int i = 0; i < b->n_part; i++) {
        const struct piece *q = &p->piece[b->piece + x * b->n_part + i];
        /* What is only looked up costs memory bandwidth once a token, and a router is small and decides: they stay. */
        bool router = b->row->name[0] && strstr(b->row->name[0], "ffn_gate_inp");
        bool round = p->round && !q->t.hfq && b->multiplied && !router;
        enum quant_fmt fmt = round ? round_format(p->round, q->t.fmt, b->n_in) : q->t.fmt;
        d.part[i] = (struct weight_part){.fmt = fmt, .data = q->at, .n_out = q->n_out};
        d.col = q->col; /* the same for all */
    }
    return d;
}

size_t weights_plan_bytes(const struct weight_plan *p, const struct backend *be,
                          enum eng_precision precision)
{
    size_t sum = p->vec_bytes;
    for (int i = 0; i < p->n; i++) {
        if (p->item[i].row->flags & WEIGHT_VECTOR)
            continue;
        for (int x = 0; x < (p->item[i].n_expert ? p->item[i].n_expert : 1); x++) {
            struct weight_desc d = bind_desc(p, &p->item[i], x);
            if (!ck_add(sum, be->weight_bytes(&d, precision), &sum))
                return SIZE_MAX;
        }
    }
    return sum;
}

/* Whole pages inside [data, data + n) leave the resident set; they are read again from the file if the
 * backend uses them in place. The mapping is read-only, so nothing can be lost. */
static void pages_release(const void *data, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)data + n) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* What a folder's vector needs to mean what a GGUF file's does. */
static void vector_convert(const struct weight_row *r, float *v, int64_t n)
{
    for (int64_t i = 0; i < n && (r->flags & WEIGHT_HF_PLUS_1); i++)
        v[i] += 1;
    for (int64_t i = 0; i < n && (r->flags & WEIGHT_HF_NEG_EXP); i++)
        v[i] = -expf(v[i]);
}

bool weights__rows_moved(const struct weight_plan *p, const struct bind *b)
{
    return b->row->hf_row && (p->hf || (b->row->flags & WEIGHT_ROW_ANY));
}

void weights__vector(const struct weight_plan *p, const struct bind *b, float *dst)
{
    int64_t at = 0;
    int n = b->n_part * (b->n_expert ? b->n_expert : b->n_turn);
    for (int t = 0; t < n; t++) { /* experts: all parts of one, then the next */
        const int i = t % b->n_part, x = b->n_expert ? 0 : t / b->n_part;
        const struct piece *q = &p->piece[b->piece + (b->n_expert ? t : i)];
        const struct quant_format *f = quant_format_get(q->t.fmt);
        const int64_t len = q->n_out / b->n_turn, from = x * len;
        if (weights__rows_moved(p, b))
            for (int64_t k = 0; k < len; k++)
                f->decode(q->at + b->row->hf_row(p->hp, i, from + k) * f->block_bytes, dst + at + k,
                          1);
        else
            f->decode(q->at + from * f->block_bytes, dst + at, len);
        at += len;
    }
    if (p->hf)
        vector_convert(b->row, dst, at);
}

static int vector_load(struct weight_set *s, const struct weight_plan *p, const struct bind *b,
                       float *tmp, struct err *e)
{
    const int64_t n = b->n_out;
    weights__vector(p, b, tmp);
    int rc = s->be->write(s->dev, s->vec, b->vec_off, tmp, (size_t)n * sizeof *tmp);
    if (rc)
        return err_set(e, rc, "tensor %s: %s", b->name, err_name(rc));
    *(struct tensor *)b->slot = (struct tensor){
        .dtype = DT_F32, .n_dim = 1, .shape = {n}, .stride = {1}, .buf = s->vec, .off = b->vec_off};
    return 0;
}

/* Rows of a quantised matrix. */
static int hfq_convert(const struct weight_plan *p, const struct bind *b, const struct piece *q,
                       int i, char *own, size_t row, struct err *e)
{
    const struct weight_row *r = b->row;
    if (q->turned)
        return hfq_turned(q->t.hfq, q->row, b->n_in, 0, q->n_out, own, e);
    bool dense = hfq_col(q->t.hfq) && !q->col;
    int64_t n = r->hf_row ? 1 : q->n_out; /* at a time */
    int rc = 0;
    for (int64_t o = 0; o < q->n_out && !rc; o += n, own += (size_t)n * row) {
        int64_t from = q->row + (r->hf_row ? r->hf_row(p->hp, i, o) : o);
        rc = dense ? hfq_rows_dense(q->t.hfq, q->t.fmt, from, n, own, e)
                   : hfq_rows(q->t.hfq, from, n, own, e);
    }
    return rc;
}

static int rows_alloc(const struct bind *b, enum quant_fmt fmt, int64_t n_in, int64_t n_out,
                      char **out, size_t *row, struct err *e)
{
    size_t bytes;
    if (!quant_row_bytes(quant_format_get((uint32_t)fmt), n_in, row) ||
        !ck_mul(*row, (size_t)n_out, &bytes))
        return err_set(e, ERR_INVAL, "tensor %s: rows of %lld values", b->name, (long long)n_in);
    *out = mem_alloc(bytes);
    return *out ? 0 : err_set(e, ERR_NOMEM, "tensor %s: no memory for %zu bytes", b->name, bytes);
}

/* Rows of a part in another order or format, a transposed or a quantised matrix, in memory of our own. */
static int part_convert(const struct weight_plan *p, const struct bind *b, int x,
                        struct weight_desc *d, int i, struct err *e)
{
    const struct weight_row *r = b->row;
    struct weight_part *w = &d->part[i];
    const struct piece *q = &p->piece[b->piece + x * b->n_part + i];
    const struct quant_format *f = quant_format_get(q->t.fmt);
    bool turned = weights__is_turned(p, r, &q->t);
    char *own = NULL;
    size_t row;
    int rc = rows_alloc(b, q->t.fmt, d->n_in, w->n_out, &own, &row, e);
    if (rc)
        return rc;
    size_t v = (size_t)f->block_bytes, n_in = (size_t)d->n_in, n_out = (size_t)w->n_out;
    if (q->t.hfq)
        rc = hfq_convert(p, b, q, i, own, row, e);
    for (size_t o = 0; o < n_out && !q->t.hfq; o++) {
        size_t from = r->hf_row ? (size_t)r->hf_row(p->hp, i, (int64_t)o) : o;
        if (!turned)
            memcpy(own + o * row, q->at + from * row, row);
        else
            for (size_t k = 0; k < n_in; k++)
                memcpy(own + o * row + k * v, q->at + (k * n_out + from) * v, v);
    }
    if (!rc && w->fmt != q->t.fmt) {
        char *small = NULL;
        rc = rows_alloc(b, w->fmt, d->n_in, w->n_out, &small, &row, e);
        if (!rc)
            rc = round_rows(q->t.fmt, w->fmt, d->n_in, own, w->n_out, small, e);
        free(own);
        own = small;
    }
    w->data = own; /* the caller's to free, also after an error */
    return rc;
}

/* One matrix. Bytes made here are given back when the backend has its own copy. */
static int matrix_load(struct weight_set *s, const struct weight_plan *p, const struct bind *b,
                       int x, struct err *e)
{
    struct weight_desc d = bind_desc(p, b, x);
    bool convert = weights__rows_moved(p, b) || (p->hf && (b->row->flags & WEIGHT_HF_T));
    for (int i = 0; i < b->n_part; i++) {
        const struct piece *q = &p->piece[b->piece + x * b->n_part + i];
        convert = convert || q->t.hfq || d.part[i].fmt != q->t.fmt;
    }
    bool keep = convert && (d.rows || s->be->weights_in_place);
    int rc = 0, n_own = 0;
    void *own[3] = {0};
    for (int i = 0; convert && i < d.n_part && !rc; i++) {
        const void *was = d.part[i].data;
        rc = part_convert(p, b, x, &d, i, e);
        if (d.part[i].data != was)
            own[n_own++] = (void *)(uintptr_t)d.part[i].data;
    }
    if (!rc)
        rc = s->be->weight_open(s->dev, &s->w[s->n], &d, e);
    if (!rc)
        s->n++;
    for (int i = 0; i < n_own; i++) {
        if (!rc && keep)
            s->own[s->n_own++] = own[i];
        else
            free(own[i]);
    }
    for (int i = 0; !rc && i < b->n_part; i++) {
        const struct piece *q = &p->piece[b->piece + x * b->n_part + i];
        size_t n_expert = b->n_expert && q->t.n_dim == 3 ? (size_t)b->n_expert : 1;
        if (!(p->hf && b->row->hf_step)) /* others still read that matrix */
            pages_release(q->at, q->t.bytes / n_expert);
    }
    return rc;
}

static int item_load(struct weight_set *s, const struct weight_plan *p, const struct bind *b,
                     float *tmp, struct err *e)
{
    if (b->row->flags & WEIGHT_VECTOR)
        return vector_load(s, p, b, tmp, e);
    struct dev_weight **first = &s->w[s->n];
    for (int x = 0; x < (b->n_expert ? b->n_expert : 1); x++) {
        int rc = matrix_load(s, p, b, x, e);
        if (rc)
            return rc;
    }
    if (b->n_expert)
        *(struct dev_weight ***)b->slot = first;
    else
        *(struct dev_weight **)b->slot = *first;
    return 0;
}

static int set_fill(struct weight_set *s, const struct weight_plan *p, float **tmp, struct err *e)
{
    s->w = mem_calloc((size_t)p->n_piece + 1, sizeof *s->w);
    s->own = mem_calloc((size_t)p->n_piece + 1, sizeof *s->own);
    *tmp = mem_calloc((size_t)p->vec_max + 1, sizeof **tmp);
    if (!s->w || !s->own || !*tmp)
        return err_set(e, ERR_NOMEM, "no memory for the weight list");
    if (p->vec_bytes && s->be->buf_alloc(s->dev, p->vec_bytes, &s->vec))
        return err_set(e, ERR_NOMEM, "no device memory for %zu bytes of norms and biases",
                       p->vec_bytes);
    for (int i = 0; i < p->n; i++) {
        int rc = item_load(s, p, &p->item[i], *tmp, e);
        if (rc)
            return rc;
    }
    return 0;
}

int weights_open(struct weight_set **out, const struct weight_plan *p, const struct backend *be,
                 struct dev *dev, struct err *e)
{
    *out = NULL;
    struct weight_set *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the weight list");
    s->be = be;
    s->dev = dev;
    float *tmp = NULL;
    int rc = set_fill(s, p, &tmp, e);
    free(tmp);
    if (rc) {
        weights_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void weights_close(struct weight_set *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        s->be->weight_close(s->dev, s->w[i]);
    if (s->vec)
        s->be->buf_free(s->dev, s->vec);
    for (int i = 0; i < s->n_own; i++)
        free(s->own[i]);
    free(s->own);
    free(s->w);
    free(s);
}
