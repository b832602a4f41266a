/* Inside of a tokenizer, shared by the files of engine/text/ only.
 *
 *   text --special finder--> segments --norm[]--> text --split[]--> pieces --model--> ids
 *
 * A tokenizer is built by one of the tok_open_* files through tok__new / tok__finish and is read-only
 * afterwards. struct tok_run is the scratch of one tok_encode call. */
#ifndef ENGINE_TEXT_TOK_IMPL_H
#define ENGINE_TEXT_TOK_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/text/tok_tables.h"
#include "engine/text/tokenizer.h"

#define TOK_MARK      "\xe2\x96\x81" /* U+2581, SentencePiece's visible space */
#define TOK_VOCAB_MAX (1 << 24)
#define TOK_WRAP_MAX  8 /* ids put before or after a prompt */
#define TOK_STOP_MAX  32
#define TOK_SMALL_BPE 24 /* symbols up to which a linear scan beats the heap */

/* Numbers as in tokenizer.ggml.token_type. */
enum tok_type {
    TOK_T_NORMAL = 1,
    TOK_T_UNKNOWN = 2,
    TOK_T_CONTROL = 3,
    TOK_T_USER = 4,
    TOK_T_UNUSED = 5,
    TOK_T_BYTE = 6,
};

enum tok_kind { TOK_KIND_BPE, TOK_KIND_UNIGRAM, TOK_KIND_WORDPIECE };
/* Where BPE's merge order comes from: a merges list, the scores of the merged entries, or the rank
 * (id order) of the merged entries. */
enum tok_order { TOK_BY_MERGES, TOK_BY_SCORE, TOK_BY_RANK };

/* One step of normalisation. */
enum tok_norm_op {
    TOK_NORM_NFC,
    TOK_NORM_NFD,
    TOK_NORM_NFKC,
    TOK_NORM_NFKD,
    TOK_NORM_LOWER,
    TOK_NORM_STRIP_MARKS,
    TOK_NORM_PREPEND,  /* a */
    TOK_NORM_REPLACE,  /* every a by b */
    TOK_NORM_REGEX,    /* every match of re by b */
    TOK_NORM_STRIP,    /* white space; flags: 1 left, 2 right */
    TOK_NORM_CLEAN,    /* BERT: controls out, white space to ' ' */
    TOK_NORM_CJK,      /* BERT: spaces around ideographs */
    TOK_NORM_CHARSMAP, /* SentencePiece's compiled map; flags: 1 by grapheme cluster */
    TOK_NORM_MARK,     /* ' ' -> a; a put in front, see flags */
    TOK_NORM_WORDS,    /* every word of white-space separated text gets a in front */
};
enum tok_mark_flags {
    TOK_MARK_ALWAYS = 1,  /* a in front of every segment */
    TOK_MARK_FIRST = 2,   /* a in front of the first segment only */
    TOK_MARK_ONCE = 4,    /* ... unless the segment starts with a */
    TOK_MARK_SQUEEZE = 8, /* runs of spaces to one, none at the ends */
};
struct tok_re; /* compiled pattern, pretok.c */
struct tok_norm {
    enum tok_norm_op op;
    unsigned flags;
    struct view a, b;
    struct tok_re *re;
    struct tok_charsmap *map;
};
/* out = op(s); `first`: the segment starts the text. s is valid UTF-8. */
int tok__norm_apply(const struct tok_norm *op, const char *s, size_t n, bool first,
                    struct buf *out);

/* SentencePiece's precompiled_charsmap: a double-array trie of source texts and a pool of
 * replacements. Points into `blob`. */
struct tok_charsmap {
    const uint8_t *unit; /* little-endian u32 */
    size_t n_unit;
    const char *pool;
    size_t n_pool;
};
int tok__charsmap_open(struct tok_charsmap *m, const void *blob, size_t n, struct err *e);
void tok__charsmap_apply(const struct tok_charsmap *m, bool clusters, const char *s, size_t n,
                         struct buf *out);

enum tok_split_mode { TOK_SPLIT_ISOLATE, TOK_SPLIT_REMOVE, TOK_SPLIT_PREV, TOK_SPLIT_NEXT };
struct tok_split {
    struct tok_re *re;
    enum tok_split_mode mode;
    bool invert; /* with REMOVE: keep the matches, drop the rest */
};
int tok__re_open(struct tok_re **out, const char *pattern, size_t n, struct err *e);
void tok__re_close(struct tok_re *re);
/* Next match in s[from..n): 1 and its bounds, 0 for none, or ERR_LIMIT / ERR_NOMEM. */
int tok__re_next(const struct tok_re *re, const char *s, size_t n, size_t from, size_t *a,
                 size_t *b);

struct tokenizer {
    struct arena mem;
    enum tok_kind kind;
    int32_t n_vocab;
    struct view *entry; /* [n_vocab] */
    struct view *piece; /* [n_vocab] text in running output */
    uint8_t *type;      /* [n_vocab] enum tok_type */
    float *score;       /* [n_vocab] or NULL */
    struct tok_map map;
    struct tok_norm norm[16];
    int n_norm;
    struct tok_split split[12];
    int n_split;
    struct tok_trie special;
    uint8_t *strip;   /* [n_vocab] or NULL: enum tok_strip of special tokens */
    size_t max_entry; /* bytes */

    /* BPE */
    enum tok_order order;
    bool byte_level;    /* entries use GPT-2's letters for bytes */
    bool raw_entries;   /* entries are bytes themselves (tekken) */
    bool whole_piece;   /* a piece that is an entry is taken as it is */
    bool whole_newline; /* the same for pieces of newlines only */
    bool fuse_unk, byte_fallback;
    struct view word_end; /* "</w>" */
    struct tok_pairs pairs;
    int32_t byte_id[256], byte_end_id[256];

    /* unigram, WordPiece */
    struct tok_trie trie;
    double unk_score;
    uint32_t node_start, node_cont; /* WordPiece: trie nodes of the word-start and "##" prefixes */
    int max_word;                   /* characters */

    int32_t bos, eos, unk;
    bool adds_bos;
    int32_t before[TOK_WRAP_MAX], after[TOK_WRAP_MAX], stop[TOK_STOP_MAX];
    int n_before, n_after, n_stop;

    /* decoding */
    bool control_restarts; /* text after a control token starts anew (TOK_MARK_FIRST) */
    bool word_glue;        /* WordPiece: no space before punctuation and "'s" */
    bool show_unk;         /* the unknown token has a visible text (SentencePiece's unk_surface) */
    bool strip_first;      /* drop one leading space of the text */
    bool fffd_per_byte; /* bytes that are no text: one U+FFFD each, not one per broken character */
};
enum tok_strip { TOK_STRIP_LEFT = 1, TOK_STRIP_RIGHT = 2, TOK_STRIP_WORD = 4 };

/* New tokenizer with n zeroed entries of type NORMAL. */
int tok__new(struct tokenizer **out, enum tok_kind kind, int64_t n_vocab, struct err *e);
/* After entries, types, norm, split and ids are set: builds map, trie, pieces, byte table, stop ids. */
int tok__finish(struct tokenizer *t, struct err *e);
/* Steps of tok__finish that a loader needs earlier. */
int tok__index(struct tokenizer *t, struct err *e); /* map and byte ids */
int tok__add_split(struct tokenizer *t, const char *re, enum tok_split_mode m, bool inv,
                   struct err *e);
struct tok_norm *tok__add_norm(struct tokenizer *t, enum tok_norm_op op); /* NULL when full */
void tok__add_stop(struct tokenizer *t, int32_t id);
/* merges: rank order; refuses a part that is no entry. */
int tok__add_merge(struct tokenizer *t, uint32_t rank, struct view l, struct view r, struct err *e);
/* Splits and options of a tokenizer.ggml.pre name. ERR_UNSUPPORTED names an unknown one. */
int tok__pre_apply(struct tokenizer *t, struct view name, struct err *e);
/* A name of the i-th pre-tokeniser; the empty view behind the last. */
struct view tok__pre_name(int i);
/* The pieces that normalisation and splits make of a text of valid UTF-8, a byte 255 behind each. */
int tok__pieces(const struct tokenizer *t, struct view text, struct buf *out);

/* BERT's normalisation, and its cuts at spaces and punctuation. ERR_LIMIT when the list is full. */
int tok__bert_norm(struct tokenizer *t, bool clean, bool cjk, bool strip, bool lower);
int tok__bert_split(struct tokenizer *t, struct err *e);

/* Whole file, up to b->limit. ERR_NOTFOUND, ERR_IO, ERR_LIMIT. */
int tok__read_file(const char *path, struct buf *b, struct err *e);
/* out holds 3/4 of v.len bytes; ERR_PARSE. */
int tok__base64(struct view v, uint8_t *out, size_t *n);

/* Scratch of one call. */
struct tok_run {
    const struct tokenizer *t;
    struct tok_ids *out;
    struct buf *pieces; /* not NULL: pieces go there, a byte 255 behind each, and to no model */
    bool first;         /* nothing of the text was encoded before */
    struct buf text[2];
    struct buf key;
    struct bpe_sym {
        int32_t id; /* -1: no entry */
        int32_t prev, next;
        uint32_t at, len; /* bytes of the piece */
    } * sym;
    struct bpe_cand {
        uint32_t key; /* lower merges first */
        int32_t left;
        uint32_t len; /* of both symbols: tells a stale candidate */
        int32_t id;
    } * heap;
    size_t cap_sym, n_heap, cap_heap;
    void *best; /* Viterbi rows */
    size_t cap_best;
};
int tok__bpe_piece(struct tok_run *r, const char *s, size_t n);
int tok__unigram_piece(struct tok_run *r, const char *s, size_t n);
int tok__wordpiece_piece(struct tok_run *r, const char *s, size_t n);
int tok__split_text(struct tok_run *r, int level, const char *s, size_t n);
/* Bytes of an unknown character: byte tokens, or one unk; *was_unk carries fuse_unk's state. */
int tok__emit_unknown(struct tok_run *r, const char *s, size_t n, bool *was_unk);

/* unicode.c */
size_t tok__utf8_put(char out[4], uint32_t c);
uint32_t tok__utf8_get(const char *s, size_t n, size_t *len); /* s is valid UTF-8 */
bool tok__is_space(uint32_t c);                               /* White_Space */
bool tok__is_word(uint32_t c);                                /* letter, mark, number, connector */
int tok__nf(enum tok_norm_op op, const char *s, size_t n, struct buf *out);
void tok__lower(const char *s, size_t n, struct buf *out);
void tok__strip_marks(const char *s, size_t n, struct buf *out);
void tok__bert_clean(const char *s, size_t n, struct buf *out);
size_t tok__grapheme_len(const char *s, size_t n); /* bytes of the first grapheme cluster; n >= 1 */
void tok__cjk_spaces(const char *s, size_t n, struct buf *out);
uint32_t tok__byte_letter(uint8_t b);                            /* GPT-2's letter of a byte */
int tok__letter_byte(uint32_t c);                                /* and back; -1 if it is none */
bool tok__letters_to_bytes(struct view s, char *out, size_t *n); /* out holds s.len bytes */

#endif
