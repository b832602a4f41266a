/* Tables that read a model's hyper-parameters from a file's metadata, and what follows from them. Engine thread (plans: any). */
#ifndef ENGINE_MODELS_HP_READ_H
#define ENGINE_MODELS_HP_READ_H

#include "engine/models/hp.h"

enum hp_type { HP_INT, HP_FLOAT, HP_BOOL };
struct hp_row {
    const char *key;  /* GGUF: after "ARCH."; NULL: not in such files */
    const char *json; /* config.json, see ckpt.h; NULL: not there */
    enum hp_type type;
    bool optional;
    size_t field;    /* offset in struct model_hp; int32_t, float or bool */
    double min, max; /* inclusive */
};
/* Values that every decoder-only transformer has: sizes, heads, norm, rope; then the dims, and a layer list of
 * attention and dense MLPs with windows by window and window_period. */
int model_hp_common(struct model_hp *hp, struct ckpt *c, struct err *e);
int model_hp_read(struct model_hp *hp, struct ckpt *c, const struct hp_row *row, int n,
                  struct err *e);
/* The name of an activation ("silu", "gelu_pytorch_tanh") at a config.json path; ERR_UNSUPPORTED names it. Absent, or
 * a GGUF file: *out stays. */
int model_hp_act(struct ckpt *c, const char *json, enum act_kind *out, struct err *e);
/* layer_types of config.json: fn for every layer with its text ("sliding_attention"). ERR_NOTFOUND: no such list. */
int model_hp_layer_types(struct model_hp *hp, struct ckpt *c, const char *json,
                         bool (*fn)(struct layer_hp *l, struct view type), struct err *e);
/* Windows of layers: those that layer_types calls "sliding_attention" have hp->window, those of "full_attention" none, and
 * layer_hp.slides says so. Without that list all but every full_every-th slide; 0: as slides is set before. */
int model_hp_slides(struct model_hp *hp, struct ckpt *c, int64_t full_every, struct err *e);
/* Layers without KV heads by a GGUF file's list of head_count_kv get mixer `other`. (state_hp.c) */
int model_hp_attends(struct model_hp *hp, struct ckpt *c, enum mixer_kind other, struct err *e);
/* Numbers layers in the KV pools and the state pool. After hparams. (pools.c) */
void model_layers_set(struct model_hp *hp);
/* Shapes of the KV pools, all but dtype and n_block; n_layer 0: no such pool. 0: most layers'; 1: other_heads'. */
void model_kv_describe(const struct model_hp *hp, struct kv_desc out[MODEL_POOLS]);
int model_state_layers(const struct model_hp *hp);
/* Floats of a layer's state, and the dims that follow from hp->state; after the layer list. (state.c) */
void model_state_set(struct model_hp *hp);
#define MODEL_CTX_FREE (1 << 20) /* of a model that has no longest context */

#endif
