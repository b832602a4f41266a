#include "tests/image_comp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/cpu/dispatch.h"

static void back_open(struct image_back *b, const struct backend *be, const char *isa, int threads,
                      enum eng_precision p)
{
    struct err e = {0};
    struct backend_info info;
    struct backend_opts o = {.n_threads = threads, .isa = isa, .precision = p};
    *b = (struct image_back){.be = be, .precision = p};
    if (be->open(&b->dev, &o, &e)) {
        fprintf(stderr, "open %s: %s\n", be->name, e.text);
        abort();
    }
    be->info(b->dev, &info);
    b->mul = info.mul_dtype;
    snprintf(b->name, sizeof b->name, "%s, %d threads", info.name, info.n_threads);
}

int image_backs_open(struct image_back out[IMAGE_BACKS], enum eng_precision p)
{
    int n = 0;
    const char *best = NULL;
    if (p == PRECISION_F32)
        back_open(&out[n++], &ref_backend, NULL, 0, p);
    for (int i = 0; i < CPU_N_ISA; i++)
        if (cpu_isa_usable(i))
            back_open(&out[n++], &cpu_backend, best = cpu_isas[i].name, 1, p);
    back_open(&out[n++], &cpu_backend, best, 3, p);
    return n;
}

void image_backs_close(struct image_back *b, int n)
{
    for (int i = 0; i < n; i++)
        b[i].be->close(b[i].dev);
}

int image_comp_open(struct comp *c, const char *dir, const char *name, struct err *e)
{
    char path[512];
    struct source *s = NULL;
    *c = (struct comp){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    int rc = config_open(&c->cfg, path, e);
    if (!rc)
        rc = source_open(&s, dir, e);
    c->map.src = s;
    if (!rc)
        snprintf(c->cls, sizeof c->cls, "%s", config_str(c->cfg, "_class_name", ""));
    return rc;
}

void image_comp_close(struct comp *c)
{
    /* The component's maker owns the source; it is handed out read-only. */
    source_close((struct source *)(uintptr_t)c->map.src);
    config_close(c->cfg);
    *c = (struct comp){0};
}

void image_nn_open(struct nn *n, const struct image_back *b)
{
    *n = (struct nn){.be = b->be, .dev = b->dev, .mul = b->mul};
}

double image_error(const float *a, const float *b, size_t n)
{
    double top = 0, max = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]), m = fabs((double)b[i]);
        if (!isfinite(d))
            return INFINITY;
        top = d > top ? d : top;
        max = m > max ? m : max;
    }
    return top / max;
}
