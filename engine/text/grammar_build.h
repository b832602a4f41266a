/* Building grammars: expressions over bytes, put together by the parsers of this folder (regular expressions, GBNF,
 * Lark) and by api/ (JSON schemas), then compiled for one vocabulary.
 *
 * Expressions are handles into their builder and may be used any number of times. A failed call leaves its reason in
 * the builder and returns GR_FAIL; every call that is given GR_FAIL returns GR_FAIL, so a caller checks once, at
 * gr_compile or with gr_failed. One thread at a time. */
#ifndef ENGINE_TEXT_GRAMMAR_BUILD_H
#define ENGINE_TEXT_GRAMMAR_BUILD_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/grammar.h"
#include "engine/text/tokenizer.h"

/* Tokens as bytes, in a trie. Immutable but for its caches (locked inside); any thread. Holds `t` for its life. */
struct grammar_vocab;
/* n_vocab: of the model's logits, >= tok_n_vocab(t) or less. */
int grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int32_t n_vocab,
                       struct err *e);
struct grammar_vocab *grammar_vocab_ref(struct grammar_vocab *v);
void grammar_vocab_unref(struct grammar_vocab *v); /* NULL is fine */

struct gr_limits {    /* zero = default */
    int64_t max_us;   /* of work for a whole build; 2 s */
    size_t max_expr;  /* expressions; 2,000,000 */
    size_t max_state; /* states of one regular part; 32,768 */
    size_t max_bytes; /* of the compiled grammar; 64 MiB */
    int max_depth;    /* nesting of groups in a text; 200 */
};

typedef int32_t gr_expr;
#define GR_FAIL (-1)
#define GR_INF  INT32_MAX

struct gr_builder;
int gr_builder_open(struct gr_builder **out, struct grammar_vocab *v, const struct gr_limits *o);
void gr_builder_close(struct gr_builder *b); /* NULL is fine */
/* 0, or the code of the first failure with its reason in *e. */
int gr_failed(const struct gr_builder *b, struct err *e);
/* Note a failure (the first one stays); always GR_FAIL. */
gr_expr gr_fail(struct gr_builder *b, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Forget a failure: for a caller that has another way. */
void gr_forgive(struct gr_builder *b);
/* Whether the build's time is not up; noted as a failure if it is. For callers that work long without building. */
bool gr_in_time(struct gr_builder *b);

/* ---- expressions ---- */
gr_expr gr_empty(struct gr_builder *b); /* the empty text */
gr_expr gr_never(struct gr_builder *b); /* no text at all */
gr_expr gr_lit(struct gr_builder *b, const void *bytes, size_t n);
gr_expr gr_str(struct gr_builder *b, const char *s);
gr_expr gr_seq(struct gr_builder *b, const gr_expr *e, size_t n);
gr_expr gr_seq2(struct gr_builder *b, gr_expr x, gr_expr y);
gr_expr gr_alt(struct gr_builder *b, const gr_expr *e, size_t n);
gr_expr gr_alt2(struct gr_builder *b, gr_expr x, gr_expr y);
/* min..max times; max may be GR_INF. */
gr_expr gr_repeat(struct gr_builder *b, gr_expr e, int32_t min, int32_t max);
gr_expr gr_opt(struct gr_builder *b, gr_expr e);

/* A rule may be used before it is set, also by itself. */
gr_expr gr_rule_new(struct gr_builder *b, const char *name);
void gr_rule_set(struct gr_builder *b, gr_expr rule, gr_expr body);

/* A regular expression (no rules inside), kept as one automaton from here on: what it matches is decided without a
 * stack. Strings, numbers and literals of a language are such; gr_compile makes more of them where it can. */
gr_expr gr_lex(struct gr_builder *b, gr_expr e);
/* Of regular expressions: texts of all of them; bytes that are not a text of e. */
gr_expr gr_and(struct gr_builder *b, gr_expr x, gr_expr y);
gr_expr gr_not(struct gr_builder *b, gr_expr e);
/* e, a regular expression over characters `chr` of which none begins another, with max of them at most: counted, not
 * unrolled. */
gr_expr gr_bounded(struct gr_builder *b, gr_expr e, gr_expr chr, int32_t max);
/* A regular expression of one or more characters of `encoding`, e.g. gr_any repeated, with min..max characters: counted, not
 * unrolled, so bounds may be large. */
gr_expr gr_counted(struct gr_builder *b, gr_expr chr, int32_t min, int32_t max);
/* Whether a regular expression has no text, or no text in common with another; < 0 on failure. */
int gr_is_never(struct gr_builder *b, gr_expr e);
/* Whether a regular expression has this text; < 0 on failure. */
int gr_matches(struct gr_builder *b, gr_expr e, const void *text, size_t n);
/* Non-negative integers without leading zeros that m divides. */
gr_expr gr_multiple(struct gr_builder *b, int32_t m);

/* ---- characters ---- */
enum gr_encoding {
    GR_UTF8, /* as they are */
    GR_JSON, /* as within a JSON string, spelled one way: escapes only where one is needed, the short one if there is */
    GR_JSON_ALL, /* as within a JSON string, every spelling (gr_any only) */
};
struct gr_range {
    uint32_t lo, hi; /* code points; surrogates are left out */
};
gr_expr gr_chars(struct gr_builder *b, enum gr_encoding enc, const struct gr_range *r, size_t n);
gr_expr gr_any(struct gr_builder *b, enum gr_encoding enc); /* every character */

/* ---- texts ---- */
enum gr_regex_flags {
    GR_SEARCH = 1, /* anywhere in the text (JSON Schema's pattern); else the whole text */
    GR_ICASE = 2,
};
/* ECMA 262 / Python / Rust syntax as far as it is regular; back-references and \b are refused. */
gr_expr gr_regex(struct gr_builder *b, struct view re, enum gr_encoding enc, unsigned flags);
/* A grammar text in GBNF / EBNF ("root ::= ...") or Lark ("start: ..."); the style is recognised. */
gr_expr gr_grammar_text(struct gr_builder *b, struct view text);
/* Free text (any characters, control tokens excluded) that has none of the n stop texts in it. With `then`, one of
 * them ends it and is part of it. */
gr_expr gr_text_until(struct gr_builder *b, const struct view *stop, size_t n, bool then);
/* A control token itself, e.g. one that opens a tool call. No token of the vocabulary: fails, ERR_INVAL. */
gr_expr gr_token(struct gr_builder *b, int32_t id);

/* n members (at most 64) in any order, each at most once, min..max of them, those of the bit set `must` for sure. first[i]
 * is member i where it comes first, later[i] where others came before (with its separator). */
gr_expr gr_set(struct gr_builder *b, const gr_expr *first, const gr_expr *later, size_t n,
               uint64_t must, const int32_t range[2]);

/* A list of items that differ: `first`, then any number of `later`, min..max in all (min >= 1). Each item has exactly one gr_key in
 * it: texts of e, a regular expression without the empty text, of which no two in the list are the same. There must be at least
 * `max` such texts: gr_count, which says GR_INF for very many, and < 0 on failure. */
gr_expr gr_unique(struct gr_builder *b, gr_expr first, gr_expr later, int32_t min, int32_t max);
gr_expr gr_key(struct gr_builder *b, gr_expr e);
int32_t gr_count(struct gr_builder *b, gr_expr e);

/* Compile; the builder can go on. e names what is wrong. */
int gr_compile(struct gr_builder *b, gr_expr root, struct grammar **out, struct err *e);

#endif
