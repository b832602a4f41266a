/* Text <-> token ids. One tokenizer is read-only after open and may be used from any thread; scratch
 * is per call. Kinds: byte-level BPE with a pre-tokeniser (GPT-2 family), SentencePiece BPE (with byte
 * fallback), SentencePiece unigram, WordPiece. Special tokens are found before normalisation, longest
 * first: control tokens when TOK_SPECIAL is given (without it their text is ordinary text),
 * user-defined ones ("<think>", runs of spaces: visible text) always. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct gguf;
struct tokenizer;

/* Growable list of ids. Zero is empty. */
struct tok_ids {
    int32_t *id;
    size_t n, cap;
};
int tok_ids_add(struct tok_ids *v, int32_t id); /* 0 or ERR_NOMEM */
void tok_ids_free(struct tok_ids *v);

/* From the tokenizer.ggml.* keys of a GGUF file; keeps pointers into it (the gguf must outlive it). */
int tok_open_gguf(struct tokenizer **out, const struct gguf *g, struct err *e);
/* From a Hugging Face tokenizer.json. */
int tok_open_hf(struct tokenizer **out, const char *path, struct err *e);
/* Mistral's tekken.json, and a SentencePiece .model file (protobuf). */
int tok_open_tekken(struct tokenizer **out, const char *path, struct err *e);
int tok_open_spm(struct tokenizer **out, const char *path, struct err *e);
/* CLIP's list of merges (merges.txt, or bpe_simple_vocab_16e6.txt unpacked). */
int tok_open_clip(struct tokenizer **out, const char *path, struct err *e);
/* From the list that this program has in itself: OpenAI's, of 49,408 entries, which every published CLIP shares. */
int tok_open_clip_published(struct tokenizer **out, struct err *e);
/* From a folder with vocab.json and merges.txt, and added_tokens.json, tokenizer_config.json and
 * special_tokens_map.json where they are there: the ids are vocab.json's. CLIP's and Qwen2's classes. */
int tok_open_files(struct tokenizer **out, const char *dir, struct err *e);
void tok_close(struct tokenizer *t);

enum tok_flags {
    TOK_SPECIAL = 1, /* recognise special tokens' text */
    TOK_BOS_EOS = 2, /* add bos / eos as the model's file asks for plain prompts */
};
/* Append the ids of text[0..n) to *out. Bytes that are no UTF-8 are kept (byte tokens) where the
 * vocabulary can say them. ERR_NOMEM, ERR_LIMIT (pattern engine's match limit), ERR_PARSE. Linear in n. */
int tok_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
               struct tok_ids *out);
/* Byte offsets (ascending) that no special token may lie across: text that a client wrote and that only
 * spells a control token. */
struct tok_cuts {
    const size_t *at;
    size_t n;
};
int tok_encode_cuts(const struct tokenizer *t, struct view text, unsigned flags,
                    struct tok_cuts cuts, struct tok_ids *out);

int32_t tok_n_vocab(const struct tokenizer *t);
/* Bytes that the id stands for in running text (may be part of a character; leading-space marks
 * resolved to spaces). Empty for ids outside the vocabulary, and for control tokens unless `special`. */
struct view tok_bytes(const struct tokenizer *t, int32_t id, bool special);
/* The vocabulary's own entry, e.g. "Ġhello"; empty outside it. */
struct view tok_entry(const struct tokenizer *t, int32_t id);
bool tok_is_control(const struct tokenizer *t, int32_t id); /* special, not shown in answers */
/* Id of an exact vocabulary entry or special token text, or -1. */
int32_t tok_find(const struct tokenizer *t, const char *entry, size_t n);

int32_t tok_bos(const struct tokenizer *t); /* -1 = none */
int32_t tok_eos(const struct tokenizer *t);
int32_t tok_unk(const struct tokenizer *t);
bool tok_adds_bos(const struct tokenizer *t);
/* Tokens that end an answer: eos, eot, and entries known to end a turn ("<|im_end|>", "<|eot_id|>",
 * "<end_of_turn>", ...). Owned by the tokenizer. */
const int32_t *tok_stop_ids(const struct tokenizer *t, int *n);

/* All text of ids at once, as the reference's decode(): first-space rules included. */
int tok_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
               struct buf *out);

#endif
