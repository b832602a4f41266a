/* GET / and the files of the playground, a page that tries the models in a browser. The files are part of this object.
 * Whatever the page shows comes from elsewhere (models, users), so the browser is told to run and load nothing but
 * these files: a string that got into the page as markup would still do nothing. */
#include "api/api_impl.h"
#include "engine/base/hash.h"

/* Paths are relative to the source tree's root, where the compiler runs. */
#define FILE_TEXT(symbol, path)                                                                    \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global api__page_" #symbol "\n"                                                      \
            "api__page_" #symbol ":\n"                                                             \
            ".incbin \"" path "\"\n"                                                               \
            ".global api__page_" #symbol "_end\n"                                                  \
            "api__page_" #symbol "_end:\n"                                                         \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char api__page_##symbol[], api__page_##symbol##_end[]

FILE_TEXT(index, "api/page/index.html");
FILE_TEXT(app, "api/page/app.js");
FILE_TEXT(style, "api/page/style.css");
FILE_TEXT(icon, "api/page/favicon.svg");

struct page_file {
    const char *path, *type;
    const char *text, *end;
};
static const struct page_file files[] = {
    {"/", "text/html; charset=utf-8", api__page_index, api__page_index_end},
    {"/app.js", "text/javascript; charset=utf-8", api__page_app, api__page_app_end},
    {"/style.css", "text/css; charset=utf-8", api__page_style, api__page_style_end},
    {"/favicon.ico", "image/svg+xml", api__page_icon, api__page_icon_end},
};

static void add_header(struct api_call *c, const char *name, const char *value)
{
    struct api_header *h = &c->header[c->n_header++];
    h->name = name;
    int n = snprintf(h->value, sizeof h->value, "%s", value);
    CHECK(n >= 0 && (size_t)n < sizeof h->value);
}

/* Quotes around a tag make its place in the client's list unambiguous. */
static bool client_has(const struct api_call *c, const char *tag)
{
    const char *have = c->if_none_match;
    return have && (strcmp(have, "*") == 0 || strstr(have, tag));
}

int api_page(struct api_call *c)
{
    static const struct hash_key key = {0x706c617967726f75u, 0x6e642d7061676573u};
    const struct page_file *f = &files[0];
    for (size_t i = 1; i < sizeof files / sizeof *files; i++)
        if (strcmp(c->route->path, files[i].path) == 0)
            f = &files[i];
    size_t n = (size_t)(f->end - f->text);
    char tag[24];
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash_bytes(key, f->text, n));
    add_header(c, "Content-Security-Policy",
               "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: "
               "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
               "frame-ancestors 'none'");
    add_header(c, "X-Content-Type-Options", "nosniff");
    add_header(c, "Referrer-Policy", "no-referrer");
    add_header(c, "Cache-Control", "no-cache"); /* ask each time, by the tag */
    add_header(c, "ETag", tag);
    c->out_type = f->type;
    if (client_has(c, tag))
        c->status = 304;
    else
        buf_add(&c->out, f->text, n);
    c->done = true;
    return 0;
}
