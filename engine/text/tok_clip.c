/* CLIP's tokenizer from its list of merges (merges.txt, or bpe_simple_vocab_16e6.txt unpacked). The
 * vocabulary follows from it: 256 byte letters, the same with "</w>", one entry per merge, and the two
 * special tokens. */
#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

#define FILE_MAX   (16u << 20)
#define MERGES_MAX 48894 /* the published list goes on, the model's vocabulary does not */
#define WORD_END   "</w>"

/* Byte number i of the vocabulary: printing ones first. */
static uint8_t byte_in_order(int i)
{
    int k = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++)
            if ((tok__byte_letter((uint8_t)b) < 0x100) == (pass == 0) && k++ == i)
                return (uint8_t)b;
    return 0;
}

/* Entry = a followed by b, in the tokenizer's arena. */
static int set_entry(struct tokenizer *t, int32_t id, struct view a, struct view b, uint8_t type)
{
    char *p = arena_alloc(&t->mem, a.len + b.len + 1);
    if (!p)
        return ERR_NOMEM;
    memcpy(p, a.p, a.len);
    memcpy(p + a.len, b.p, b.len);
    t->entry[id] = (struct view){p, a.len + b.len};
    t->type[id] = type;
    return 0;
}

/* Next "left right" line; false at the end of the list. */
static bool next_merge(const char **p, const char *end, struct view *l, struct view *r)
{
    const char *eol = memchr(*p, '\n', (size_t)(end - *p));
    if (!eol)
        eol = end;
    const char *sp = memchr(*p, ' ', (size_t)(eol - *p));
    if (!sp || sp == *p || sp + 1 == eol)
        return false;
    *l = (struct view){*p, (size_t)(sp - *p)};
    *r = (struct view){sp + 1, (size_t)(eol - sp - 1)};
    if (r->p[r->len - 1] == '\r')
        r->len--;
    *p = eol < end ? eol + 1 : end;
    return true;
}

/* Entries and merges in the order of the published vocabulary; n merges. */
static int fill(struct tokenizer *t, const char *list, const char *end, int32_t n, struct err *e)
{
    struct view none = {"", 0}, l, r;
    int rc = 0;
    for (int i = 0; i < 256 && rc == 0; i++) {
        char b[4];
        struct view v = {b, tok__utf8_put(b, tok__byte_letter(byte_in_order(i)))};
        rc = set_entry(t, i, v, none, TOK_T_NORMAL);
        rc = rc ? rc : set_entry(t, 256 + i, v, VIEW_LIT(WORD_END), TOK_T_NORMAL);
    }
    const char *p = list;
    for (int32_t i = 0; i < n && rc == 0 && next_merge(&p, end, &l, &r); i++)
        rc = set_entry(t, 512 + i, l, r, TOK_T_NORMAL);
    rc = rc ? rc : set_entry(t, 512 + n, VIEW_LIT("<|startoftext|>"), none, TOK_T_CONTROL);
    rc = rc ? rc : set_entry(t, 513 + n, VIEW_LIT("<|endoftext|>"), none, TOK_T_CONTROL);
    if (rc != 0)
        return err_set(e, rc, "out of memory");
    rc = tok__index(t, e);
    if (rc == 0 && tok__pairs_init(&t->pairs, (size_t)n) != 0)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    p = list;
    for (int32_t i = 0; i < n && rc == 0 && next_merge(&p, end, &l, &r); i++)
        rc = tok__add_merge(t, (uint32_t)i, l, r, e);
    return rc;
}

/* Composed, spaces squeezed, lower case; then CLIP's own pattern, whose matches are the pieces. */
static int set_steps(struct tokenizer *t, struct err *e)
{
    tok__add_norm(t, TOK_NORM_NFC);
    struct tok_norm *op = tok__add_norm(t, TOK_NORM_REGEX);
    op->b = VIEW_LIT(" ");
    int rc = tok__re_open(&op->re, "\\s+", 3, e);
    tok__add_norm(t, TOK_NORM_LOWER);
    rc = rc ? rc
            : tok__add_split(t,
                             "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|"
                             "[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+",
                             TOK_SPLIT_REMOVE, true, e);
    return rc;
}

static int load(struct tokenizer **out, struct view v, struct err *e)
{
    const char *p = v.p, *end = p + v.len, *list = memchr(p, '\n', v.len);
    struct view l, r;
    int32_t n = 0;
    if (!list || (*p != '#' && *p != '"'))
        return err_set(e, ERR_PARSE, "no list of merges: the version line is absent");
    list++;
    for (p = list; n < MERGES_MAX && next_merge(&p, end, &l, &r);)
        n++;
    if (n == 0)
        return err_set(e, ERR_PARSE, "no merges");
    struct tokenizer *t = NULL;
    int rc = tok__new(&t, TOK_KIND_BPE, 514 + n, e);
    if (rc != 0)
        return rc;
    *out = t;
    t->order = TOK_BY_MERGES;
    t->byte_level = true;
    t->word_end = VIEW_LIT(WORD_END);
    rc = fill(t, list, end, n, e);
    rc = rc ? rc : set_steps(t, e);
    t->bos = t->before[t->n_before++] = 512 + n;
    t->eos = t->unk = t->after[t->n_after++] = 513 + n;
    t->adds_bos = true;
    return rc ? rc : tok__finish(t, e);
}

static int finish(struct tokenizer **out, struct tokenizer *t, int rc, const char *name,
                  struct err *e)
{
    if (rc != 0) {
        tok_close(t);
        err_prefix(e, "%s", name);
        return rc;
    }
    *out = t;
    return 0;
}

int tok_open_clip(struct tokenizer **out, const char *path, struct err *e)
{
    struct buf b = {.limit = FILE_MAX};
    int rc = tok__read_file(path, &b, e);
    struct tokenizer *t = NULL;
    rc = rc ? rc : load(&t, (struct view){buf_cstr(&b), b.len}, e);
    buf_free(&b);
    return finish(out, t, rc, path, e);
}

/* The published list, put into this object by the assembler (the path is relative to the source tree's root, where the
 * compiler runs). LICENSE.clip_merges says whose it is. */
__asm__(".pushsection .rodata\n"
        ".global tok__clip_list\n"
        ".global tok__clip_list_end\n"
        "tok__clip_list:\n"
        ".incbin \"engine/text/clip_merges.txt\"\n"
        "tok__clip_list_end:\n"
        ".byte 0\n"
        ".popsection\n");
extern const char tok__clip_list[], tok__clip_list_end[];

int tok_open_clip_published(struct tokenizer **out, struct err *e)
{
    struct tokenizer *t = NULL;
    size_t n = (size_t)(tok__clip_list_end - tok__clip_list);
    int rc = load(&t, (struct view){tok__clip_list, n}, e);
    return finish(out, t, rc, "CLIP's vocabulary", e);
}
