/* The catalogue's text and the hub's listing: what is accepted is whole, and its names stay inside a folder. */
#include "tests/fuzz/fuzz.h"

#include "api/hub.h"
#include "engine/base/mem.h"
#include "server/catalogue.h"

const char *const fuzz_seeds[] = {"conf/models.ini", "tests/data/fuzz/hub-*.json", NULL};

static void inside(const char *name)
{
    CHECK(*name && *name != '/' && !strstr(name, ".."));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct srv_catalogue *c = NULL;
    struct err e = {0};
    struct arena mem = {0};
    struct api_hub_files files;
    if (n > 1 << 16)
        return 0;
    char *text = memcpy(xcalloc(n + 1, 1), data, n);
    int rc = srv_catalogue_parse(&c, text, "fuzz", &e);
    CHECK(rc == 0 || (e.code == rc && e.text[0]));
    for (int i = 0; rc == 0 && i < srv_catalogue_count(c); i++) {
        inside(srv_catalogue_at(c, i)->file);
        CHECK(srv_catalogue_at(c, i)->n_source > 0 && srv_catalogue_at(c, i)->size > 0);
    }
    srv_catalogue_free(c);
    rc = api_hub_pick(text, n, &mem, &files, &e);
    for (int i = 0; rc == 0 && i < files.n; i++)
        inside(files.name[i]);
    arena_free(&mem);
    free(text);
    return 0;
}
