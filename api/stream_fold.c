/* The whole answer: events put together. */
#include <stdlib.h>
#include <string.h>

#include "api/stream.h"
#include "engine/base/mem.h"

static char *copy(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(n);
    return p ? memcpy(p, s, n) : NULL;
}

static int add_call(struct stream_fold *f, const struct stream_event *ev)
{
    if (f->n_call == f->cap_call) {
        int cap = f->cap_call ? f->cap_call * 2 : 4;
        struct stream_call *p = mem_realloc(f->call, (size_t)cap * sizeof *p);
        if (!p)
            return ERR_NOMEM;
        f->call = p;
        f->cap_call = cap;
    }
    struct stream_call *k = &f->call[f->n_call];
    *k = (struct stream_call){.name = copy(ev->name), .id = copy(ev->id)};
    f->n_call++;
    return k->name && k->id ? 0 : ERR_NOMEM;
}

int stream_fold_add(struct stream_fold *f, const struct stream_event *ev)
{
    struct buf *b = NULL;
    switch (ev->kind) {
    case STREAM_TEXT:
        b = &f->text;
        break;
    case STREAM_REASONING:
        b = &f->reasoning;
        break;
    case STREAM_CALL_BEGIN:
        return add_call(f, ev);
    case STREAM_CALL_ARGS:
        b = &f->call[f->n_call - 1].args;
        break;
    case STREAM_CALL_END:
        f->call[f->n_call - 1].ended = true;
        return 0;
    }
    buf_add(b, ev->text.p, ev->text.len);
    return b->failed ? ERR_NOMEM : 0;
}

void stream_fold_free(struct stream_fold *f)
{
    for (int i = 0; i < f->n_call; i++) {
        free(f->call[i].name);
        free(f->call[i].id);
        buf_free(&f->call[i].args);
    }
    free(f->call);
    buf_free(&f->text);
    buf_free(&f->reasoning);
    *f = (struct stream_fold){0};
}
