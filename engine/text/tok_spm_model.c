/* Tokenizer from a SentencePiece .model file: the protocol buffer ModelProto of sentencepiece_model.proto,
 * read by a small reader of its wire format that knows the fields it needs and skips the rest. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

#define FILE_MAX (64u << 20)

/* ---- wire format ---- */

struct pb { /* a message being read */
    const uint8_t *p;
    size_t n, at;
};
struct pb_field {
    uint32_t tag;
    int wire; /* 0 varint, 1 fixed64, 2 bytes, 5 fixed32 */
    uint64_t num;
    struct view bytes;
};

static bool pb_varint(struct pb *m, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && m->at < m->n; shift += 7) {
        uint8_t b = m->p[m->at++];
        v |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Next field: 1, 0 at the end, -1 when malformed. */
static int pb_next(struct pb *m, struct pb_field *f)
{
    uint64_t key, len;
    if (m->at == m->n)
        return 0;
    if (!pb_varint(m, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
        return -1;
    *f = (struct pb_field){.tag = (uint32_t)(key >> 3), .wire = (int)(key & 7)};
    if (f->wire == 0)
        return pb_varint(m, &f->num) ? 1 : -1;
    if (f->wire == 1)
        len = 8;
    else if (f->wire == 5)
        len = 4;
    else if (f->wire != 2 || !pb_varint(m, &len))
        return -1;
    if (len > m->n - m->at)
        return -1;
    f->bytes = (struct view){(const char *)m->p + m->at, (size_t)len};
    if (f->wire == 5)
        for (int i = 0; i < 4; i++)
            f->num |= (uint64_t)m->p[m->at + (size_t)i] << (8 * i);
    m->at += (size_t)len;
    return 1;
}

static struct pb pb_open(struct view v)
{
    return (struct pb){(const uint8_t *)v.p, v.len, 0};
}

/* ---- the model ---- */

struct spec {
    int64_t n_piece;
    struct view trainer, normalizer, charsmap, unk_text;
    uint64_t model_type; /* 1 unigram, 2 BPE */
    bool byte_fallback, prefix, squeeze, suffix;
    int64_t unk, bos, eos;
};

static int bad(const char *what, struct err *e)
{
    return err_set(e, ERR_PARSE, "malformed protocol buffer in %s", what);
}

/* Fields by number of TrainerSpec; negative ids are none. */
static int read_trainer(struct spec *s, struct err *e)
{
    struct pb m = pb_open(s->trainer);
    struct pb_field f;
    int rc;
    while ((rc = pb_next(&m, &f)) > 0) {
        if (f.tag == 44 && f.wire == 2)
            s->unk_text = f.bytes;
        if (f.wire != 0)
            continue;
        if (f.tag == 3)
            s->model_type = f.num;
        else if (f.tag == 24)
            s->suffix = f.num != 0;
        else if (f.tag == 35)
            s->byte_fallback = f.num != 0;
        else if (f.tag == 40)
            s->unk = (int32_t)f.num;
        else if (f.tag == 41)
            s->bos = (int32_t)f.num;
        else if (f.tag == 42)
            s->eos = (int32_t)f.num;
    }
    return rc < 0 ? bad("trainer_spec", e) : 0;
}

/* Fields by number of NormalizerSpec. */
static int read_normalizer(struct spec *s, struct err *e)
{
    struct pb m = pb_open(s->normalizer);
    struct pb_field f;
    int rc;
    while ((rc = pb_next(&m, &f)) > 0) {
        if (f.tag == 2 && f.wire == 2)
            s->charsmap = f.bytes;
        else if (f.tag == 3 && f.wire == 0)
            s->prefix = f.num != 0;
        else if (f.tag == 4 && f.wire == 0)
            s->squeeze = f.num != 0;
    }
    return rc < 0 ? bad("normalizer_spec", e) : 0;
}

/* First pass: count the pieces, find the two specs. Defaults are those of the .proto file. */
static int read_specs(struct spec *s, struct view file, struct err *e)
{
    struct pb m = pb_open(file);
    struct pb_field f;
    int rc;
    *s = (struct spec){.model_type = 1,
                       .prefix = true,
                       .squeeze = true,
                       .bos = 1,
                       .eos = 2,
                       .unk_text = VIEW_LIT(" \xe2\x81\x87 ")};
    while ((rc = pb_next(&m, &f)) > 0) {
        if (f.tag == 1 && f.wire == 2)
            s->n_piece++;
        else if (f.tag == 2 && f.wire == 2)
            s->trainer = f.bytes;
        else if (f.tag == 3 && f.wire == 2)
            s->normalizer = f.bytes;
    }
    if (rc < 0)
        return bad("the model", e);
    rc = read_trainer(s, e);
    rc = rc ? rc : read_normalizer(s, e);
    if (rc == 0 && s->model_type != 1 && s->model_type != 2)
        rc = err_set(e, ERR_UNSUPPORTED, "trainer_spec.model_type %llu is not supported",
                     (unsigned long long)s->model_type);
    if (rc == 0 && s->suffix)
        rc = err_set(e, ERR_UNSUPPORTED, "treat_whitespace_as_suffix is not supported");
    return rc;
}

/* SentencePiece: piece = 1, score = 2, type = 3 (numbered as in GGUF). */
static int read_piece(struct tokenizer *t, int32_t id, struct view piece, struct err *e)
{
    struct pb m = pb_open(piece);
    struct pb_field f;
    int rc;
    while ((rc = pb_next(&m, &f)) > 0) {
        if (f.tag == 1 && f.wire == 2) {
            t->entry[id] = f.bytes;
        } else if (f.tag == 2 && f.wire == 5) {
            uint32_t u = (uint32_t)f.num;
            memcpy(&t->score[id], &u, sizeof u);
        } else if (f.tag == 3 && f.wire == 0 && f.num >= TOK_T_NORMAL && f.num <= TOK_T_BYTE) {
            t->type[id] = (uint8_t)f.num;
        }
    }
    if (rc < 0 || !isfinite(t->score[id]))
        return err_set(e, ERR_PARSE, "malformed piece %d", id);
    return 0;
}

/* Second pass; the wire format was checked by the first. */
static int read_pieces(struct tokenizer *t, struct view file, struct err *e)
{
    struct pb m = pb_open(file);
    struct pb_field f;
    int32_t id = 0;
    int rc = 0;
    t->score = arena_array(&t->mem, (size_t)t->n_vocab, sizeof *t->score);
    if (!t->score)
        return err_set(e, ERR_NOMEM, "out of memory");
    while (rc == 0 && pb_next(&m, &f) > 0)
        if (f.tag == 1 && f.wire == 2)
            rc = read_piece(t, id++, f.bytes, e);
    return rc;
}

static int32_t id_or_none(const struct tokenizer *t, int64_t id)
{
    return id >= 0 && id < t->n_vocab ? (int32_t)id : -1;
}

/* Text of the unknown token in output (unk_surface). */
static int keep_unk(struct tokenizer *t, int32_t id, struct view text, struct err *e)
{
    char *p = arena_copy(&t->mem, text.p, text.len);
    if (!p)
        return err_set(e, ERR_NOMEM, "out of memory");
    t->piece[id] = (struct view){p, text.len};
    return 0;
}

static int load(struct tokenizer **out, struct view file, struct err *e)
{
    struct spec s;
    int rc = read_specs(&s, file, e);
    struct tokenizer *t = NULL;
    if (rc == 0)
        rc = tok__new(&t, s.model_type == 2 ? TOK_KIND_BPE : TOK_KIND_UNIGRAM, s.n_piece, e);
    if (rc != 0)
        return rc;
    *out = t;
    char *own = arena_copy(&t->mem, file.p, file.len); /* entries and map point into it */
    if (!own)
        return err_set(e, ERR_NOMEM, "out of memory");
    struct view copy = {own, file.len};
    rc = read_pieces(t, copy, e);
    if (rc == 0 && s.charsmap.len) {
        struct tok_norm *op = tok__add_norm(t, TOK_NORM_CHARSMAP);
        op->map = arena_alloc(&t->mem, sizeof *op->map);
        rc = op->map ? tok__charsmap_open(op->map, own + (s.charsmap.p - file.p), s.charsmap.len, e)
                     : err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc != 0)
        return rc;
    struct tok_norm *op = tok__add_norm(t, TOK_NORM_MARK);
    op->a = VIEW_LIT(TOK_MARK);
    op->flags = (s.prefix ? (unsigned)TOK_MARK_FIRST : 0u) | (s.squeeze ? TOK_MARK_SQUEEZE : 0u);
    t->order = TOK_BY_SCORE;
    t->byte_fallback = s.byte_fallback;
    t->fuse_unk = t->fffd_per_byte = t->control_restarts = true;
    t->strip_first = s.prefix;
    t->unk = id_or_none(t, s.unk);
    t->bos = id_or_none(t, s.bos);
    t->eos = id_or_none(t, s.eos);
    /* The file does not say what a prompt needs: BPE models are decoders that start with bos, unigram
     * ones encoders that end with eos. */
    if (t->kind == TOK_KIND_BPE && t->bos >= 0)
        t->before[t->n_before++] = t->bos;
    else if (t->kind == TOK_KIND_UNIGRAM && t->eos >= 0)
        t->after[t->n_after++] = t->eos;
    t->adds_bos = t->n_before > 0;
    t->show_unk = true;
    rc = tok__finish(t, e);
    for (int32_t i = 0; rc == 0 && i < t->n_vocab; i++)
        if (t->type[i] == TOK_T_UNKNOWN)
            rc = keep_unk(t, i, s.unk_text, e);
    return rc;
}

int tok_open_spm(struct tokenizer **out, const char *path, struct err *e)
{
    struct buf b = {.limit = FILE_MAX};
    int rc = tok__read_file(path, &b, e);
    struct tokenizer *t = NULL;
    rc = rc ? rc : load(&t, (struct view){buf_cstr(&b), b.len}, e);
    buf_free(&b);
    if (rc != 0) {
        tok_close(t);
        err_prefix(e, "%s", path);
        return rc;
    }
    *out = t;
    return 0;
}
