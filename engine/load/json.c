/* See json_impl.h. */
#include "engine/load/json_impl.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/load/gguf_impl.h"
#include "engine/load/map.h"

#define DEPTH_MAX 32 /* configurations of known models need 6 */

int load__json_depth(const char *p, size_t n, int max, struct err *e)
{
    int depth = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        if (text && p[i] == '\\')
            i++;
        else if (p[i] == '"')
            text = !text;
        else if (!text && (p[i] == '{' || p[i] == '['))
            depth++;
        else if (!text && (p[i] == '}' || p[i] == ']'))
            depth--;
        if (depth > max)
            return err_set(e, ERR_PARSE, "nested deeper than %d at byte %zu", max, i);
    }
    return 0;
}

/* Python's json writes numbers that JSON has no word for; diffusers' schedulers have "-Infinity" as a default. They
 * become the largest double, and NaN becomes null. */
static const struct {
    const char *word, *as;
} beyond[] = {{"-Infinity", "-1.7976931348623157e308"},
              {"Infinity", "1.7976931348623157e308"},
              {"NaN", "null"}};

/* The text with those words replaced, into b; nothing is written when there are none. */
static void plain_numbers(struct buf *b, const char *p, size_t n)
{
    bool text = false;
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (text && p[i] == '\\')
            i++;
        else if (p[i] == '"')
            text = !text;
        for (size_t k = 0; !text && k < sizeof beyond / sizeof *beyond; k++) {
            size_t len = strlen(beyond[k].word);
            if (p[i] != beyond[k].word[0] || len > n - i || memcmp(p + i, beyond[k].word, len) != 0)
                continue;
            buf_add(b, p + done, i - done);
            buf_str(b, beyond[k].as);
            done = i + len;
            i = done - 1;
            break;
        }
    }
    if (done)
        buf_add(b, p + done, n - done);
}

static int parse(json_t **out, const char *text, size_t n, struct err *e)
{
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root && (!je.text[0] || json_error_code(&je) == json_error_out_of_memory))
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of JSON", n);
    if (!root)
        return err_set(e, ERR_PARSE, "line %d: %s", je.line, SHOW(view_str(je.text)));
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_PARSE, "the top is no object");
    }
    *out = root;
    return 0;
}

int load__json_object(json_t **out, const char *text, size_t n, struct err *e)
{
    struct buf b = {0};
    int rc = load__json_depth(text, n, DEPTH_MAX, e);
    if (rc)
        return rc;
    plain_numbers(&b, text, n);
    if (b.failed)
        rc = err_set(e, ERR_NOMEM, "no memory for %zu bytes of JSON", n);
    else
        rc = b.len ? parse(out, buf_cstr(&b), b.len, e) : parse(out, text, n, e);
    buf_free(&b);
    return rc;
}

int load__json_file(json_t **out, const char *path, size_t limit, struct err *e)
{
    struct file_map m;
    struct err local;
    if (!e)
        e = &local;
    int rc = file_map_open(&m, path, e);
    if (rc)
        return file_map_prefix(e, path);
    if (m.size > limit)
        rc = err_set(e, ERR_LIMIT, "%zu bytes (at most %zu are read)", m.size, limit);
    rc = rc ? rc : load__json_object(out, (const char *)m.p, m.size, e);
    file_map_close(&m);
    return rc ? file_map_prefix(e, path) : 0;
}
