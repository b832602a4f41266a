/* Text encoders of image models, over nn.h. Ids in, hidden states out; a batch is segments of rows, one prompt each, of
 * any lengths. Engine thread only. */
#ifndef ENGINE_IMAGE_ENCODERS_H
#define ENGINE_IMAGE_ENCODERS_H

#include "engine/nn/nn.h"
#include "engine/text/tokenizer.h"

#define ENC_TEXTS 64 /* prompts in one run */

/* One run's input. */
struct enc_batch {
    int n;
    const int32_t *ids;   /* all prompts behind each other */
    const int32_t *start; /* [n + 1] */
};

/* ---- CLIP and OpenCLIP text transformers (Radford et al. 2021; Cherti et al. 2023); transformers' CLIPTextModel and
 * CLIPTextModelWithProjection ---- */
struct clip;
/* skip: the fewest layers from the end that any run will leave out. Those are not even loaded, so with skip > 0 there
 * is no pooled output. */
int clip_open(struct clip **out, struct nn_weights *w, struct comp *c, int skip, struct err *e);
void clip_close(struct clip *m);           /* NULL is fine; the weights are nn_weights' */
int clip_dim(const struct clip *m);        /* hidden size */
int clip_positions(const struct clip *m);  /* 77 */
int clip_projection(const struct clip *m); /* 0: none */
/* states [rows, dim] (host): hidden layer `skip` from the end: 0 = the last with the final norm, 1 = hidden_states[-2]
 * without it (penultimate), ... `final_norm` adds the norm to a skipped one too (SD 2.x). pooled (may be NULL)
 * [n, projection or dim]: final norm of the row at[i] (counted in its prompt), projected where there is a projection. */
struct clip_out {
    int skip;
    bool final_norm;
    float *states;
    const int32_t *at;
    float *pooled;
};
void clip_run(struct clip *m, struct nn *n, const struct enc_batch *b, const struct clip_out *o);
/* Row of the end-of-text token as transformers pools it (first eos_token_id; the largest id in old configurations). */
int clip_eos_at(const struct clip *m, const int32_t *ids, int n);

/* ---- T5 encoder (Raffel et al. 2020), gated GELU or ReLU ---- */
struct t5;
int t5_open(struct t5 **out, struct nn_weights *w, struct comp *c, struct err *e);
void t5_close(struct t5 *m);
int t5_dim(const struct t5 *m);
int64_t t5_vocab(const struct t5 *m);
void t5_run(struct t5 *m, struct nn *n, const struct enc_batch *b, float *states);

/* ---- decoder-only language models as encoders: Qwen2.5(-VL, text side), Qwen3, Llama, Mistral; safetensors or GGUF
 * names; "is_causal": false lets every token see all of its prompt ---- */
struct lm_enc;
int lm_enc_open(struct lm_enc **out, struct nn_weights *w, struct comp *c, int skip,
                struct err *e); /* skip as in clip_open */
void lm_enc_close(struct lm_enc *m);
int lm_enc_dim(const struct lm_enc *m);
int lm_enc_len_max(const struct lm_enc *m); /* tokens of the longest prompt */
int64_t lm_enc_vocab(const struct lm_enc *m);
/* hidden_states[-1 - skip] of transformers: 0 = after the last layer and the final norm, 1 = before the last layer. */
void lm_enc_run(struct lm_enc *m, struct nn *n, const struct enc_batch *b, int skip, float *states);

/* ---- their tokenizers: from the component's folder: tokenizer.json, else vocab.json + merges.txt (CLIP,
 * Qwen2), else spiece.model or tokenizer.model (T5); of a component without a folder from the GGUF file of its map, which
 * must outlive it, or, a "CLIPTokenizer", the published list. ERR_NOTFOUND says what was looked for and where. ---- */
int enc_tokenizer_open(struct tokenizer **out, const struct comp *c, struct err *e);
/* Id of the padding token that tokenizer_config.json or special_tokens_map.json of the folder name; -1: neither. */
int32_t enc_pad_id(const struct tokenizer *t, const struct comp *c);
/* T5's: ids of the text and the end token, cut and padded (<pad>, else 0) to `len`. Otherwise as below. */
int enc_t5_ids(const struct tokenizer *t, const char *text, int len, int32_t *ids, int *n_real);
/* CLIP's: ids of the text between start and end, cut and padded to `len`; *n_real = tokens before padding. pad -1: the
 * end token. Returns 0 or ERR_*. */
int enc_clip_ids(const struct tokenizer *t, const char *text, int len, int32_t pad, int32_t *ids,
                 int *n_real);

#endif
