/* Private to engine/image/names*.c and files*.c: how checkpoints of other programs name what diffusers and transformers
 * name otherwise. A table row says where a wanted tensor lies; patterns hold '#' for a decimal number and, at their end,
 * '*' for whatever follows. Any thread; no state. */
#ifndef ENGINE_IMAGE_NAMES_IMPL_H
#define ENGINE_IMAGE_NAMES_IMPL_H

#include "engine/load/source.h"

#define NAMES_CAPS 3

struct names_cap {
    int n[NAMES_CAPS]; /* numbers in order */
    const char *rest;  /* what '*' stands for */
};
/* Rows of the same `want` behind each other are the parts of one tensor. */
struct names_row {
    const char *want, *file;
    int part, n_part, n_take; /* as in source_slice; n_part 0: all of it */
};

bool names_match(const char *pattern, const char *want, struct names_cap *c);
/* The slices of the first row that matches and of those behind it with the same pattern; 0 when none does, -1 when a
 * name is too long. `at` is put before every name. */
int names_rows(const struct names_row *row, size_t n, const char *want, const char *at,
               struct source_slice *slice);
/* One whole tensor as the only slice: 1, or -1 when its name is too long. */
int names_one(struct source_slice *slice, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether the map has the tensor fmt, ... (all its slices); its shape, padded with zeros, if dim is not NULL. */
bool names_has(const struct source_map *m, int64_t dim[SOURCE_DIMS], const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* How many there are of the names fmt, ... with 0, 1, 2, ... for the "#" in it, up to max. */
int names_count(const struct source_map *m, int max, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* find functions of source_map. `arg` is an int where said. */
typedef int names_find_fn(const struct source_map *m, const char *want, struct source_slice *slice);
names_find_fn names_unet; /* original Stable Diffusion UNet; arg: res blocks a level */
names_find_fn names_vae;  /* original AutoencoderKL; arg: levels */
names_find_fn
    names_vae_wan; /* original Wan / Qwen-Image autoencoder; arg: res blocks a level of the encoder */
names_find_fn
    names_clip; /* transformers, with "text_model." before it or not; arg: whether the file has it */
names_find_fn names_openclip; /* fused attention */
names_find_fn names_flux;     /* arg: pieces of linear1 that are as large as q */
names_find_fn names_sd3;      /* arg: blocks */
names_find_fn names_zimage;   /* fused attention */
names_find_fn names_t5_gguf;
names_find_fn names_lm_gguf; /* Qwen2.5, Qwen3 */

#endif
