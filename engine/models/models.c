/* The registry of architectures: models.def. */
#include "engine/models/model.h"

#define MODEL(name) extern const struct model_arch model_##name;
#include "engine/models/models.def"
#undef MODEL

#define MODEL(name) &model_##name,
static const struct model_arch *const archs[] = {
#include "engine/models/models.def"
};
#undef MODEL

const struct model_arch *model_arch_find(struct view name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (view_is(name, archs[i]->name))
            return archs[i];
    return NULL;
}

#define MODEL(name) ", " #name
static const char list[] =
#include "engine/models/models.def"
    ;
#undef MODEL

const char *model_arch_list(void)
{
    return list + 2; /* past the first ", " */
}
