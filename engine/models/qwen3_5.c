/* Qwen3.5, dense, text: see qwen3_next.c. */
#include "engine/models/qwen3_next.h"

static const struct weight_row weights[] = {
    ROWS_QWEN3_NEXT,
    ROWS_QWEN3_5_IN,
    ROW_GATE_UP,
    ROW_DOWN,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    hp->state.cycle = !ckpt_is_hf(c);
    return qwen3_next_hparams(hp, c, e);
}

/* Pictures are refused by name before; draft layers (multi-token prediction) are not used. */
static const char *const ignore[] = {"model.visual.", "mtp.", NULL};

const struct model_arch model_qwen3_5 = {
    .name = "qwen35",
    .hf = "Qwen3_5ForCausalLM|Qwen3_5ForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
