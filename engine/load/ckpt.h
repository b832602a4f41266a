/* A language model's files under one view: a GGUF file, or a Hugging Face folder (config.json and safetensors). A value
 * has two names, the GGUF key (after "ARCH.") and the path in config.json; a tensor too. An architecture's tables give
 * both, so that nothing else asks which kind of file it was. Read-only after open but for the notes of config.h: one
 * thread. */
#ifndef ENGINE_LOAD_CKPT_H
#define ENGINE_LOAD_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/quant/quant.h"

struct ckpt;
struct config;
struct gguf;
struct hfq_tensor;

struct ckpt_tensor {
    const char *name; /* in the file; NUL-terminated; lives as long as the checkpoint */
    enum quant_fmt fmt;
    int n_dim;        /* 0..4 */
    int64_t dim[4];   /* outermost first, as PyTorch has it; unused are 1 */
    const void *data; /* any alignment */
    size_t bytes;
    size_t index; /* of the file's tensors, < ckpt_n_tensor */
    const struct hfq_tensor
        *hfq; /* a folder's quantised matrix, whose rows in fmt hfq_rows makes; else NULL */
};

/* path: a .gguf file, or a folder with config.json. ERR_UNSUPPORTED says what else it is; other errors name file, key or
 * tensor. */
int ckpt_open(struct ckpt **out, const char *path, struct err *e);
void ckpt_close(struct ckpt *c); /* NULL is fine */

/* general.architecture, or architectures[0] ("LlamaForCausalLM"). ERR_NOTFOUND, ERR_INVAL. */
int ckpt_arch(struct ckpt *c, struct view *out, struct err *e);
/* What GGUF keys begin with ("llama"); to be set before a key is asked for. Static storage. */
void ckpt_prefix_set(struct ckpt *c, const char *arch);
/* Exactly one of the two is there. */
const struct gguf *ckpt_gguf(const struct ckpt *c);
struct config *ckpt_config(const struct ckpt *c);
static inline bool ckpt_is_hf(const struct ckpt *c)
{
    return ckpt_config(c) != NULL;
}

/* A value by both names; either may be NULL (that kind of file has none: ERR_NOTFOUND). `json` may list paths with '|'
 * between ("rope_theta|rope_parameters.rope_theta"): the first that is there counts; each is looked for at the top and
 * in text_config. Returns 0, ERR_NOTFOUND (absent or null, *out untouched), ERR_INVAL (another type; text names it). */
int ckpt_num(struct ckpt *c, const char *key, const char *json, double *out, struct err *e);
int ckpt_int(struct ckpt *c, const char *key, const char *json, int64_t *out, struct err *e);
int ckpt_bool(struct ckpt *c, const char *key, const char *json, bool *out, struct err *e);
int ckpt_str(struct ckpt *c, const char *key, const char *json, struct view *out, struct err *e);
/* Elements of a list: 0 when absent; a bare value counts as a list of one. */
int ckpt_len(struct ckpt *c, const char *key, const char *json);
/* Element i: a number (true and false count as 1 and 0), or a text of a JSON list. */
int ckpt_num_at(struct ckpt *c, const char *key, const char *json, int i, double *out,
                struct err *e);
int ckpt_str_at(struct ckpt *c, const char *json, int i, struct view *out, struct err *e);
/* Whether a folder's value (i < 0), or its element i, is a number; for values that may be a word, too. */
bool ckpt_is_num(const struct ckpt *c, const char *json, int i);
/* How a message should call the value: "llama.block_count", "config.json: num_hidden_layers"; in dst [n]. */
const char *ckpt_key_text(const struct ckpt *c, const char *key, const char *json, char *dst,
                          size_t n);

/* Values of a folder that have a GGUF key, in the order in which they were asked for: what a GGUF file of the model has to
 * say. */
enum ckpt_note_type { CKPT_NOTE_NUM, CKPT_NOTE_INT, CKPT_NOTE_BOOL, CKPT_NOTE_ROW };
#define CKPT_NOTES_MAX 192
struct ckpt_notes {
    int n;
    struct ckpt_note {
        const char *key; /* after "ARCH."; static */
        enum ckpt_note_type type;
        double v;
        bool given;      /* CKPT_NOTE_ROW: the folder has it, v */
        const void *row; /* CKPT_NOTE_ROW: the table's row, whose field has what became of it */
    } at[CKPT_NOTES_MAX];
};
/* From here on values of a folder are noted, each key once; `notes` must stay while values are asked for. */
void ckpt_notes_set(struct ckpt *c, struct ckpt_notes *notes);
/* A row of a table, whether or not the folder has its value. */
void ckpt_note_row(struct ckpt *c, const char *key, const void *row);

/* A tensor by its name in this kind of file. For a folder the name as in a causal language model's
 * ("model.layers.0...", "lm_head.weight"); where the file has no such name, the same under what wraps a text model
 * ("model.language_model.", "language_model.model.") or without "model.". ERR_NOTFOUND; ERR_UNSUPPORTED: not readable. */
int ckpt_tensor(const struct ckpt *c, const char *name, struct ckpt_tensor *out, struct err *e);
bool ckpt_has(const struct ckpt *c, const char *name);
/* Tensor i is a part of a quantised matrix, or tells about one. */
bool ckpt_is_part(const struct ckpt *c, size_t i);
size_t ckpt_n_tensor(const struct ckpt *c);
const char *ckpt_tensor_name(const struct ckpt *c, size_t i, size_t *len);
size_t ckpt_file_bytes(const struct ckpt *c); /* of all its files */
/* 0, or ERR_IO when a file is no longer what it was at open. */
int ckpt_check_files(const struct ckpt *c, struct err *e);

#endif
