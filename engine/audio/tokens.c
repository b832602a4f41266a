/* Tokens that mean something, and those that a transcript never holds. See model.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/audio/model.h"
#include "engine/base/mem.h"
#include "engine/load/config.h"

#define MULTILINGUAL_VOCAB 51865 /* the least vocabulary of a multilingual model */

static int32_t find(const struct tokenizer *tok, const char *s)
{
    return tok_find(tok, s, strlen(s));
}

static int need(const struct tokenizer *tok, const char *s, int32_t *out, struct err *e)
{
    *out = find(tok, s);
    return *out >= 0 ? 0 : err_set(e, ERR_INVAL, "tokenizer: the token %s is missing", s);
}

static void ban(struct aud_tokens *t, int32_t id, uint8_t how)
{
    if (id >= 0 && id < t->n_vocab)
        t->ban[id] |= how;
}

/* A list of ids under the first of two names that is there. */
static bool ban_list(struct aud_tokens *t, struct config *c, const char *const key[2], uint8_t how)
{
    for (int k = 0; k < 2; k++) {
        int n = config_has(c, key[k]) ? config_len(c, key[k]) : 0;
        for (int i = 0; i < n; i++)
            ban(t, (int32_t)config_int_at(c, key[k], i, -1, INT32_MAX), how);
        if (n)
            return true;
    }
    return false;
}

static void read_align(struct aud_tokens *t, struct config *c, const struct whisper_dims *d)
{
    int n = config_has(c, "alignment_heads") ? config_len(c, "alignment_heads") : 0;
    if (t->n_align || n > AUD_ALIGN_MAX)
        return;
    for (int i = 0; i < n; i++) {
        char key[40];
        snprintf(key, sizeof key, "alignment_heads.%d", i);
        int layer = (int)config_int_at(c, key, 0, 0, d->dec_layer - 1);
        int head = (int)config_int_at(c, key, 1, 0, d->dec_head - 1);
        t->align[t->n_align].layer = layer;
        t->align[t->n_align++].head = head;
    }
}

/* Symbols that stand for no speech, alone or after a space; of notes the first byte's token too. As in the list that
 * published models come with. */
static int ban_symbols(struct aud_tokens *t, const struct tokenizer *tok)
{
    static const char *const one[] = {
        "\"",  "#",  "(",  ")",   "*",   "+",   "/",   ":",  ";",   "<",  "=",  ">",
        "@",   "[",  "\\", "]",   "^",   "_",   "`",   "{",  "|",   "}",  "~",  "「",
        "」",  "『", "』", "<<",  ">>",  "<<<", ">>>", "--", "---", "-(", "-[", "('",
        "(\"", "((", "))", "(((", ")))", "[[",  "]]",  "{{", "}}",  "♪♪", "♪♪♪"};
    static const char *const note[] = {"♩", "♪", "♫", "♬", "♭", "♮", "♯"};
    size_t n_one = sizeof one / sizeof *one, n_note = sizeof note / sizeof *note;
    for (size_t i = 0; i < 2 * (n_one + n_note) + 2; i++) {
        char s[16];
        struct tok_ids v = {0};
        size_t k = i / 2;
        bool any = k >= n_one; /* the first token counts even if there are more */
        const char *text = k < n_one ? one[k] : k < n_one + n_note ? note[k - n_one] : "";
        snprintf(s, sizeof s, "%s%s", i % 2 ? " " : "", text);
        if (!*text)
            snprintf(s, sizeof s, i % 2 ? " -" : " '");
        int rc = tok_encode(tok, s, strlen(s), 0, &v);
        if (!rc && (v.n == 1 || (any && v.n)))
            ban(t, v.id[0], AUD_BAN_ALWAYS);
        tok_ids_free(&v);
        if (rc)
            return rc;
    }
    return 0;
}

/* generation_config.json, then config.json; a folder of CTranslate2 has other names in the latter. */
static int read_lists(struct aud_tokens *t, const struct tokenizer *tok, const char *dir,
                      const struct whisper_dims *d, struct err *e)
{
    static const char *const file[] = {"generation_config.json", "config.json"};
    static const char *const all[2] = {"suppress_tokens", "suppress_ids"},
                             *const first[2] = {"begin_suppress_tokens", "suppress_ids_begin"};
    bool have = false, have_first = false;
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX];
        struct config *c;
        int n = snprintf(path, sizeof path, "%s/%s", dir, file[i]);
        if (n < 0 || n >= PATH_MAX || access(path, R_OK))
            continue;
        int rc = config_open(&c, path, e);
        if (rc)
            return rc;
        have = have || ban_list(t, c, all, AUD_BAN_ALWAYS);
        have_first = have_first || ban_list(t, c, first, AUD_BAN_FIRST);
        read_align(t, c, d);
        t->multilingual = config_bool(c, "is_multilingual", t->multilingual);
        t->first_time_max =
            (int)config_int(c, "max_initial_timestamp_index", t->first_time_max, 0, 1500);
        rc = config_error(c, e);
        config_close(c);
        if (rc)
            return rc;
    }
    if (!have && ban_symbols(t, tok))
        return err_set(e, ERR_NOMEM, "tokenizer: no memory");
    if (!have_first) {
        struct tok_ids v = {0};
        if (!tok_encode(tok, " ", 1, 0, &v) && v.n == 1)
            ban(t, v.id[0], AUD_BAN_FIRST);
        tok_ids_free(&v);
    }
    return 0;
}

int aud_tokens_open(struct aud_tokens *t, const struct tokenizer *tok, const char *dir,
                    const struct whisper_dims *d, struct err *e)
{
    *t = (struct aud_tokens){.n_vocab = d->n_vocab, .first_time_max = 50};
    int rc = need(tok, "<|startoftranscript|>", &t->sot, e);
    rc = rc ? rc : need(tok, "<|endoftext|>", &t->eot, e);
    rc = rc ? rc : need(tok, "<|startofprev|>", &t->prev, e);
    rc = rc ? rc : need(tok, "<|notimestamps|>", &t->no_times, e);
    rc = rc ? rc : need(tok, "<|transcribe|>", &t->transcribe, e);
    rc = rc ? rc : need(tok, "<|translate|>", &t->translate, e);
    if (rc)
        return rc;
    t->no_speech = find(tok, "<|nospeech|>");
    if (t->no_speech < 0)
        t->no_speech = find(tok, "<|nocaptions|>");
    t->first_time = t->no_times + 1;
    if (t->first_time >= t->n_vocab || t->eot > t->sot)
        return err_set(e, ERR_INVAL,
                       "tokenizer: its time tokens are not in the model's vocabulary");
    for (int i = 0; i < AUD_LANGUAGES; i++) {
        char s[16];
        snprintf(s, sizeof s, "<|%s|>", aud_language_code(i));
        t->lang[i] = find(tok, s);
        if (t->lang[i] >= t->n_vocab)
            t->lang[i] = -1;
    }
    t->multilingual = t->n_vocab >= MULTILINGUAL_VOCAB;
    t->ban = mem_calloc((size_t)t->n_vocab, 1);
    if (!t->ban)
        return err_set(e, ERR_NOMEM, "no memory for a list of tokens");
    int32_t never[] = {t->sot,
                       t->prev,
                       t->transcribe,
                       t->translate,
                       t->no_speech,
                       t->no_times,
                       find(tok, "<|startoflm|>")};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        ban(t, never[i], AUD_BAN_ALWAYS);
    ban(t, t->eot, AUD_BAN_FIRST);
    return read_lists(t, tok, dir, d, e);
}

void aud_tokens_close(struct aud_tokens *t)
{
    free(t->ban);
    t->ban = NULL;
}
