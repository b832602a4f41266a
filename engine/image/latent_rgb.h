/* Linear views of latents as colours, for previews: rows of three factors by channel, the last row the bias; sums are
 * in 0..1. Constants; any thread. */
#ifndef ENGINE_IMAGE_LATENT_RGB_H
#define ENGINE_IMAGE_LATENT_RGB_H

extern const float latent_rgb_flux[17][3]; /* FLUX.1's autoencoder: FLUX.1, Z-Image */
extern const float latent_rgb_wan[17][3];  /* Wan 2.1's: Wan, Qwen-Image */
extern const float latent_rgb_sd3[17][3];  /* Stable Diffusion 3's */
extern const float latent_rgb_sd1[5][3];   /* Stable Diffusion 1's and 2's */
extern const float latent_rgb_sdxl[5][3];  /* SDXL's */
extern const float latent_rgb_tiny[5][3];  /* models/tiny-t2i's */

#endif
