/* Which memory each processor is near to, as Linux tells it (Documentation/admin-guide/mm/numaperf). */
#ifndef ENGINE_CPU_TOPO_H
#define ENGINE_CPU_TOPO_H

#include <stdint.h>

#define TOPO_CPU_MAX 1024
#define TOPO_SYS     "/sys/devices/system/node"

/* node[cpu] for cpu < TOPO_CPU_MAX out of SYS/nodeN/cpulist ("0-3,8"): numbers of nodes in the order of their first processor,
 * 0 where nothing is said. Returns how many nodes have processors, 1 at least: a machine without the folder is one node. */
int cpu_topo_read(const char *sys, int16_t node[TOPO_CPU_MAX]);

#endif
