/* Which layers keep keys and values, or a state, and where. */
#include "engine/models/model.h"

static bool attends(const struct layer_hp *l)
{
    return l->mixer == MIX_ATTN || l->mixer == MIX_MLA || l->beside == MIX_ATTN;
}

static bool keeps_kv(const struct layer_hp *l)
{
    return attends(l) && l->share == 0;
}

static bool keeps_state(const struct layer_hp *l)
{
    return l->mixer > MIX_MLA || l->beside > MIX_MLA;
}

void model_layers_set(struct model_hp *hp)
{
    int32_t kv[MODEL_POOLS] = {0}, state = 0;
    for (int i = 0; i < hp->n_layer; i++) {
        struct layer_hp *l = &hp->layer[i];
        l->kv = keeps_kv(l) ? kv[l->other_heads]++ : attends(l) ? hp->layer[l->share - 1].kv : -1;
        l->state = keeps_state(l) ? state++ : -1;
    }
}

int model_state_layers(const struct model_hp *hp)
{
    int n = 0;
    for (int i = 0; i < hp->n_layer; i++)
        n += keeps_state(&hp->layer[i]);
    return n;
}

void model_kv_describe(const struct model_hp *hp, struct kv_desc out[MODEL_POOLS])
{
    out[0] = (struct kv_desc){
        .n_kv_head = hp->n_kv_head, .head_dim = hp->head_dim, .k_only = hp->kv_rank > 0};
    out[1] = (struct kv_desc){.n_kv_head = hp->other.n_kv_head, .head_dim = hp->other.head_dim};
    for (int i = 0; i < hp->n_layer; i++)
        if (keeps_kv(&hp->layer[i]))
            out[hp->layer[i].other_heads].n_layer++;
    if (hp->index.n_head > 0) /* keys of the index, by the layers of the first */
        out[1] = (struct kv_desc){
            .n_layer = out[0].n_layer, .n_kv_head = 1, .head_dim = hp->index.dim, .k_only = true};
}
