/* GET /openapi.json: what is served here, as an OpenAPI 3.1 document. Paths come from the route table, fields from
 * openapi.def; nothing is written down twice. Schemas say types and ranges that every model shares; limits of a model or
 * of the options are the parsers' affair. */
#include "api/api_impl.h"

enum group {
    GEN = 1, /* both completions endpoints */
    CHAT = 2,
    COMP = 4,
    EMB = 8,
    IMG = 16, /* both image endpoints */
    EDIT = 32,
    TOK = 64,
    DETOK = 128,
    RESP = 256,
    MSG = 512,
    INF = 1024,
    STT = 2048, /* forms only */
};

#define NUM(lo, hi) "\"type\":[\"number\",\"null\"],\"minimum\":" #lo ",\"maximum\":" #hi ","
#define INT(lo, hi) "\"type\":[\"integer\",\"null\"],\"minimum\":" #lo ",\"maximum\":" #hi ","
#define NUMBER      "\"type\":[\"number\",\"null\"],"
#define WHOLE       "\"type\":[\"integer\",\"null\"],"
#define BOOL        "\"type\":[\"boolean\",\"null\"],"
#define STR         "\"type\":[\"string\",\"null\"],"
#define TEXTS       "\"type\":[\"string\",\"array\",\"null\"],\"items\":{\"type\":\"string\"},"
#define ARR         "\"type\":[\"array\",\"null\"],\"items\":{},"
#define OBJ         "\"type\":[\"object\",\"null\"],"
#define BYTES       "\"type\":\"string\",\"format\":\"binary\","
#define ANY         ""

struct field {
    enum group group;
    const char *name, *schema, *text;
};
static const struct field fields[] = {
#define FIELD(g, name, schema, text) {g, name, schema, text},
#include "api/openapi.def"
#undef FIELD
};

/* Bodies whose fields are listed. Others are objects that the documents describe. */
static const struct body {
    const char *path;
    unsigned groups;
    const char *required; /* JSON */
} bodies[] = {
    {"/v1/chat/completions", GEN | CHAT, "\"model\",\"messages\""},
    {"/v1/completions", GEN | COMP, "\"model\",\"prompt\""},
    {"/infill", GEN | INF, ""},
    {"/v1/responses", RESP, "\"model\",\"input\""},
    {"/v1/responses/input_tokens", RESP, "\"model\",\"input\""},
    {"/v1/messages", MSG, "\"model\",\"messages\",\"max_tokens\""},
    {"/v1/messages/count_tokens", MSG, "\"model\",\"messages\""},
    {"/v1/embeddings", EMB, "\"model\",\"input\""},
    {"/v1/images/generations", IMG, "\"prompt\""},
    {"/v1/images/edits", IMG | EDIT, "\"prompt\""},
    {"/v1/audio/transcriptions", STT, "\"file\""},
    {"/v1/audio/translations", STT, "\"file\""},
    {"/tokenize", TOK, ""},
    {"/detokenize", DETOK, "\"tokens\""},
};

static const struct {
    const char *method, *path;
    unsigned flags;
} routes[] = {
#define ROUTE(m, p, f, fn) {m, p, f},
#include "api/routes.def"
#undef ROUTE
};
#define N_ROUTES (sizeof routes / sizeof *routes)

static void put_fields(struct buf *b, const struct body *body)
{
    const char *comma = "";
    buf_fmt(b, "{\"type\":\"object\",\"required\":[%s],\"properties\":{", body->required);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        if (!(f->group & body->groups))
            continue;
        buf_fmt(b, "%s\"%s\":{%s\"description\":\"%s\"}", comma, f->name, f->schema, f->text);
        comma = ",";
    }
    buf_str(b, "}}");
}

static void put_body(struct buf *b, const char *path)
{
    const struct body *body = NULL;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (strcmp(bodies[i].path, path) == 0)
            body = &bodies[i];
    bool form = body && body->groups & STT;
    buf_fmt(b, "\"requestBody\":{\"required\":true,\"content\":{\"%s\":{\"schema\":",
            form ? "multipart/form-data" : "application/json");
    if (body)
        put_fields(b, body);
    else
        buf_str(b, "{\"type\":\"object\"}");
    buf_char(b, '}');
    if (body && body->groups & EDIT) {
        buf_str(b, ",\"multipart/form-data\":{\"schema\":");
        put_fields(b, body);
        buf_char(b, '}');
    }
    buf_str(b, "}},");
}

/* An identifier made of method and path: "post_v1_chat_completions". */
static void put_id(struct buf *b, const char *method, const char *path)
{
    for (; *method; method++)
        buf_char(b, (char)(*method | 0x20));
    for (; *path; path++)
        buf_char(b, *path == '*' ? 'x' : strchr("/.", *path) ? '_' : *path);
}

static void put_operation(struct buf *b, size_t i)
{
    const char *path = routes[i].path;
    buf_char(b, '"');
    for (const char *m = routes[i].method; *m; m++)
        buf_char(b, (char)(*m | 0x20));
    buf_str(b, "\":{\"operationId\":\"");
    put_id(b, routes[i].method, path);
    buf_str(b, "\",");
    if (strchr(path, '*'))
        buf_str(b, "\"parameters\":[{\"name\":\"name\",\"in\":\"path\",\"required\":true,"
                   "\"description\":\"the rest of the path\",\"schema\":{\"type\":\"string\"}}],");
    if (routes[i].flags & API_KEY)
        buf_str(b, "\"security\":[{\"key\":[]},{}],");
    if (routes[i].flags & API_BODY)
        put_body(b, path);
    buf_str(b, "\"responses\":{\"200\":{\"description\":\"the answer\"},\"default\":{"
               "\"description\":\"an error\",\"content\":{\"application/json\":{\"schema\":{"
               "\"$ref\":\"#/components/schemas/Error\"}}}}}}");
}

/* Methods of one path stand together, at the place of the first. */
static void put_paths(struct buf *b)
{
    for (size_t i = 0; i < N_ROUTES; i++) {
        const char *path = routes[i].path;
        size_t first = 0;
        while (strcmp(routes[first].path, path) != 0)
            first++;
        if (first < i)
            continue;
        size_t n = strcspn(path, "*");
        buf_str(b, i ? ",\"" : "\"");
        buf_add(b, path, n);
        buf_str(b, path[n] ? "{name}\":{" : "\":{");
        for (size_t k = i; k < N_ROUTES; k++) {
            if (strcmp(routes[k].path, path) != 0)
                continue;
            buf_str(b, k > i ? "," : "");
            put_operation(b, k);
        }
        buf_char(b, '}');
    }
}

int api_openapi(struct api_call *c)
{
    struct buf *b = &c->out;
    buf_str(b, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"stepd\",\"version\":\"" STEPD_VERSION
               "\"},\"paths\":{");
    put_paths(b);
    buf_str(
        b,
        "},\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
        "\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{"
        "\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\"],\"properties\":{"
        "\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"
        "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":[\"string\",\"null\"]}}}}}}}"
        "}\n");
    c->done = true;
    return 0;
}
