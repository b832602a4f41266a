/* A model hub's listing of a repository (JSON) to the files that make up a model. Any thread. */
#ifndef API_HUB_H
#define API_HUB_H

#include <stddef.h>

#include "engine/base/arena.h"
#include "engine/base/err.h"

struct api_hub_files {
    const char *
        *name;  /* relative, checked: no "..", no leading '/' or '.', no control characters */
    int n;      /* 1: a single GGUF file; more: a model folder */
    int n_gguf; /* GGUF files that were there to choose from */
    char revision[65]; /* commit of the listing, or "main" */
};

/* json: {"siblings": [{"rfilename": "..."}, ...], "sha": "..."}. GGUF repositories give one file (Q4_K_M
 * if there, else the first of a list of common types, else the first); others give configuration,
 * tokenizer and safetensors. Names live in `mem`. ERR_PARSE, ERR_NOTFOUND (no model in it), ERR_NOMEM. */
int api_hub_pick(const char *json, size_t n, struct arena *mem, struct api_hub_files *out,
                 struct err *e);

#endif
