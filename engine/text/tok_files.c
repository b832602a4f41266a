/* Tokenizer from vocab.json + merges.txt, the files before tokenizer.json. They hold no pipeline: that is
 * the class's, named in tokenizer_config.json. The tree of a tokenizer.json is put together from them and
 * opened like one. */
#include <limits.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/text/tok_hf_impl.h"

#define FILE_MAX (64u << 20)

/* What the classes do around the model, in tokenizer.json's words. */
static const struct kind {
    const char *name, *word_end, *bos, *eos, *steps;
} kinds[] = {
    {"CLIPTokenizer", "</w>", "<|startoftext|>", "<|endoftext|>",
     "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": "
     "\"Replace\", \"pattern\": {\"Regex\": \"\\\\s+\"}, \"content\": \" \"}, {\"type\": "
     "\"Lowercase\"}]}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
     "\"Split\", \"pattern\": {\"Regex\": "
     "\"<\\\\|startoftext\\\\|>|<\\\\|endoftext\\\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\\\p{L}]+|"
     "[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+\"}, \"behavior\": \"Removed\", \"invert\": true}, "
     "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}}"},
    {"Qwen2Tokenizer", "", NULL, "<|endoftext|>",
     "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
     "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
     "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
     "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
     "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
     "\"add_prefix_space\": false, \"use_regex\": false}]}}"},
};

/* The class by its name, with or without "Fast"; a folder that names none is CLIP's. */
static const struct kind *kind_of(const json_t *cfg, struct err *e)
{
    struct view v = hf__str(cfg, "tokenizer_class");
    if (!v.len)
        return &kinds[0];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = strlen(kinds[i].name);
        if (v.len >= n && memcmp(v.p, kinds[i].name, n) == 0 &&
            (v.len == n || strcmp(v.p + n, "Fast") == 0))
            return &kinds[i];
    }
    err_set(e, ERR_UNSUPPORTED, "tokenizer_config.json: tokenizer_class '%.60s' is not supported",
            v.p);
    return NULL;
}

/* dir/name as JSON; *out NULL when it is absent and may be. */
static int load_json(const char *dir, const char *name, bool must, json_t **out, struct err *e)
{
    char path[PATH_MAX];
    json_error_t je;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return err_set(e, ERR_INVAL, "path is too long");
    *out = NULL;
    if (!must && access(path, F_OK) != 0)
        return 0;
    *out = json_load_file(path, JSON_ALLOW_NUL, &je);
    if (*out && json_is_object(*out))
        return 0;
    if (*out)
        return err_set(e, ERR_PARSE, "%s: no object", name);
    return json_error_code(&je) == json_error_cannot_open_file
               ? err_set(e, ERR_NOTFOUND, "%s: cannot be opened", name)
               : err_set(e, ERR_PARSE, "%s: line %d: %s", name, je.line, je.text);
}

/* "left right" lines as texts; the first line may say the version. */
static int load_merges(const char *dir, json_t *list, struct err *e)
{
    static const char version[] = "#version";
    char path[PATH_MAX];
    struct buf b = {.limit = FILE_MAX};
    if ((size_t)snprintf(path, sizeof path, "%s/merges.txt", dir) >= sizeof path)
        return err_set(e, ERR_INVAL, "path is too long");
    int rc = tok__read_file(path, &b, e);
    const char *p = rc ? "" : buf_cstr(&b), *end = p + (rc ? 0 : b.len);
    for (int line = 1; rc == 0 && p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        size_t keep = n && p[n - 1] == '\r' ? n - 1 : n;
        bool head = line == 1 && n >= sizeof version - 1 && !memcmp(p, version, sizeof version - 1);
        if (keep && !head && json_array_append_new(list, json_stringn(p, keep)) != 0)
            rc = err_set(e, ERR_PARSE, "line %d: no UTF-8, or out of memory", line);
        p += n + (eol ? 1 : 0);
    }
    buf_free(&b);
    return rc ? err_prefix(e, "merges.txt") : 0;
}

/* A special token's text: itself, or an object with `content`. */
static const char *text_of(const json_t *v)
{
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

/* Id of an entry, -1 if there is none. */
static json_int_t id_of(const json_t *vocab, const json_t *added, const char *text)
{
    const json_t *id = text ? json_object_get(added, text) : NULL;
    if (text && !id)
        id = json_object_get(vocab, text);
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* Texts that are not in the vocabulary are no tokens: an added one is in `added`. */
static int add_special(json_t *list, const json_t *vocab, const json_t *added, const char *text)
{
    json_int_t id = id_of(vocab, added, text);
    if (id < 0)
        return 0;
    return json_array_append_new(
        list, json_pack("{s:I, s:s, s:b}", "id", id, "content", text, "special", 1));
}

/* The list of added tokens: added_tokens.json, what the configuration lists by id, the named special ones. */
static int add_tokens(json_t *list, const json_t *vocab, json_t *added, json_t *cfg)
{
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    const char *key;
    json_t *v;
    size_t i;
    int rc = 0;
    json_object_foreach(added, key, v) rc |=
        json_array_append_new(list, json_pack("{s:O, s:s}", "id", v, "content", key));
    json_object_foreach(json_object_get(cfg, "added_tokens_decoder"), key, v)
    {
        json_t *x = json_copy(v);
        rc |= json_object_set_new(x, "id", json_integer(strtoll(key, NULL, 10)));
        rc |= json_array_append_new(list, x);
    }
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++)
        rc |= add_special(list, vocab, added, text_of(json_object_get(cfg, keys[i])));
    json_array_foreach(json_object_get(cfg, "additional_special_tokens"), i, v) rc |=
        add_special(list, vocab, added, text_of(v));
    return rc;
}

/* The names of bos and eos that the class has when the configuration is silent. */
static int set_default(json_t *cfg, const char *key, const char *text)
{
    const json_t *v = json_object_get(cfg, key);
    return !text || (v && !json_is_null(v)) ? 0 : json_object_set_new(cfg, key, json_string(text));
}

/* Without a list by id in tokenizer_config.json, special_tokens_map.json has the last word. */
static int merge_config(const char *dir, json_t *cfg, struct err *e)
{
    json_t *file = NULL, *map = NULL;
    int rc = load_json(dir, "tokenizer_config.json", false, &file, e);
    rc = rc ? rc : load_json(dir, "special_tokens_map.json", false, &map, e);
    bool list = json_is_object(json_object_get(file, "added_tokens_decoder"));
    if (rc == 0 && ((file && json_object_update(cfg, file) != 0) ||
                    (map && !list && json_object_update(cfg, map) != 0)))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    json_decref(file);
    json_decref(map);
    return rc;
}

/* CLIP puts its two around every text. */
static int set_post(json_t *root, const json_t *vocab, const json_t *cfg, struct err *e)
{
    const char *bos = text_of(json_object_get(cfg, "bos_token"));
    const char *eos = text_of(json_object_get(cfg, "eos_token"));
    json_int_t b = id_of(vocab, NULL, bos), n = id_of(vocab, NULL, eos);
    if (b < 0 || n < 0)
        return err_set(e, ERR_INVAL, "vocab.json: no entry for bos_token or eos_token");
    json_t *post = json_pack("{s:s, s:[sI], s:[sI]}", "type", "RobertaProcessing", "cls", bos, b,
                             "sep", eos, n);
    return json_object_set_new(root, "post_processor", post) == 0
               ? 0
               : err_set(e, ERR_NOMEM, "out of memory");
}

/* Fills root, the tree of a tokenizer.json, and cfg. */
static int build(const char *dir, json_t *root, json_t *cfg, struct err *e)
{
    json_t *vocab = NULL, *added = NULL, *merges = json_array(), *list = json_array();
    int rc = merge_config(dir, cfg, e);
    const struct kind *k = rc ? NULL : kind_of(cfg, e);
    rc = rc ? rc : k ? load_json(dir, "vocab.json", true, &vocab, e) : ERR_UNSUPPORTED;
    rc = rc ? rc : load_json(dir, "added_tokens.json", false, &added, e);
    rc = rc ? rc : load_merges(dir, merges, e);
    if (rc == 0) {
        json_t *steps = json_loads(k->steps, 0, NULL);
        json_t *model = json_pack("{s:s, s:O, s:O, s:s}", "type", "BPE", "vocab", vocab, "merges",
                                  merges, "end_of_word_suffix", k->word_end);
        int bad = set_default(cfg, "bos_token", k->bos) | set_default(cfg, "eos_token", k->eos) |
                  add_tokens(list, vocab, added, cfg) | json_object_update(root, steps) |
                  json_object_set(root, "added_tokens", list) |
                  json_object_set_new(root, "model", model);
        json_decref(steps);
        if (bad)
            rc = err_set(e, ERR_PARSE, "a token that is no text, or out of memory");
    }
    if (rc == 0 && k->bos)
        rc = set_post(root, vocab, cfg, e);
    json_decref(vocab);
    json_decref(added);
    json_decref(merges);
    json_decref(list);
    return rc;
}

int tok_open_files(struct tokenizer **out, const char *dir, struct err *e)
{
    json_t *root = json_object(), *cfg = json_object();
    int rc = build(dir, root, cfg, e);
    rc = rc ? rc : hf__open(out, root, cfg, e);
    json_decref(root);
    json_decref(cfg);
    if (rc != 0)
        err_prefix(e, "%s", dir);
    return rc;
}
