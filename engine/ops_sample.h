/* Choosing the next token: the arguments of op_sample. Included by ops.h only. */
#ifndef ENGINE_OPS_SAMPLE_H
#define ENGINE_OPS_SAMPLE_H

#define SAMPLE_TOP_MAX 20
struct token_bias {
    int32_t token;
    float bias;
};
/* How to choose the next token of one row, after Keskar et al. 2019 (repetition), OpenAI's
 * presence / frequency definition (output tokens only), min-p (Nguyen et al. 2024). Order: mask, ban, bias,
 * penalties, temperature, top_k, min_p, top_p. Everything else follows from (seed, position). */
struct sample_row {
    float temperature; /* <= 0: greedy (lowest id wins ties) */
    float top_p, min_p;
    int32_t top_k;                                                 /* 0 = all */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 = off */
    uint64_t seed;
    uint32_t position;   /* of the token to be chosen, in its sequence */
    const int32_t *hist; /* known tokens: n_prompt of the prompt, then output; [n_hist] */
    int n_prompt, n_hist;
    const struct token_bias *bias;
    int n_bias;
    const int32_t *ban; /* tokens that must not come (stop tokens before min_tokens) */
    int n_ban;
    const uint32_t *mask; /* bitmap of allowed tokens, bit id%32 of word id/32; NULL = all */
    int32_t target;       /* >= 0: choose this token (log-probabilities of given text); -1 */
    int n_top;            /* -1: no log-probabilities; 0..20: how many of the most likely */
};
struct sample_out {
    int32_t token;
    float logprob; /* of the token under the raw distribution: log softmax(logits) */
    int32_t rank;  /* 1 = most likely */
    int n_top;
    int32_t top_id[SAMPLE_TOP_MAX]; /* most likely first; ties by lower id */
    float top_logprob[SAMPLE_TOP_MAX];
    bool bad; /* the row's logits hold NaN: token is not to be used */
};
/* logits f32 [n, n_vocab]; may be overwritten. `rows` and what it points to may be reused when the call returns;
 * `out` is filled when the next `sync` or `sample_wait` has returned. */
struct op_sample {
    struct tensor logits;
    const struct sample_row *rows; /* [n] host memory */
    struct sample_out *out;        /* [n] host memory */
};

#endif
