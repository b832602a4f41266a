/* The registry of architectures: models.def. */
#include "engine/models/model.h"

#include <string.h>

#define MODEL(name) extern const struct model_arch model_##name;
#include "engine/models/models.def"
#undef MODEL

#define MODEL(name) &model_##name,
static const struct model_arch *const archs[] = {
#include "engine/models/models.def"
};
#undef MODEL

/* One of the names in a list with '|' between. */
static bool listed(const char *list, struct view name)
{
    for (const char *p = list; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (strcspn(p, "|") == name.len && !memcmp(p, name.p, name.len))
            return true;
    return false;
}

const struct model_arch *model_arch_find(struct view name, bool hf)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (listed(hf ? archs[i]->hf : archs[i]->name, name))
            return archs[i];
    return NULL;
}
