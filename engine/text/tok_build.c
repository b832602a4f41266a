/* Putting a tokenizer together: what every loader shares. Loaders fill entries, types, scores, steps
 * and ids; tok__finish derives the tables. Entry texts stay where the loader put them (arena or mapped
 * file). */
#include <errno.h>

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

static int nomem(struct err *e)
{
    return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
}

int tok__read_file(const char *path, struct buf *b, struct err *e)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot be opened: %s",
                       strerror(errno));
    char chunk[16384];
    int rc = 0;
    for (size_t k; !rc && (k = fread(chunk, 1, sizeof chunk, f)) > 0;) {
        rc = buf_reserve(b, k); /* says which of the two reasons it was */
        buf_add(b, chunk, k);
    }
    bool io = ferror(f) != 0;
    fclose(f);
    if (io)
        return err_set(e, ERR_IO, "cannot be read");
    if (rc == ERR_LIMIT)
        return err_set(e, rc, "larger than %zu bytes", b->limit);
    return rc ? nomem(e) : 0;
}

int tok__new(struct tokenizer **out, enum tok_kind kind, int64_t n_vocab, struct err *e)
{
    if (n_vocab < 1 || n_vocab > TOK_VOCAB_MAX)
        return err_set(e, ERR_LIMIT, "vocabulary of %lld entries (1 to %d)", (long long)n_vocab,
                       TOK_VOCAB_MAX);
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nomem(e);
    size_t n = (size_t)n_vocab;
    t->kind = kind;
    t->n_vocab = (int32_t)n_vocab;
    t->bos = t->eos = t->unk = -1;
    t->max_word = 100;
    t->entry = arena_array(&t->mem, n, sizeof *t->entry);
    t->piece = arena_array(&t->mem, n, sizeof *t->piece);
    t->type = arena_alloc(&t->mem, n);
    if (!t->entry || !t->piece || !t->type) {
        tok_close(t);
        return nomem(e);
    }
    memset(t->type, TOK_T_NORMAL, n);
    *out = t;
    return 0;
}

void tok_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_split; i++)
        tok__re_close(t->split[i].re);
    for (int i = 0; i < t->n_norm; i++)
        tok__re_close(t->norm[i].re);
    tok__map_free(&t->map);
    tok__pairs_free(&t->pairs);
    tok__trie_free(&t->special);
    tok__trie_free(&t->trie);
    arena_free(&t->mem);
    free(t);
}

struct tok_norm *tok__add_norm(struct tokenizer *t, enum tok_norm_op op)
{
    if (t->n_norm >= (int)(sizeof t->norm / sizeof t->norm[0]))
        return NULL;
    struct tok_norm *n = &t->norm[t->n_norm++];
    n->op = op;
    return n;
}

int tok__add_merge(struct tokenizer *t, uint32_t rank, struct view l, struct view r, struct err *e)
{
    char both[4096];
    int32_t a = tok__map_find(&t->map, l.p, l.len), b = tok__map_find(&t->map, r.p, r.len), c = -1;
    if (l.len + r.len <= sizeof both) {
        memcpy(both, l.p, l.len);
        memcpy(both + l.len, r.p, r.len);
        c = tok__map_find(&t->map, both, l.len + r.len);
    }
    if (a < 0 || b < 0 || c < 0)
        return err_set(e, ERR_INVAL, "merge %u: '%.*s' + '%.*s' is not in the vocabulary", rank,
                       (int)(l.len < 60 ? l.len : 60), l.p, (int)(r.len < 60 ? r.len : 60), r.p);
    tok__pairs_add(&t->pairs, a, b, rank, c);
    return 0;
}

/* Byte -> entry, under the vocabulary's way of writing bytes. */
static void index_bytes(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char s[32];
        size_t n;
        if (t->raw_entries) {
            s[0] = (char)b;
            n = 1;
        } else if (t->byte_level) {
            n = tok__utf8_put(s, tok__byte_letter((uint8_t)b));
        } else {
            n = (size_t)snprintf(s, sizeof s, "<0x%02X>", (unsigned)b);
        }
        t->byte_id[b] = tok__map_find(&t->map, s, n);
        t->byte_end_id[b] = -1;
        if (t->byte_level && t->word_end.len && n + t->word_end.len <= sizeof s) {
            memcpy(s + n, t->word_end.p, t->word_end.len);
            t->byte_end_id[b] = tok__map_find(&t->map, s, n + t->word_end.len);
        }
    }
}

int tok__index(struct tokenizer *t, struct err *e)
{
    if (tok__map_init(&t->map, t->entry, (size_t)t->n_vocab) != 0)
        return nomem(e);
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (t->entry[i].len > t->max_entry)
            t->max_entry = t->entry[i].len;
        if (t->entry[i].len)
            tok__map_add(&t->map, i);
    }
    index_bytes(t);
    return 0;
}

/* Types that the special-token finder looks for. */
static bool is_special(uint8_t type)
{
    return type == TOK_T_CONTROL || type == TOK_T_USER || type == TOK_T_UNKNOWN;
}

/* Special-token trie for all kinds, text trie and cost of an unknown character for unigram and WordPiece. */
static int build_tries(struct tokenizer *t, struct err *e)
{
    double low = 0;
    bool any = false;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct view v = t->entry[i];
        bool sp = is_special(t->type[i]);
        if (sp && v.len && tok__trie_add(&t->special, v.p, v.len, i) != 0)
            return nomem(e);
        bool text = t->type[i] == TOK_T_NORMAL || t->type[i] == TOK_T_USER;
        if (t->kind == TOK_KIND_BPE || !v.len || !text)
            continue;
        if (tok__trie_add(&t->trie, v.p, v.len, i) != 0)
            return nomem(e);
        if (t->score && (!any || (double)t->score[i] < low))
            low = (double)t->score[i];
        any = true;
    }
    t->unk_score = low - 10.0; /* SentencePiece's kUnkPenalty */
    return 0;
}

/* ---- text of each entry in running output ---- */

/* BERT's decoder glues these to the word before. */
static bool glued(struct view v)
{
    static const char *const starts[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (view_starts(v, starts[i]))
            return true;
    return false;
}

/* WordPiece: entries that open a word get a space, continuation marks go. out has room for one more
 * byte than the entry. */
static size_t piece_word(const struct tokenizer *t, struct view v, bool special, char *out)
{
    bool marked = view_starts(v, TOK_MARK), cont;
    if (t->node_cont == 0) { /* U+2581 opens words, nothing marks their continuation */
        cont = !marked && !special;
        v.p += marked ? 3 : 0;
        v.len -= marked ? 3 : 0;
    } else {
        cont = view_starts(v, "##");
        v.p += cont ? 2 : 0;
        v.len -= cont ? 2 : 0;
    }
    size_t k = 0;
    if (!cont && !(t->word_glue && glued(v)))
        out[k++] = ' ';
    memcpy(out + k, v.p, v.len);
    return k + v.len;
}

/* SentencePiece: U+2581 becomes a space. */
static size_t piece_marks(struct view v, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < v.len;) {
        if (v.len - i >= 3 && memcmp(v.p + i, TOK_MARK, 3) == 0) {
            out[k++] = ' ';
            i += 3;
        } else {
            out[k++] = v.p[i++];
        }
    }
    return k;
}

/* GPT-2 letters become bytes; a text with other letters stands for itself. A word end is a space. */
static size_t piece_bytes(const struct tokenizer *t, struct view v, char *out)
{
    size_t k, cut = t->word_end.len;
    bool end = cut && v.len > cut && memcmp(v.p + v.len - cut, t->word_end.p, cut) == 0;
    if (end)
        v.len -= cut;
    if (!tok__letters_to_bytes(v, out, &k)) {
        memcpy(out, v.p, v.len);
        k = v.len;
    }
    if (end)
        out[k++] = ' ';
    return k;
}

/* All pieces go to one pool: an entry grows by at most one byte. Special tokens read as they are. */
static int build_pieces(struct tokenizer *t, struct err *e)
{
    size_t total = (size_t)t->n_vocab;
    for (int32_t i = 0; i < t->n_vocab; i++)
        if (!ck_add(total, t->entry[i].len, &total))
            return nomem(e);
    char *pool = t->raw_entries ? NULL : arena_alloc(&t->mem, total);
    if (!pool && !t->raw_entries)
        return nomem(e);
    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct view v = t->entry[i];
        uint8_t type = t->type[i];
        size_t k = 0;
        if (t->raw_entries || (is_special(type) && t->kind != TOK_KIND_WORDPIECE)) {
            t->piece[i] = v;
            continue;
        }
        if (t->kind == TOK_KIND_WORDPIECE)
            k = piece_word(t, v, is_special(type), pool);
        else if (t->byte_level)
            k = piece_bytes(t, v, pool);
        else
            k = piece_marks(v, pool);
        t->piece[i] = (struct view){pool, k};
        pool += k;
    }
    for (int b = 0; b < 256 && !t->byte_level && !t->raw_entries; b++) {
        int32_t id = t->byte_id[b];
        char *one = id >= 0 ? arena_alloc(&t->mem, 1) : NULL;
        if (id < 0 || !(t->type[id] == TOK_T_BYTE || t->byte_fallback))
            continue;
        if (!one)
            return nomem(e);
        *one = (char)b;
        t->piece[id] = (struct view){one, 1};
    }
    return 0;
}

/* ---- ends of an answer ---- */

void tok__add_stop(struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab || t->n_stop >= TOK_STOP_MAX)
        return;
    for (int i = 0; i < t->n_stop; i++)
        if (t->stop[i] == id)
            return;
    t->stop[t->n_stop++] = id;
}

/* Entries that are known to end a turn, by text: files often name only eos. */
static void find_stops(struct tokenizer *t)
{
    static const char *const ends[] = {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
        "<|end|>",
        "<|eot|>",
        "<|eom|>",
        "<|EOT|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|endofturn|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<|end_of_message|>",
    };
    tok__add_stop(t, t->eos);
    bool harmony = tok__map_find(&t->map, "<|return|>", 10) >= 0 &&
                   tok__map_find(&t->map, "<|channel|>", 11) >= 0;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        int32_t id = tok__map_find(&t->map, ends[i], strlen(ends[i]));
        /* In the harmony format <|end|> closes one message of an answer that goes on. */
        if (id >= 0 && is_special(t->type[id]) && !(harmony && strcmp(ends[i], "<|end|>") == 0))
            tok__add_stop(t, id);
    }
}

int tok__finish(struct tokenizer *t, struct err *e)
{
    int rc = t->map.slot ? 0 : tok__index(t, e);
    if (rc == 0)
        rc = build_tries(t, e);
    if (rc != 0)
        return rc;
    if (t->kind == TOK_KIND_WORDPIECE) {
        bool marks = t->node_cont == 0; /* the loader left UINT32_MAX for "##" */
        t->node_start = marks ? tok__trie_walk(&t->trie, TOK_MARK, 3) : 0;
        t->node_cont = marks ? 0 : tok__trie_walk(&t->trie, "##", 2);
    }
    rc = build_pieces(t, e);
    if (rc == 0)
        find_stops(t);
    return rc;
}
