/* Option values: typed setting with range checks, and the argv / environment / file precedence. */
#include "conf/conf.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

#include "conf/conf_impl.h"
#include "engine/base/mem.h"

static void *field(const struct conf *c, const struct conf_option *o)
{
    return (char *)(uintptr_t)c + o->offset;
}

static bool unit_scale(const char *u, int64_t *mul)
{
    static const char *const names = "KMGTP";
    *mul = 1;
    if (!*u || strcmp(u, "B") == 0)
        return true;
    const char *at = strchr(names, toupper((unsigned char)*u));
    if (!at)
        return false;
    /* All prefixes are binary: memory is counted in powers of two here, also when written as GB. */
    for (long i = 0; i <= at - names; i++)
        *mul *= 1024;
    return !u[1] || strcmp(u + 1, "iB") == 0 || strcmp(u + 1, "B") == 0;
}

bool conf__parse_size(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s))
        return false;
    long long v = strtoll(s, &end, 10);
    int64_t mul, r;
    while (*end == ' ')
        end++;
    if (errno || !unit_scale(end, &mul) || __builtin_mul_overflow((int64_t)v, mul, &r))
        return false;
    *out = r;
    return true;
}

bool conf__parse_sec(const char *s, double *out)
{
    static const struct {
        const char *name;
        double mul;
    } unit[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}};
    char *end;
    if (!isdigit((unsigned char)*s))
        return false;
    double v = strtod(s, &end);
    if (!isfinite(v))
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++)
        if (strcmp(end, unit[i].name) == 0) {
            *out = v * unit[i].mul;
            return true;
        }
    return false;
}

static bool parse_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s) && *s != '-')
        return false;
    long long v = strtoll(s, &end, 10);
    *out = v;
    return !errno && end != s && !*end;
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const yes[] = {"yes", "true", "on", "1"};
    static const char *const no[] = {"no", "false", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(s, yes[i]) == 0)
            return *out = true;
        if (strcasecmp(s, no[i]) == 0) {
            *out = false;
            return true;
        }
    }
    return false;
}

static bool in_words(const char *range, const char *s)
{
    size_t n = strlen(s);
    for (const char *p = range; n && p; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, s, n) == 0 && (p[n] == '|' || !p[n]))
            return true;
    }
    return false;
}

/* Low and high of "low..high" as doubles of the option's own type. */
static void range_of(const struct conf_option *o, double *lo, double *hi)
{
    char low[32];
    const char *dots = strstr(o->range, "..");
    CHECK(dots && (size_t)(dots - o->range) < sizeof(low));
    snprintf(low, sizeof(low), "%.*s", (int)(dots - o->range), o->range);
    int64_t a = 0, b = 0;
    if (o->type == CONF_SEC) {
        CHECK(conf__parse_sec(low, lo) && conf__parse_sec(dots + 2, hi));
        return;
    }
    CHECK(conf__parse_size(low, &a) && conf__parse_size(dots + 2, &b));
    *lo = (double)a;
    *hi = (double)b;
}

static int list_add(struct conf_list *l, const char *text, size_t n)
{
    char **v = mem_realloc(l->v, (size_t)(l->n + 1) * sizeof(*v));
    if (!v)
        return ERR_NOMEM;
    l->v = v;
    char *s = mem_alloc(n + 1);
    if (!s)
        return ERR_NOMEM;
    memcpy(s, text, n);
    s[n] = 0;
    v[l->n++] = s;
    return 0;
}

static void list_clear(struct conf_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct conf_list){0};
}

static int set_list(struct conf_list *l, const char *text, enum conf_from from)
{
    if (from != CONF_ENV)
        return *text ? list_add(l, text, strlen(text)) : 0;
    while (*text) {
        size_t n = strcspn(text, ",");
        int rc = n ? list_add(l, text, n) : 0;
        if (rc)
            return rc;
        text += n + (text[n] == ',');
    }
    return 0;
}

static int set_string(char **dst, const char *text)
{
    size_t n = strlen(text) + 1;
    char *s = mem_alloc(n);
    if (!s)
        return ERR_NOMEM;
    memcpy(s, text, n);
    free(*dst);
    *dst = s;
    return 0;
}

static int bad_number(const struct conf_option *o, const char *where, const char *text,
                      struct err *e)
{
    static const char *const what[] = {[CONF_INT] = "a whole number",
                                       [CONF_SIZE] = "a size (such as 512MiB)",
                                       [CONF_SEC] = "a time (such as 30, 500ms or 5m)"};
    return err_set(e, ERR_INVAL, "%s: '%.60s' is not %s in %s", where, text, what[o->type],
                   o->range);
}

static int set_number(struct conf *c, const struct conf_option *o, const char *text,
                      const char *where, struct err *e)
{
    double lo, hi, sec = 0;
    int64_t v = 0;
    bool ok = o->type == CONF_INT    ? parse_int(text, &v)
              : o->type == CONF_SIZE ? conf__parse_size(text, &v)
                                     : conf__parse_sec(text, &sec);
    range_of(o, &lo, &hi);
    double as = o->type == CONF_SEC ? sec : (double)v;
    if (!ok || as < lo || as > hi)
        return bad_number(o, where, text, e);
    if (o->type == CONF_SEC)
        *(double *)field(c, o) = sec;
    else
        *(int64_t *)field(c, o) = v;
    return 0;
}

int conf__set(struct conf *c, int option, const char *text, enum conf_from from, const char *where,
              struct err *e)
{
    const struct conf_option *o = &conf__options[option];
    if (c->from[option] > from)
        return 0;
    int rc = 0;
    switch (o->type) {
    case CONF_LIST:
        if (c->from[option] < from)
            list_clear(field(c, o));
        rc = set_list(field(c, o), text, from);
        break;
    case CONF_ENUM:
        if (!in_words(o->range, text))
            return err_set(e, ERR_INVAL, "%s: '%.60s' is not one of %s", where, text, o->range);
        rc = set_string(field(c, o), text);
        break;
    case CONF_STR:
        rc = set_string(field(c, o), text);
        break;
    case CONF_BOOL:
        if (!parse_bool(text, field(c, o)))
            return err_set(e, ERR_INVAL, "%s: '%.60s' is not yes or no", where, text);
        break;
    default:
        rc = set_number(c, o, text, where, e);
        if (rc)
            return rc;
    }
    if (rc)
        return err_set(e, rc, "%s: out of memory", where);
    c->from[option] = (unsigned char)from;
    return 0;
}

static int unknown(const char *kind, const char *name, size_t len, struct err *e)
{
    char near[64];
    if (conf__nearest(name, len, near, sizeof(near)))
        return err_set(e, ERR_INVAL, "unknown %s '%.*s'; did you mean '%s'?", kind, (int)len, name,
                       near);
    return err_set(e, ERR_INVAL, "unknown %s '%.*s' (stepd serve --help lists all)", kind,
                   len > 60 ? 60 : (int)len, name);
}

/* One "--name", "--name=value", "--name value" or "--no-name". Sets *used to the arguments taken. */
static int parse_flag(struct conf *c, int argc, char **argv, int *used, struct err *e)
{
    const char *name = argv[0] + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    char where[64];
    snprintf(where, sizeof(where), "--%.*s", len > 48 ? 48 : (int)len, name);
    *used = 1;
    if (!eq && strcmp(name, "help") == 0)
        return c->action = CONF_HELP, 0;
    if (!eq && strcmp(name, "print-config") == 0)
        return c->action = CONF_PRINT, 0;
    bool is_file = len == 6 && strncmp(name, "config", 6) == 0;
    int i = is_file ? -1 : conf__find(name, len);
    if (i < 0 && !is_file) {
        i = len > 3 && strncmp(name, "no-", 3) == 0 ? conf__find(name + 3, len - 3) : -1;
        if (i < 0 || conf__options[i].type != CONF_BOOL || eq)
            return unknown("option --", name, len, e);
        return conf__set(c, i, "no", CONF_ARGV, where, e);
    }
    const char *value = eq ? eq + 1 : NULL;
    if (!eq && !is_file && conf__options[i].type == CONF_BOOL) {
        /* A flag alone means yes; a word after it is taken only if it reads as yes or no. */
        bool b;
        value = argc > 1 && parse_bool(argv[1], &b) ? argv[(*used)++] : "yes";
    } else if (!eq) {
        if (argc < 2)
            return err_set(e, ERR_INVAL, "%s needs a value", where);
        value = argv[(*used)++];
    }
    if (is_file)
        return set_string(&c->config, value) ? err_set(e, ERR_NOMEM, "out of memory") : 0;
    return conf__set(c, i, value, CONF_ARGV, where, e);
}

static int parse_argv(struct conf *c, int argc, char **argv, struct err *e)
{
    int model = conf__find("model", 5);
    bool plain = false; /* after "--" everything is a model */
    for (int i = 0, used = 1; i < argc; i += used) {
        int rc;
        used = 1;
        if (!plain && strcmp(argv[i], "--") == 0) {
            plain = true;
            continue;
        }
        if (!plain && (strcmp(argv[i], "-h") == 0)) {
            c->action = CONF_HELP;
            continue;
        }
        if (!plain && argv[i][0] == '-' && argv[i][1] == '-')
            rc = parse_flag(c, argc - i, argv + i, &used, e);
        else if (!plain && argv[i][0] == '-' && argv[i][1])
            rc = err_set(e, ERR_INVAL, "unknown option '%.60s'; options start with two dashes",
                         argv[i]);
        else
            rc = conf__set(c, model, argv[i], CONF_ARGV, "MODEL", e);
        if (rc)
            return rc;
    }
    return 0;
}

/* Kubernetes puts STEPD_PORT=tcp://..., STEPD_SERVICE_HOST and the like into every pod beside a service called
 * "stepd": not meant for us. STEPD_CATALOGUE, STEPD_LIBDIR and what the GPU plug-ins read (STEPD_CUDA_GRAPHS, STEPD_EMU_...)
 * are read where they act, by every command. */
static bool env_foreign(const char *low, const char *value)
{
    return strncmp(low, "service_", 8) == 0 || strncmp(low, "port_", 5) == 0 ||
           strncmp(low, "test_", 5) == 0 || strcmp(low, "catalogue") == 0 ||
           strcmp(low, "libdir") == 0 || strncmp(low, "emu_", 4) == 0 ||
           strcmp(low, "cuda_graphs") == 0 ||
           (strcmp(low, "port") == 0 && strncmp(value, "tcp://", 6) == 0);
}

static int parse_env(struct conf *c, char **env, struct err *e)
{
    for (; env && *env; env++) {
        if (strncmp(*env, "STEPD_", 6) != 0)
            continue;
        const char *name = *env + 6, *eq = strchr(name, '=');
        char low[64], where[80];
        size_t len = eq ? (size_t)(eq - name) : 0;
        if (!len || len >= sizeof(low))
            continue;
        for (size_t i = 0; i < len; i++)
            low[i] = (char)tolower((unsigned char)name[i]);
        low[len] = 0;
        snprintf(where, sizeof(where), "STEPD_%.*s", (int)len, name);
        if (strcmp(low, "config") == 0) {
            if (!*c->config && set_string(&c->config, eq + 1))
                return err_set(e, ERR_NOMEM, "out of memory");
            continue;
        }
        if (env_foreign(low, eq + 1))
            continue;
        /* The pull command knows the models folder by its short name. */
        int i = strcmp(low, "models") == 0 ? conf__find("models_dir", 10) : conf__find(low, len);
        int rc = i < 0 ? unknown("environment variable STEPD_", low, len, e)
                       : conf__set(c, i, eq + 1, CONF_ENV, where, e);
        if (rc)
            return rc;
    }
    return 0;
}

int conf_default(struct conf **out, struct err *e)
{
    struct conf *c = mem_calloc(1, sizeof(*c));
    int rc = c ? set_string(&c->config, "") : ERR_NOMEM;
    for (int i = 0; !rc && i < conf__n_options; i++)
        if (!conf__options[i].group)
            rc = conf__set(c, i, conf__options[i].def, CONF_DEFAULT, conf__options[i].id, e);
    if (rc) {
        conf_free(c);
        return err_set(e, rc, "options: out of memory");
    }
    *out = c;
    return 0;
}

int conf_parse(struct conf **out, int argc, char **argv, char **env, struct err *e)
{
    struct conf *c;
    int rc = conf_default(&c, e);
    if (rc)
        return rc;
    rc = parse_argv(c, argc, argv, e);
    if (!rc)
        rc = parse_env(c, env, e);
    if (!rc && *c->config)
        rc = conf__file(c, c->config, e);
    if (!rc && !*c->tls_cert != !*c->tls_key)
        rc = err_set(e, ERR_INVAL, "tls-cert and tls-key go together");
    if (!rc && !*c->host && !*c->unix_socket)
        rc = err_set(e, ERR_INVAL, "host: empty, and no unix-socket: nothing to listen on");
    if (rc) {
        conf_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void conf_free(struct conf *c)
{
    if (!c)
        return;
    for (int i = 0; i < conf__n_options; i++) {
        const struct conf_option *o = &conf__options[i];
        if (o->group)
            continue;
        if (o->type == CONF_STR || o->type == CONF_ENUM)
            free(*(char **)field(c, o));
        else if (o->type == CONF_LIST)
            list_clear(field(c, o));
    }
    free(c->config);
    free(c);
}
