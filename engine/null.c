/* Device "null": no weights, no KV; every row gets a scripted token at no cost, so that a measurement
 * sees scheduler and server alone. Tokens are ordinary words of the vocabulary of the file or folder (never
 * control tokens), chosen by (seed, position); an answer ends by max_tokens. Keeps a row's target, bans and mask.
 * With a time for steps it is a device with a queue: the next step may be issued while one runs. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/engine_impl.h"
#include "engine/load/gguf.h"
#include "engine/text/text_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#define WORDS_MAX    512
#define NULL_CONTEXT 8192 /* tokens, when the file does not say */
#define TYPE_NORMAL  1    /* tokenizer.ggml.token_type */

struct null_device {
    int32_t n_vocab;
    int n_word;
    int64_t step_us;            /* 0: steps take no time */
    int64_t due_us[2], last_us; /* when the open steps end; when the latest does */
    int first, n_open;
    int32_t word[WORDS_MAX];
};

/* Letters only, after an optional word mark of byte-level BPE (U+0120) or SentencePiece (U+2581): such
 * tokens are whole characters for every detokenizer. */
static bool is_word(struct view s)
{
    size_t i = 0;
    if (view_starts(s, "\xC4\xA0"))
        i = 2;
    else if (view_starts(s, "\xE2\x96\x81"))
        i = 3;
    if (s.len < i + 2)
        return false;
    for (; i < s.len; i++)
        if (!((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z')))
            return false;
    return true;
}

static int vocab_read(struct null_device *n, const struct gguf *g, struct err *e)
{
    const struct gguf_kv *tok = gguf_kv_find(g, "tokenizer.ggml.tokens");
    const struct gguf_kv *type = gguf_kv_find(g, "tokenizer.ggml.token_type");
    if (!tok || tok->type != GGUF_ARRAY || tok->elem != GGUF_STRING || tok->n == 0 ||
        tok->n > (1 << 24))
        return err_set(e, ERR_NOTFOUND, "key tokenizer.ggml.tokens is missing or no string list");
    bool typed = type && type->type == GGUF_ARRAY && type->n == tok->n &&
                 (type->elem == GGUF_I32 || type->elem == GGUF_U32);
    n->n_vocab = (int32_t)tok->n;
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    if (embd && embd->n_dim == 2 && embd->dim[1] > n->n_vocab && embd->dim[1] <= (1 << 24))
        n->n_vocab = (int32_t)embd->dim[1];
    for (uint64_t i = 0; i < tok->n && n->n_word < WORDS_MAX; i++)
        if ((!typed || gguf_arr_int(type, i) == TYPE_NORMAL) && is_word(gguf_arr_str(tok, i)))
            n->word[n->n_word++] = (int32_t)i;
    if (n->n_word == 0)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.tokens holds no word of letters");
    return 0;
}

/* Of a folder: what its tokenizer knows. */
static int vocab_folder(struct null_device *n, struct ckpt *c, const char *path, struct err *e)
{
    int64_t rows = 0;
    struct text_model *m = NULL;
    int rc = text_model_open(&m, path, e);
    if (rc)
        return rc;
    n->n_vocab = tok_n_vocab(m->tok);
    for (int32_t i = 0; i < n->n_vocab && n->n_word < WORDS_MAX; i++)
        if (!tok_is_control(m->tok, i) && is_word(tok_entry(m->tok, i)))
            n->word[n->n_word++] = i;
    text_model_close(m);
    rc = ckpt_int(c, NULL, "vocab_size", &rows, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (rows > n->n_vocab && rows <= (1 << 24))
        n->n_vocab = (int32_t)rows;
    if (n->n_word == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: the tokenizer holds no word of letters", path);
    return 0;
}

static int info_fill(const struct null_device *n, struct eng_info *info, struct eng_memory *mem,
                     struct ckpt *c, const struct eng_opts *o, struct err *e)
{
    static const char json[] = "max_position_embeddings|n_positions|max_seq_len";
    char key[200];
    struct view arch = VIEW_LIT("null");
    int64_t ctx = NULL_CONTEXT;
    int rc = ckpt_arch(c, &arch, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    snprintf(info->arch, sizeof info->arch, "%.*s", (int)(arch.len > 31 ? 31 : arch.len), arch.p);
    ckpt_prefix_set(c, info->arch);
    rc = ckpt_int(c, "context_length", json, &ctx, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (ctx < 1 || ctx > (1 << 26))
        return err_set(e, ERR_INVAL, "%s is %lld",
                       ckpt_key_text(c, "context_length", json, key, sizeof key), (long long)ctx);
    if (o->n_ctx < 0 || o->n_ctx > ctx)
        return err_set(e, ERR_LIMIT,
                       "a context of %d tokens is asked for; the model was made for %lld", o->n_ctx,
                       (long long)ctx);
    rc = eng__limits_set(info, o, e);
    if (rc)
        return rc;
    info->n_ctx = o->n_ctx ? o->n_ctx : (int32_t)ctx;
    info->n_vocab = n->n_vocab;
    int64_t seqs = info->max_seqs > 4 ? info->max_seqs / 4 : 1;
    int64_t full = (info->n_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int64_t blocks = full * seqs + 1;
    info->lookahead = n->step_us > 0;
    info->n_block = (int32_t)(blocks > INT32_MAX ? INT32_MAX : blocks);
    snprintf(info->backend, sizeof info->backend, "null");
    info->layout_id = hash_u64(n->n_word == 0);
    *mem = (struct eng_memory){.file = ckpt_file_bytes(c),
                               .n_ctx = info->n_ctx,
                               .n_block = info->n_block,
                               .available = eng_memory_available("")};
    return 0;
}

int eng__null_open(struct null_device **out, struct eng_info *info, struct eng_memory *mem,
                   const struct eng_opts *o, struct err *e)
{
    struct ckpt *file = NULL;
    struct null_device *n = mem_calloc(1, sizeof *n);
    *out = NULL;
    if (!n)
        return err_set(e, ERR_NOMEM, "no memory for the null device");
    n->step_us = o->null_step_us;
    int rc = eng__file_open(&file, o, e);
    if (!rc)
        rc = ckpt_is_hf(file) ? vocab_folder(n, file, o->path, e)
                              : vocab_read(n, ckpt_gguf(file), e);
    if (!rc)
        rc = info_fill(n, info, mem, file, o, e);
    ckpt_close(file);
    if (rc) {
        free(n);
        return rc;
    }
    *out = n;
    return 0;
}

void eng__null_close(struct null_device *n)
{
    free(n);
}

static bool is_allowed(const struct sample_row *r, int32_t t)
{
    if (r->mask && !(r->mask[t / 32] >> (t % 32) & 1))
        return false;
    for (int i = 0; i < r->n_ban; i++)
        if (r->ban[i] == t)
            return false;
    return true;
}

static int32_t token_choose(const struct null_device *n, const struct sample_row *r)
{
    if (r->target >= 0)
        return r->target;
    uint64_t h = hash_u64(r->seed + r->position);
    for (int i = 0; i < n->n_word; i++) {
        int32_t t = n->word[(h + (uint64_t)i) % (uint64_t)n->n_word];
        if (is_allowed(r, t))
            return t;
    }
    for (int32_t t = 0; t < n->n_vocab; t++) /* a mask without any word */
        if (is_allowed(r, t))
            return t;
    return n->word[0];
}

/* A step runs from when it is issued, or from the end of the one before, as in a device's queue. */
static void clock_begin(struct null_device *n)
{
    int64_t now = clock_us();
    n->last_us = (n->last_us > now ? n->last_us : now) + n->step_us;
    n->due_us[(n->first + n->n_open++) % 2] = n->last_us;
}

void eng__null_wait(struct null_device *n)
{
    if (!n->n_open)
        return;
    int64_t due = n->due_us[n->first];
    struct timespec ts = {.tv_sec = due / 1000000, .tv_nsec = due % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
    n->first = !n->first;
    n->n_open--;
}

void eng__null_step(struct null_device *n, struct batch *b, int n_logit)
{
    if (n->step_us)
        clock_begin(n);
    for (int i = 0; i < n_logit; i++) {
        struct sample_out *o = &b->out[i];
        *o = (struct sample_out){.token = token_choose(n, &b->rows[i]), .rank = 1};
        o->logprob = -0.5f;
        o->n_top = b->rows[i].n_top < 0 ? 0 : b->rows[i].n_top;
        if (o->n_top > n->n_vocab)
            o->n_top = n->n_vocab;
        /* The chosen token first, then the lowest other ids; each as likely as half of the one before. */
        int32_t next = 0;
        for (int k = 0; k < o->n_top; k++) {
            if (k && next == o->token)
                next++;
            o->top_id[k] = k ? next++ : o->token;
            o->top_logprob[k] = o->logprob - (float)k * (float)M_LN2;
        }
    }
}
