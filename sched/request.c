/* See request.h. */
#include "sched/request.h"

#include "engine/base/mem.h"

struct request *request_new(void)
{
    return mem_calloc(1, sizeof(struct request));
}

void request_free(struct request *r)
{
    if (!r)
        return;
    free(r->prompt);
    free(r->samp.bias);
    free(r->samp.mask);
    free(r);
}
