/* Private to api/: forms (multipart/form-data) as the JSON object that a body with the same fields would be. What ends
 * the call returns ERR_INVAL, or NULL. */
#ifndef API_FORM_H
#define API_FORM_H

#include "api/api_impl.h"
#include "api/multipart.h"

#define FORM_NAME_MAX 64

/* The call's form: its parts, which point into the body, and an object that is empty yet. */
struct form {
    struct multipart *part; /* [n] */
    int n;
    json_t *o;
};
/* At most `max` parts. Release with form_free, after an error too. */
int form_read(struct api_call *c, int max, struct form *f);
void form_free(struct form *f);

/* The part's name, which is not empty, as a text. */
int form_name(struct api_call *c, const struct multipart *m, char name[FORM_NAME_MAX]);
/* The field's text as the JSON value that it stands for. kind: 'i' integer, 'n' number, 'b' boolean, 's' string; what is
 * none of its kind stays a text, which the getter then refuses. */
json_t *form_value(struct api_call *c, const char *name, char kind, const struct multipart *m);
/* A field that may be there once; takes v over, which may be NULL after form_value. */
int form_set(struct api_call *c, json_t *o, const char *name, json_t *v);

#endif
