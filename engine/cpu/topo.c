/* See topo.h. */
#include "engine/cpu/topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_MAX 256 /* numbers may have gaps */

/* Marks the processors of a list with 1 + n, as far as it is one. */
static void list_mark(const char *list, int n, int16_t node[TOPO_CPU_MAX])
{
    for (const char *p = list; *p && *p != '\n';) {
        char *end;
        unsigned long a = strtoul(p, &end, 10), b = a;
        if (end == p)
            return;
        p = end;
        if (*p == '-') {
            b = strtoul(p + 1, &end, 10);
            if (end == p + 1)
                return;
            p = end;
        }
        for (; a <= b && a < TOPO_CPU_MAX; a++)
            node[a] = (int16_t)(1 + n);
        if (*p == ',')
            p++;
    }
}

int cpu_topo_read(const char *sys, int16_t node[TOPO_CPU_MAX])
{
    int16_t order[NODE_MAX + 1] = {0}; /* of a node's number, plus one */
    int n_node = 0;
    memset(node, 0, TOPO_CPU_MAX * sizeof *node);
    for (int n = 0; n < NODE_MAX; n++) {
        char path[256], list[4096];
        snprintf(path, sizeof path, "%s/node%d/cpulist", sys, n);
        FILE *f = fopen(path, "re");
        if (!f)
            continue;
        if (fgets(list, sizeof list, f))
            list_mark(list, n, node);
        fclose(f);
    }
    for (int i = 0; i < TOPO_CPU_MAX; i++) {
        if (node[i] && !order[node[i]])
            order[node[i]] = (int16_t)++n_node;
        node[i] = (int16_t)(node[i] ? order[node[i]] - 1 : 0);
    }
    return n_node ? n_node : 1;
}
