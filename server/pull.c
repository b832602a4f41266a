/* `stepd pull`: see pull.h. A file is downloaded to NAME.part (continued by the next run), checked, synced
 * and renamed; NAME.sha256 then says that it was checked, so that pulling again costs nothing. */
#include "server/pull.h"

#include "api/hub.h"
#include "server/models.h"
#include "server/pull_impl.h"

#include <curl/curl.h>
#include <getopt.h>
#include <signal.h>
#include <unistd.h>

struct pull {
    char dir[PATH_MAX];
    bool verify, quiet;
    struct srv_catalogue *cat;
    struct pull_bar bar;
    struct err e;
};

static void usage(FILE *out)
{
    fputs("usage: stepd pull [--models-dir DIR] [--verify] [--quiet] NAME...\n"
          "       stepd pull --list\n"
          "\n"
          "NAME is a name of the catalogue, hf:ORG/REPO, hf:ORG/REPO:FILE, or an http(s) URL.\n"
          "  --models-dir DIR  where models go (default: $STEPD_MODELS, else\n"
          "                    $XDG_DATA_HOME/stepd/models, else ~/.local/share/stepd/models)\n"
          "  --verify          hash again what is already there\n"
          "  --list            print the catalogue\n"
          "  --quiet           no progress\n"
          "HF_TOKEN opens gated models; HF_ENDPOINT names another hub; proxies are taken from\n"
          "http_proxy, https_proxy and no_proxy.\n",
          out);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Fetch f by URL (url not NULL) or from packages, unless it is there already. */
static int get(struct pull *p, struct pull_file *f, const char *url, const char *token,
               const struct srv_model_row *row)
{
    f->bar = &p->bar;
    p->bar.quiet = p->quiet;
    int rc = pull__file_present(f, p->verify, &p->e);
    if (rc == 0) {
        rc = pull__file_open(f, &p->e);
        if (rc == 0) {
            pull__bar_start(&p->bar, row ? row->name : last_part(f->path), f->size, 0, p->quiet);
            rc = url ? pull__http_file(f, url, token, &p->e) : pull__pypi(f, row, &p->e);
        }
        if (rc == 0)
            rc = pull__file_finish(f, &p->e);
        pull__file_close(f);
    } else if (rc > 0 && !p->quiet) {
        fprintf(stderr, "%s: already there\n", last_part(f->path));
    }
    return rc < 0 ? rc : 0;
}

static int pull_url(struct pull *p, const char *url)
{
    struct pull_file f;
    char name[256];
    const char *scheme = strstr(url, "://") + 3;
    size_t n = strcspn(scheme, "?#");
    size_t start = n;
    while (start && scheme[start - 1] != '/')
        start--;
    if (!start || start == n || n - start >= sizeof name || scheme[start] == '.')
        return err_set(&p->e, ERR_INVAL, "%.100s: the URL does not end in a file name", url);
    snprintf(name, sizeof name, "%.*s", (int)(n - start), scheme + start);
    int rc = pull__file_init(&f, p->dir, name, &p->e);
    if (!rc)
        rc = get(p, &f, url, NULL, NULL);
    if (!rc)
        puts(f.path);
    return rc;
}

static int hub_file(struct pull *p, const struct pull_hub *h, const char *file,
                    const char *revision, char *path, size_t path_n)
{
    struct pull_file f;
    char name[PATH_MAX], url[4096];
    int rc = srv_path_fmt(name, sizeof name, &p->e, "%s/%s", h->repo, file);
    if (!rc)
        rc = pull__file_init(&f, p->dir, name, &p->e);
    if (!rc)
        rc = pull__hub_url(h, file, revision, url, sizeof url, &p->e);
    if (!rc)
        rc = get(p, &f, url, pull__hub_token(), NULL);
    return rc ? rc : srv_path_fmt(path, path_n, &p->e, "%s", f.path);
}

/* Ask the hub what there is, then fetch one GGUF file, or a folder. */
static int hub_repo(struct pull *p, const struct pull_hub *h, struct arena *mem, struct buf *json)
{
    struct api_hub_files files;
    char url[4096], path[PATH_MAX];
    int rc = pull__hub_url(h, NULL, NULL, url, sizeof url, &p->e);
    if (!rc)
        rc = pull__http_text(url, pull__hub_token(), json, &p->e);
    if (!rc)
        rc = api_hub_pick(buf_cstr(json), json->len, mem, &files, &p->e);
    if (rc)
        return rc;
    if (files.n_gguf > 1 && !p->quiet)
        fprintf(stderr, "%s: %d GGUF files; taking %s (choose with hf:%s:FILE)\n", h->repo,
                files.n_gguf, files.name[0], h->repo);
    for (int i = 0; !rc && i < files.n; i++)
        rc = hub_file(p, h, files.name[i], files.revision, path, sizeof path);
    if (rc)
        return rc;
    if (!files.n_gguf)
        rc = srv_path_fmt(path, sizeof path, &p->e, "%s/%s", p->dir, h->repo);
    if (!rc)
        puts(path);
    return rc;
}

static int pull_hub(struct pull *p, const char *name)
{
    struct pull_hub h;
    struct arena mem = {0};
    struct buf json = {0};
    char path[PATH_MAX];
    int rc = pull__hub_parse(&h, name, &p->e);
    if (!rc && h.file[0]) {
        rc = hub_file(p, &h, h.file, "main", path, sizeof path);
        if (!rc)
            puts(path);
    } else if (!rc) {
        rc = hub_repo(p, &h, &mem, &json);
    }
    arena_free(&mem);
    buf_free(&json);
    return rc;
}

/* A folder comes as a tar, which goes when it is unpacked. 1: the folder is there already; 0: pull the tar. */
static int folder_present(struct pull *p, const char *dir)
{
    if (access(dir, F_OK) || p->verify)
        return 0;
    if (!p->quiet)
        fprintf(stderr, "%s: already there\n", last_part(dir));
    puts(dir);
    return 1;
}

static int folder_finish(struct pull *p, struct pull_file *f, const char *dir)
{
    char stamp[PATH_MAX];
    int rc = pull__unpack(f, dir, &p->e);
    if (rc)
        return rc;
    unlink(f->path);
    if (!srv_path_fmt(stamp, sizeof stamp, NULL, "%s.sha256", f->path))
        unlink(stamp);
    puts(dir);
    return 0;
}

static int pull_catalogue(struct pull *p, const struct srv_model_row *row)
{
    char dir[PATH_MAX];
    struct pull_file f;
    struct pull_hub h;
    char url[4096];
    const char *src = row->source[0], *token = NULL;
    int rc = pull__file_init(&f, p->dir, row->file, &p->e);
    bool folder = srv_catalogue_folder(row, p->dir, dir, sizeof dir);
    if (rc || (folder && folder_present(p, dir)))
        return rc;
    f.size = row->size;
    snprintf(f.sha256, sizeof f.sha256, "%s", row->sha256);
    if (strncmp(src, "hf:", 3) == 0) {
        rc = pull__hub_parse(&h, src, &p->e);
        if (!rc && !h.file[0])
            rc = err_set(&p->e, ERR_INVAL, "[%s] source: '%s' names no file", row->name, src);
        if (!rc)
            rc = pull__hub_url(&h, h.file, "main", url, sizeof url, &p->e);
        token = pull__hub_token();
    } else if (strncmp(src, "pypi:", 5) != 0) {
        rc = srv_path_fmt(url, sizeof url, &p->e, "%s", src);
    }
    if (!rc)
        rc = get(p, &f, strncmp(src, "pypi:", 5) == 0 ? NULL : url, token, row);
    if (!rc && folder)
        return folder_finish(p, &f, dir);
    if (!rc)
        puts(f.path);
    return rc;
}

static int pull_one(struct pull *p, const char *name)
{
    if (strncmp(name, "http://", 7) == 0 || strncmp(name, "https://", 8) == 0)
        return pull_url(p, name);
    if (strncmp(name, "hf:", 3) == 0)
        return pull_hub(p, name);
    const struct srv_model_row *row = srv_catalogue_find(p->cat, name);
    return row ? pull_catalogue(p, row) : srv_catalogue_unknown(p->cat, name, &p->e);
}

static void list(const struct srv_catalogue *c)
{
    for (int i = 0; i < srv_catalogue_count(c); i++) {
        const struct srv_model_row *r = srv_catalogue_at(c, i);
        printf("%-20s %7.1f MB  %s (%s)\n", r->name, (double)r->size / 1e6, r->about, r->licence);
    }
}

static int pull_all(struct pull *p, char **name, int n)
{
    int failed = 0;
    for (int i = 0; i < n; i++) {
        p->e = (struct err){0};
        if (pull_one(p, name[i])) {
            fprintf(stderr, "stepd pull: %s\n", p->e.text);
            failed = 1;
        }
        fflush(stdout);
    }
    return failed;
}

int srv_pull_main(int argc, char **argv)
{
    static const struct option opts[] = {{"models-dir", required_argument, NULL, 'd'},
                                         {"verify", no_argument, NULL, 'v'},
                                         {"quiet", no_argument, NULL, 'q'},
                                         {"list", no_argument, NULL, 'l'},
                                         {"help", no_argument, NULL, 'h'},
                                         {0}};
    static struct pull p; /* large paths: not on the stack */
    const char *dir = NULL;
    bool want_list = false;
    optind = 0; /* the caller may have used getopt */
    for (int c; (c = getopt_long(argc, argv, "qh", opts, NULL)) != -1;) {
        if (c == 'h') {
            usage(stdout);
            return 0;
        }
        if (c == '?') {
            usage(stderr);
            return 2;
        }
        dir = c == 'd' ? optarg : dir;
        p.verify = p.verify || c == 'v';
        p.quiet = p.quiet || c == 'q';
        want_list = want_list || c == 'l';
    }
    if (optind == argc && !want_list) {
        usage(stderr);
        return 2;
    }
    if (srv_models_dir(dir, p.dir, sizeof p.dir, &p.e) || srv_catalogue_load(&p.cat, &p.e)) {
        fprintf(stderr, "stepd pull: %s\n", p.e.text);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (want_list)
        list(p.cat);
    int rc = pull_all(&p, argv + optind, argc - optind);
    srv_catalogue_free(p.cat);
    curl_global_cleanup();
    return rc;
}
