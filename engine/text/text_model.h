/* What the front side (loop and pool threads) needs of a model: tokenizer, chat template, names of
 * special tokens, context length. Opens the same file as the engine, on its own mapping, and reads no
 * weights. Read-only after open: any thread. */
#ifndef ENGINE_TEXT_TEXT_MODEL_H
#define ENGINE_TEXT_TEXT_MODEL_H

#include "engine/text/tokenizer.h"

/* Tokens by which a model is asked to fill the hole between two texts; -1: it has none. */
struct text_fim {
    int32_t prefix, suffix; /* before the text ahead of the hole, and behind it; both or neither */
    int32_t middle;         /* what the hole's text follows; -1: nothing does */
    int32_t repo, file;     /* before a repository's name, and a file's */
    int32_t pad;
    bool suffix_first; /* the suffix stands before the prefix */
};

/* Sampling that the model's makers ask for; a negative number where they say nothing. */
struct text_sampling {
    double temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
};

struct text_model {
    struct tokenizer *tok;
    struct text_fim fim;
    struct text_sampling sampling; /* generation_config.json of a folder */
    char *chat_template;                                 /* NULL if the file has none */
    char *bos_token, *eos_token, *unk_token, *pad_token; /* texts for templates; "" when absent */
    int32_t n_ctx_train;                                 /* tokens; 0 if the file does not say */
    char *arch;                                          /* "llama" */
    char *name;                                          /* general.name or "" */
    int64_t n_params;                                    /* sum of tensor elements */
    int64_t file_bytes;
    void *priv; /* the open file */
};

/* path: a .gguf file, or a Hugging Face folder (config.json, tokenizer.json, tokenizer_config.json,
 * generation_config.json, chat_template.jinja). */
int text_model_open(struct text_model **out, const char *path, struct err *e);
void text_model_close(struct text_model *m);

#endif
