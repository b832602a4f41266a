/* A component of a model that is not a language decoder: its configuration, and its tensors under the names that its
 * layers are loaded by. image/, encode/ and audio/ make them from the files that they know. */
#ifndef ENGINE_NN_COMP_H
#define ENGINE_NN_COMP_H

#include "engine/load/config.h"
#include "engine/load/source.h"

struct comp {
    char name[32];         /* "unet", "transformer", "vae", "text_encoder", "text_encoder_2" */
    char cls[64];          /* "UNet2DConditionModel"; "" when the family says it */
    struct config *cfg;    /* never NULL */
    struct source_map map; /* map.src NULL: a component without weights (tokenizer, scheduler) */
    /* Folder of its own files (tokenizer), or "". A tokenizer without one lies in the GGUF file of map.src; without that,
     * as a "CLIPTokenizer", in this program. */
    char dir[512];
    char prefix[96]; /* what map.prefix may point to */
    int arg;         /* what map.arg may point to */
};

#endif
