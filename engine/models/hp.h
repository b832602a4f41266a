/* Hyper-parameters of a model; hp_read.h reads them from a file's metadata. Engine thread (plans: any). */
#ifndef ENGINE_MODELS_HP_H
#define ENGINE_MODELS_HP_H

#include "engine/load/ckpt.h"
#include "engine/ops.h"

#define MODEL_LAYERS_MAX 512
#define MODEL_HEAD_MAX   1024 /* values of a head */
#define MODEL_POOLS      2    /* of KV: see model_kv_describe */

enum model_dim { /* indices into model_hp.dim */
                 DIM_EMBD,
                 DIM_VOCAB,
                 DIM_FF,
                 DIM_Q,     /* n_head * head_dim */
                 DIM_KV,    /* n_kv_head * head_dim */
                 DIM_HEAD,  /* head_dim */
                 DIM_ROPE,  /* n_rot / 2 */
                 DIM_QKV,   /* q, k and v in one tensor */
                 DIM_FF2,   /* gate and up in one tensor */
                 DIM_CTX,   /* learned positions */
                 DIM_HEADS, /* n_head */
                 /* mixture of experts (moe.c) */
                 DIM_EXPERTS,
                 DIM_EXPERT_FF,
                 DIM_EXPERT_FF2,
                 DIM_EXPERTS_FF, /* n_expert * n_ff_expert: biases of all experts */
                 DIM_EXPERTS_FF2,
                 DIM_EXPERTS_EMBD,
                 DIM_SHARED_FF,
                 DIM_SHARED_FF2,
                 DIM_ONE,
                 /* latent attention (mla.c), recurrent layers (state.c): named by their files */
                 DIM_Q_RANK, /* of queries; 0: no low-rank product */
                 DIM_Q_MLA,  /* n_head * (n_nope + n_rope) */
                 DIM_RANK,   /* of the latent vector */
                 DIM_KV_A,   /* rank + n_rope */
                 DIM_NOPE,   /* of a head: not rotated */
                 DIM_V_HEAD,
                 DIM_KV_B,    /* a head's rows in kv_b: n_nope + v_head */
                 DIM_Q2,      /* q and its output gate */
                 DIM_S_IN,    /* outputs of the first product */
                 DIM_S_INNER, /* channels of the scan; values of all heads */
                 DIM_S_CONV,  /* channels of the convolution */
                 DIM_S_TAPS,  /* ... times its length */
                 DIM_S_X,     /* dt, B and C of mamba 1 */
                 DIM_S_RANK,  /* of dt */
                 DIM_S_STATE,
                 DIM_S_A, /* values of A */
                 DIM_S_HEADS,
                 DIM_S_KEYS,  /* keys of all key heads */
                 DIM_S_VALUE, /* values of a head */
                 DIM_S_BA,
                 DIM_S_TAPS3, /* a convolution's of three */
                 /* layers whose heads or MLP have other sizes (layer_hp.other_heads, other_ff) */
                 DIM_Q_OTHER,
                 DIM_KV_OTHER,
                 DIM_HEAD_OTHER,
                 DIM_FF_OTHER,
                 DIM_KV_HEADS,
                 DIM_INDEX_Q, /* sparse attention's index */
                 DIM_INDEX_K,
                 DIM_INDEX_HEADS,
                 DIM_PLE,  /* per-layer embeddings (ple.c): of a layer */
                 DIM_PLES, /* ... of all layers */
                 DIM_COUNT
};

enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_YARN,
    ROPE_SCALING_LLAMA3,
    ROPE_SCALING_LONG,        /* factors of the file by context (Ding et al. 2024) */
    ROPE_SCALING_DYNAMIC,     /* NTK by length */
    ROPE_SCALING_PROPORTIONAL /* the first pairs of whole heads turn, see n_turn */
};

/* What stands between the two norms of a layer, and behind the second. */
enum mixer_kind {
    MIX_NONE,
    MIX_ATTN,
    MIX_MLA,    /* multi-head latent attention */
    MIX_MAMBA,  /* selective state space, a matrix A a channel */
    MIX_MAMBA2, /* ... a number a head */
    MIX_DELTA,  /* gated delta net; also with a gate a channel */
    MIX_CONV,   /* gated short convolution */
    MIX_RWKV,
    MIX_COUNT
};
enum ffn_kind {
    FFN_NONE,
    FFN_DENSE,
    FFN_MOE,
    FFN_BOTH, /* a dense MLP and experts, each behind norms of its own, added */
    FFN_RWKV,
    FFN_COUNT
};
/* Bits of weight_row.kind. */
#define KIND_MIX(m) (1u << (m))
#define KIND_FFN(f) (1u << (MIX_COUNT + (f)))
#define KIND_USER(i)                                                                               \
    (1u << (MIX_COUNT + FFN_COUNT + (i))) /* layer_hp.user: as the architecture likes */

struct layer_hp {
    uint8_t mixer, ffn;
    uint8_t beside; /* a second mixer on the same input, its output added (MIX_NONE: none) */
    uint8_t user;   /* bits: KIND_USER */
    bool nope;      /* q and k are not rotated */
    bool local;     /* frequencies of rope_base_local */
    bool slides;    /* has the model's sliding window (model_hp_slides) */
    bool temper;    /* queries are multiplied by model_hp.temper */
    bool qk_unit;   /* q and k are normed by head, without weights */
    bool other_heads,
        other_ff;   /* sizes of model_hp.other; such heads have a KV pool of their own */
    int32_t window; /* see ops_first_seen; 0 = none */
    int32_t
        share; /* number + 1 of the layer whose keys and values it reads, having none; 0: its own */
    int32_t kv;    /* number in its KV pool; -1 = none; set by model_layers_set */
    int32_t state; /* number in the state pool; -1 = none; set by model_layers_set */
};

enum norm_kind { NORM_RMS, NORM_LAYER };

/* Mixture of experts (Shazeer et al. 2017). */
struct moe_hp {
    int32_t n_expert, n_used, n_ff, n_ff_shared; /* 0 experts: none in the model */
    enum route_score score;
    int32_t n_group, n_group_used; /* group-limited routing (DeepSeek-AI 2024); 0 = off */
    bool group_top2;               /* a group's score: the sum of its two best, else its best */
    bool renorm;                   /* the chosen weights are divided by their sum */
    float scale;                   /* then multiplied; 0 = 1 */
    bool in_scale;                 /* the weight multiplies an expert's input, not its output */
    enum act_kind act;
    bool single;     /* experts without a gate: one product, act, another product */
    float act_limit; /* ACT_SWIGLU_OAI: clamp */
};

/* Layers with a recurrent state (ops_state.h): sizes by the kinds that use them. */
struct state_hp {
    int32_t n_conv;            /* length of the convolution */
    int32_t d_inner, n_state;  /* mamba: channels, values a channel's state has */
    int32_t n_rank;            /* mamba 1: width of dt before its product */
    int32_t n_head, head_dim;  /* mamba 2, delta: heads of values */
    int32_t n_group;           /* mamba 2: of B and C */
    int32_t n_key_head, d_key; /* delta */
    float dt_min, dt_max;
    bool inner_norm;     /* mamba 1: dt, B and C are normed (Falcon: without weights) */
    bool norm_then_gate; /* mamba 2: of what the scan gives */
    bool cycle;          /* delta: heads of keys repeat as a whole (see op_state_delta) */
    float norm_eps;
    int64_t n; /* floats of a layer's state; set by model_state_set */
};

/* Sizes of layers unlike the others. */
struct other_hp {
    int32_t n_kv_head, head_dim, n_ff;
};

/* Factors of products (maximal update parametrisation; Yang et al. 2022); 0 = 1. */
struct mup_hp {
    float qkv, k, attn_out; /* k's beside qkv's */
    float ssm[5], ssm_out;  /* of the gate, x, B, C, dt that mamba 2 begins with */
    float gate, down;       /* of a dense MLP */
};

/* Values come from the file's metadata; an architecture sets its defaults before they are read. */
struct model_hp {
    int32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_rot;
    int32_t n_ctx;     /* that the model was made for */
    int32_t n_ctx_run; /* longest sequence that is served; 0 = n_ctx */
    int32_t n_vocab;
    float norm_eps;
    enum norm_kind norm;
    bool norm_bare; /* norms without weights: an empty slot is a norm all the same */
    enum rope_style rope_style;
    enum act_kind act;
    bool attn_gate; /* rows of qkv begin with DIM_Q gates: the output times their sigmoid */
    bool bare;      /* set before model_hp_common: no attention and no MLP; keys may be absent */
    bool
        parallel; /* attention and MLP both read the layer's input; ffn_norm empty: the same norm */
    float rope_base, rope_factor;
    enum rope_scaling rope_scaling;
    int32_t rope_ctx_orig;                /* YaRN, llama 3, long: context before scaling, tokens */
    float rope_beta_fast, rope_beta_slow; /* YaRN: rotations at the ends of the ramp */
    float rope_low_freq,
        rope_high_freq; /* llama 3: ends of the ramp, in waves of the original context */
    float rope_attn_factor, rope_log_multiplier; /* YaRN; 0 = not given */
    float rope_mscale, rope_mscale_all;          /* YaRN of DeepSeek; 0 = not given */
    bool rope_exact; /* YaRN: ends of the ramp are not rounded to whole dimensions */
    float rope_long[MODEL_HEAD_MAX / 2]; /* ROPE_SCALING_LONG: divide the frequencies when longer */
    float rope_short[MODEL_HEAD_MAX / 2]; /* sequences than rope_ctx_orig are served, or not */
    float attn_factor;                    /* derived: multiplies cos and sin */
    float attn_scale;                     /* derived: of q.k; 1 / sqrt(head_dim) */
    float attn_softcap, logit_softcap;    /* 0 = none */
    float embd_scale;                     /* of embeddings */
    float residual_scale;                 /* of what a block adds; 1 */
    float logit_scale;                    /* 1 */
    int32_t window;                       /* sliding window of local layers, tokens; 0 = none */
    float alibi_max;                      /* ALiBi: the slopes' base is 2^-alibi_max; 0 = none */
    float alibi_scale;                    /* of the slopes; 0 = 1 */
    float rope_base_local;                /* of local layers, unscaled; 0 = as the others */
    int32_t n_rot_local;                  /* of local layers; 0 = n_rot */
    int32_t n_turn; /* pairs of n_rot / 2 that turn, the others stand still; 0 = all */
    float temper;   /* see op_scale; 0 = none */
    int32_t temper_every, temper_from;
    float clip_qkv; /* q, k and v stay in [-clip, clip]; 0 = none */
    bool v_unit;    /* values are normed by head, without weights */
    struct other_hp other;
    int32_t n_ple;    /* per-layer embeddings, values a layer (ple.c); 0 = none */
    bool layer_scale; /* a layer's output is multiplied by a number of the file (ple.c) */
    struct moe_hp moe;
    struct state_hp state;
    struct mup_hp mup;
    int32_t q_rank, kv_rank, n_nope, v_head; /* latent attention (mla.c); 0: none in the model */
    struct {                                 /* sparse attention's index (mla.c); n_head 0: none */
        int32_t n_head, dim, n_top;
    } index;
    bool own_heads;         /* the architecture checks the sizes of keys and values */
    int64_t dim[DIM_COUNT]; /* derived */
    struct layer_hp
        layer[MODEL_LAYERS_MAX]; /* model_hp_common: attention and a dense MLP in each */
};

#endif
