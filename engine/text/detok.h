/* Streaming detokeniser: ids in, whole UTF-8 characters out. Never emits part of a character: bytes
 * wait until the character is complete; bytes that can no longer become one turn into U+FFFD. The sum
 * of all pieces equals tok_decode of the same ids. One owner; no locks. */
#ifndef ENGINE_TEXT_DETOK_H
#define ENGINE_TEXT_DETOK_H

#include "engine/text/tokenizer.h"

struct detok {
    const struct tokenizer *tok;
    bool special;    /* show control tokens' text (skip_special_tokens: false) */
    bool started;    /* some text was produced: SentencePiece's first-space rule is spent */
    uint8_t hold[8]; /* incomplete character */
    int n_hold;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool special);
/* Append to *out the text that id completes (often nothing). */
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* End of stream: held bytes come out as U+FFFD. */
void detok_flush(struct detok *d, struct buf *out);

#endif
