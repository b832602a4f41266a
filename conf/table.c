/* The option table as data: names, look-up, nearest name. Read-only; any thread. */
#include <stddef.h>

#include "conf/conf_impl.h"

#define OPT_GROUP(name) {.group = (name)},
#define OPT(id_, type_, def_, range_, help_)                                                       \
    {NULL, #id_, CONF_##type_, def_, range_, help_, offsetof(struct conf, id_)},
const struct conf_option conf__options[] = {
#include "conf/options.def"
};
const int conf__n_options = (int)(sizeof(conf__options) / sizeof(conf__options[0]));
_Static_assert(sizeof(conf__options) / sizeof(conf__options[0]) <= CONF_MAX_OPTIONS,
               "raise CONF_MAX_OPTIONS");

static char dash(char c)
{
    return c == '_' ? '-' : c;
}

const char *conf__name(const struct conf_option *o, char *dst, size_t n)
{
    size_t i = 0;
    for (; o->id[i] && i + 1 < n; i++)
        dst[i] = dash(o->id[i]);
    dst[i] = 0;
    return dst;
}

int conf__find(const char *name, size_t len)
{
    for (int i = 0; i < conf__n_options; i++) {
        const char *id = conf__options[i].id;
        if (!id || strlen(id) != len)
            continue;
        size_t k = 0;
        while (k < len && dash(name[k]) == dash(id[k]))
            k++;
        if (k == len)
            return i;
    }
    return -1;
}

/* Edit distance (insert, delete, replace) of two names, both under 48 bytes. */
static int distance(const char *a, size_t na, const char *b, size_t nb)
{
    int row[49];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diag = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int cost = diag + (dash(a[i - 1]) != dash(b[j - 1]));
            diag = row[j];
            row[j] = row[j] + 1 < cost ? row[j] + 1 : cost;
            if (row[j - 1] + 1 < row[j])
                row[j] = row[j - 1] + 1;
        }
    }
    return row[nb];
}

const char *conf__nearest(const char *name, size_t len, char *dst, size_t n)
{
    int best = -1, best_d = (int)(len / 2 < 1 ? 1 : len / 2 > 6 ? 6 : len / 2);
    for (int i = 0; len < 48 && i < conf__n_options; i++) {
        const char *id = conf__options[i].id;
        if (!id)
            continue;
        int d = distance(name, len, id, strlen(id));
        if (d < best_d || (d == best_d && best < 0)) {
            best = i;
            best_d = d;
        }
    }
    return best < 0 ? NULL : conf__name(&conf__options[best], dst, n);
}
