/* Patterns (PCRE2) and cutting text into pieces by them.
 *
 * The patterns come from model files and are written for other engines: `\s` means Unicode White_Space
 * there (PCRE2's also takes U+180E), and class intersection (`&&[`) would compile to something else
 * here, so it is refused. Each match has a step limit; over it the call fails with ERR_LIMIT. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

#define MATCH_LIMIT   20000000u
#define HEAP_LIMIT    (64u << 10) /* KiB, of the interpreter */
#define JIT_STACK_MAX (32u << 20)
#define PATTERN_MAX   (64u << 10)

struct tok_re {
    pcre2_code *code;
    bool jit;
};

/* Translate \s and \S; everything else is copied. `buf` gets the pattern. */
static int translate(const char *p, size_t n, struct buf *b, struct err *e)
{
    static const char ws[] = "\\x{09}-\\x{0D}\\x{85}\\p{Z}";
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n) {
            i++;
            if (p[i] == 's')
                buf_fmt(b, in_class ? "%s" : "[%s]", ws);
            else if (p[i] == 'S' && !in_class)
                buf_fmt(b, "[^%s]", ws);
            else
                buf_fmt(b, "\\%c", p[i]);
            continue;
        }
        if (in_class && p[i] == '&' && i + 1 < n && p[i + 1] == '&')
            return err_set(e, ERR_UNSUPPORTED, "pattern uses class intersection (&&)");
        if (p[i] == '[' && !in_class) {
            in_class = true;
            buf_char(b, '[');
            if (i + 1 < n && p[i + 1] == '^')
                buf_char(b, p[++i]);
            if (i + 1 < n && p[i + 1] == ']') /* a first ] is a literal */
                buf_char(b, p[++i]);
            continue;
        }
        if (p[i] == ']')
            in_class = false;
        buf_char(b, p[i]);
    }
    return b->failed ? err_set(e, ERR_NOMEM, "pattern: out of memory") : 0;
}

int tok__re_open(struct tok_re **out, const char *pattern, size_t n, struct err *e)
{
    if (n > PATTERN_MAX)
        return err_set(e, ERR_LIMIT, "pattern of %zu bytes (limit %u)", n, PATTERN_MAX);
    struct buf b = {0};
    struct tok_re *re = mem_calloc(1, sizeof *re);
    int rc = re ? translate(pattern, n, &b, e) : err_set(e, ERR_NOMEM, "pattern: out of memory");
    if (rc == 0) {
        int code = 0;
        PCRE2_SIZE at = 0;
        re->code = pcre2_compile((PCRE2_SPTR)buf_cstr(&b), b.len,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
        if (!re->code) {
            PCRE2_UCHAR msg[120];
            pcre2_get_error_message(code, msg, sizeof msg);
            rc = err_set(e, ERR_UNSUPPORTED, "pattern '%.60s': %s", pattern, (char *)msg);
        }
    }
    buf_free(&b);
    if (rc != 0) {
        tok__re_close(re);
        return rc;
    }
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
    *out = re;
    return 0;
}

void tok__re_close(struct tok_re *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    free(re);
}

/* One context and one result block per thread: a call per piece must not allocate. */
struct match_scratch {
    pcre2_match_data *md;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
};
static _Thread_local struct match_scratch scratch;
static pthread_key_t scratch_key; /* its destructor frees a thread's scratch when the thread ends */
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static bool scratch_keyed;

static void scratch_free(void *arg)
{
    struct match_scratch *m = arg;
    pcre2_match_data_free(m->md);
    pcre2_match_context_free(m->ctx);
    pcre2_jit_stack_free(m->stack);
    *m = (struct match_scratch){0};
}

static void scratch_key_make(void)
{
    scratch_keyed = pthread_key_create(&scratch_key, scratch_free) == 0;
}

static bool scratch_ready(void)
{
    if (scratch.md)
        return true;
    pthread_once(&scratch_once, scratch_key_make);
    if (scratch_keyed)
        pthread_setspecific(scratch_key, &scratch);
    if (!scratch.ctx && (scratch.ctx = pcre2_match_context_create(NULL))) {
        pcre2_set_match_limit(scratch.ctx, MATCH_LIMIT);
        pcre2_set_heap_limit(scratch.ctx, HEAP_LIMIT);
    }
    if (!scratch.md)
        scratch.md = pcre2_match_data_create(1, NULL);
    return scratch.ctx && scratch.md;
}

/* The default 32 KiB stack of compiled patterns was too small: a larger one, once per thread. */
static bool scratch_deepen(void)
{
    if (scratch.stack || !(scratch.stack = pcre2_jit_stack_create(256 << 10, JIT_STACK_MAX, NULL)))
        return false;
    pcre2_jit_stack_assign(scratch.ctx, NULL, scratch.stack);
    return true;
}

int tok__re_next(const struct tok_re *re, const char *s, size_t n, size_t from, size_t *a,
                 size_t *b)
{
    if (!scratch_ready())
        return ERR_NOMEM;
    int rc;
    do {
        rc = re->jit ? pcre2_jit_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK,
                                       scratch.md, scratch.ctx)
                     : pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, scratch.md,
                                   scratch.ctx);
    } while (rc == PCRE2_ERROR_JIT_STACKLIMIT && scratch_deepen());
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(scratch.md);
    *a = v[0];
    *b = v[1];
    return 1;
}

/* A piece that no further split cuts goes to the model. */
static int model_piece(struct tok_run *r, const char *s, size_t n)
{
    if (r->pieces) {
        buf_add(r->pieces, s, n);
        buf_char(r->pieces, (char)255);
        return 0;
    }
    switch (r->t->kind) {
    case TOK_KIND_BPE:
        return tok__bpe_piece(r, s, n);
    case TOK_KIND_UNIGRAM:
        return tok__unigram_piece(r, s, n);
    case TOK_KIND_WORDPIECE:
        return tok__wordpiece_piece(r, s, n);
    }
    return ERR_INTERNAL;
}

/* s[0..n) goes through split `level` and the ones after it. */
int tok__split_text(struct tok_run *r, int level, const char *s, size_t n)
{
    if (n == 0)
        return 0;
    if (level == r->t->n_split)
        return model_piece(r, s, n);
    const struct tok_split *sp = &r->t->split[level];
    bool drop_match = sp->mode == TOK_SPLIT_REMOVE && !sp->invert;
    bool drop_gap = sp->mode == TOK_SPLIT_REMOVE && sp->invert;
    size_t pos = 0, from = 0, a, b; /* pos: first byte not handed on yet */
    int rc = 0;
    while (from <= n && rc == 0) {
        int m = tok__re_next(sp->re, s, n, from, &a, &b);
        if (m <= 0) {
            rc = m;
            break;
        }
        from = b > a ? b : b + (b < n ? (size_t)utf8_len(s + b, n - b) : 1);
        if (a > pos && !drop_gap && sp->mode != TOK_SPLIT_PREV)
            rc = tok__split_text(r, level + 1, s + pos, a - pos);
        if (sp->mode != TOK_SPLIT_PREV)
            pos = a;
        if (rc == 0 && b > pos && sp->mode != TOK_SPLIT_NEXT) {
            if (!drop_match)
                rc = tok__split_text(r, level + 1, s + pos, b - pos);
            pos = b;
        }
    }
    if (rc == 0 && pos < n && !drop_gap)
        rc = tok__split_text(r, level + 1, s + pos, n - pos);
    return rc;
}

int tok__add_split(struct tokenizer *t, const char *re, enum tok_split_mode m, bool inv,
                   struct err *e)
{
    if (t->n_split >= (int)(sizeof t->split / sizeof t->split[0]))
        return err_set(e, ERR_LIMIT, "more than %d splits", t->n_split);
    struct tok_split *sp = &t->split[t->n_split];
    int rc = tok__re_open(&sp->re, re, strlen(re), e);
    if (rc != 0)
        return rc;
    sp->mode = m;
    sp->invert = inv;
    t->n_split++;
    return 0;
}

int tok__bert_norm(struct tokenizer *t, bool clean, bool cjk, bool strip, bool lower)
{
    bool ok =
        (!clean || tok__add_norm(t, TOK_NORM_CLEAN)) && (!cjk || tok__add_norm(t, TOK_NORM_CJK));
    if (ok && strip)
        ok = tok__add_norm(t, TOK_NORM_NFD) && tok__add_norm(t, TOK_NORM_STRIP_MARKS);
    return ok && (!lower || tok__add_norm(t, TOK_NORM_LOWER)) ? 0 : ERR_LIMIT;
}

int tok__bert_split(struct tokenizer *t, struct err *e)
{
    int rc = tok__add_split(t, "\\s+", TOK_SPLIT_REMOVE, false, e);
    return rc ? rc : tok__add_split(t, "[\\p{P}$+<=>^`|~]", TOK_SPLIT_ISOLATE, false, e);
}
