/* Forms as JSON. See form.h. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "api/form.h"
#include "engine/base/mem.h"

int form_read(struct api_call *c, int max, struct form *f)
{
    struct err e = {0};
    *f = (struct form){.part = mem_calloc((size_t)max, sizeof *f->part), .o = json_object()};
    if (!f->part || !f->o)
        return api__nomem(c);
    if (multipart_parse(c->content_type, (struct view){c->body, c->body_len}, f->part, max, &f->n,
                        &e))
        return api__bad(c, NULL, "invalid_multipart",
                        "We could not read the form of your request: %s.", e.text);
    return 0;
}

void form_free(struct form *f)
{
    json_decref(f->o);
    free(f->part);
}

int form_name(struct api_call *c, const struct multipart *m, char name[FORM_NAME_MAX])
{
    if (m->name.len == 0 || m->name.len >= FORM_NAME_MAX || !utf8_valid(m->name.p, m->name.len) ||
        memchr(m->name.p, 0, m->name.len))
        return api__bad(
            c, NULL, "invalid_value",
            "A field of the form has a name that is empty, longer than %d bytes, or no UTF-8.",
            FORM_NAME_MAX - 1);
    memcpy(name, m->name.p, m->name.len);
    name[m->name.len] = 0;
    return 0;
}

/* The text of a number as JSON would write it, or NULL. */
static json_t *number_of(const char *s, bool whole)
{
    char *end;
    errno = 0;
    if (whole) {
        long long v = strtoll(s, &end, 10);
        return errno || *end || isspace((unsigned char)*s) ? NULL : json_integer(v);
    }
    double d = strtod(s, &end);
    bool plain = strspn(s, "0123456789+-.eE") == strlen(s);
    return errno || *end || !plain || !isfinite(d) ? NULL : json_real(d);
}

json_t *form_value(struct api_call *c, const char *name, char kind, const struct multipart *m)
{
    struct view text = m->data;
    json_t *v = NULL;
    char s[48];
    if (!utf8_valid(text.p, text.len) || memchr(text.p, 0, text.len)) {
        api__bad(c, name, "invalid_value", "Invalid '%s': it is not UTF-8 text.", name);
        return NULL;
    }
    if (kind != 's' && text.len == 0)
        return json_null();
    if (kind != 's' && text.len < sizeof s) {
        memcpy(s, text.p, text.len);
        s[text.len] = 0;
        if (kind == 'i' || kind == 'n')
            v = number_of(s, kind == 'i');
        else if (strcasecmp(s, "true") == 0 || strcmp(s, "1") == 0)
            v = json_true();
        else if (strcasecmp(s, "false") == 0 || strcmp(s, "0") == 0)
            v = json_false();
    }
    v = v ? v : json_stringn_nocheck(text.p, text.len);
    if (!v)
        api__nomem(c);
    return v;
}

int form_set(struct api_call *c, json_t *o, const char *name, json_t *v)
{
    if (!v)
        return ERR_INVAL;
    if (json_object_get(o, name)) {
        json_decref(v);
        return api__bad(c, name, NULL, "The field '%s' is there twice.", name);
    }
    return json_object_set_new(o, name, v) ? api__nomem(c) : 0;
}
