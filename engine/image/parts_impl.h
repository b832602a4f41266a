/* Private to engine/image/files*.c: what a file of tensors holds, judged by their names. */
#ifndef ENGINE_IMAGE_PARTS_IMPL_H
#define ENGINE_IMAGE_PARTS_IMPL_H

#include "engine/base/buf.h"
#include "engine/image/files_impl.h"
#include "engine/image/names_impl.h"

enum part_kind {
    PART_UNET,   /* original names; those of diffusers end in _D */
    PART_UNET_D, /* (a file that a folder's component was taken from) */
    PART_FLUX,
    PART_FLUX_D,
    PART_SD3,
    PART_SD3_D,
    PART_QWEN,
    PART_ZIMAGE,
    PART_ZIMAGE_D,
    PART_OTHER, /* a denoiser of a family that is not served; part.what names it */
    PART_VAE,
    PART_VAE_D,
    PART_WAN,
    PART_WAN_D,
    PART_CLIP, /* transformers' names */
    PART_OPENCLIP,
    PART_T5,
    PART_T5_GGUF,
    PART_LM,
    PART_LM_GGUF,
    PART_N_KIND
};
#define PART_BIT(k) (1u << (k))
#define PART_DENOISER                                                                              \
    (PART_BIT(PART_UNET) | PART_BIT(PART_UNET_D) | PART_BIT(PART_FLUX) | PART_BIT(PART_FLUX_D) |   \
     PART_BIT(PART_SD3) | PART_BIT(PART_SD3_D) | PART_BIT(PART_QWEN) | PART_BIT(PART_ZIMAGE) |     \
     PART_BIT(PART_ZIMAGE_D) | PART_BIT(PART_OTHER))

#define PARTS_MAX   32
#define PART_PREFIX 96

struct part {
    enum part_kind kind;
    const char *what;   /* for a person */
    struct source *src; /* not owned */
    char prefix[PART_PREFIX];
    names_find_fn *find; /* from diffusers' and transformers' names; NULL: they are the file's */
    int arg;             /* of find */
    bool extra;          /* of a file that was found beside the one that was asked for */
};
struct parts {
    struct part at[PARTS_MAX];
    int n;
};

/* Add what src holds. ERR_LIMIT. */
int parts_find(struct parts *p, struct source *src, bool extra, struct err *e);
/* A map of the part's tensors under the names of diffusers and transformers; points into p. */
struct source_map part_map(const struct part *p);
/* What is looked for to find a part of this kind: the end of a tensor's name. */
const char *part_marker(enum part_kind k);
/* Width of a text encoder's states; 0 when the file does not say. */
int64_t part_width(const struct part *p);

/* Configurations of a part as JSON text, sizes read off its tensors (parts_config*.c). ERR_UNSUPPORTED names what does
 * not fit; the buffer's `failed` is the caller's to check. */
/* Width of the text that a UNet reads; 0: not found. */
int64_t part_context(const struct part *p);
int part_config_unet(const struct part *p, bool v_prediction, struct buf *b, struct err *e);
int part_config_vae(const struct part *p, double scaling, double shift, struct buf *b,
                    struct err *e);
/* projection: transformers' CLIPTextModelWithProjection. */
int part_config_clip(const struct part *p, bool projection, struct buf *b, struct err *e);
int part_config_t5(const struct part *p, struct buf *b, struct err *e);
int part_config_lm(const struct part *p, struct buf *b, struct err *e);
int part_config_flux(const struct part *p, struct buf *b, struct err *e);
int part_config_sd3(const struct part *p, struct buf *b, struct err *e);
int part_config_qwen(const struct part *p, struct buf *b, struct err *e);
int part_config_zimage(const struct part *p, struct buf *b, struct err *e);

#endif
