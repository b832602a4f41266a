/* `stepd plan MODEL`: what serving a model would take of memory, without loading it. Main thread. */
#ifndef SERVER_PLAN_H
#define SERVER_PLAN_H

#include "conf/conf.h"
#include "sched/worker.h"

/* argv[0] is skipped ("plan"). Options are those of serve, and --json. Exit status: 0 it fits, 1 it does not or the
 * model cannot be read (reason on stderr), 2 wrong usage. */
int srv_plan_main(int argc, char **argv);

/* Engine options that follow from the configuration; texts stay owned by c. */
void srv_engine_options(const struct conf *c, const char *path, struct eng_opts *o);
/* The refiner, for image models only: its path goes to buf [n], where o->refiner points. ERR_* of a name that is not
 * known. */
int srv_refiner_option(const struct conf *c, const char *path, char *buf, size_t n,
                       struct eng_opts *o, struct err *e);

#endif
