/* What a GGUF file says by the values and the order of its weights, where a folder has them plain: Falcon-H1's factors, and
 * the order of Qwen3.5's heads of values. Part of export.c. Any thread. */
#ifndef ENGINE_EXPORT_FORM_H
#define ENGINE_EXPORT_FORM_H

#include "engine/load/gguf.h"
#include "engine/models/hp.h"

struct export_form {
    const struct model_hp *hp; /* of the folder */
    bool scaled;               /* weights hold hp's factors */
    bool cycle;                /* heads of keys repeat as a whole; see state_hp.cycle */
};

/* Whether values of a tensor (by its GGUF name) change, so that its rows must be plain floats. As if `cycle` were set. */
bool export_form_touches(const struct export_form *f, const struct gguf_tensor *t);
/* The folder's row for row r. */
int64_t export_form_row(const struct export_form *f, const struct gguf_tensor *t, int64_t r);
/* Row r, or with `vector` all values, in GGUF's order of rows; v is t's dim[0], or all. tmp: as many. */
void export_form_values(const struct export_form *f, const struct gguf_tensor *t, int64_t r,
                        bool vector, float *v, float *tmp);
/* What hp becomes in such a file. */
void export_form_hp(const struct export_form *f, struct model_hp *hp, const struct model_hp *file);

#endif
