/* `stepd bench`: options, prompts, and the report. */
#include "server/bench.h"

#include <getopt.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

/* Common words that are one token with their space in most vocabularies. */
static const char *const words[] = {
    "time",     "year",    "people",    "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",     "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",      "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question",  "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",      "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",     "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",      "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",      "game",   "line",       "end",    "member",  "law",
    "car",      "city",    "community", "name",   "president",  "team",   "minute",  "idea"};
#define N_WORDS (sizeof words / sizeof *words)

static void add_words(struct buf *b, uint64_t seed, int n)
{
    for (int i = 0; i < n; i++)
        buf_fmt(b, "%s%s", b->len ? " " : "",
                words[hash_u64(seed + (uint64_t)i * 0x9E37u) % N_WORDS]);
}

void srv_bench_body(const struct bench_opts *o, int i, struct buf *talk, struct buf *out)
{
    struct buf text = {0};
    int shared = o->shared_prefix < o->prompt_tokens ? o->shared_prefix : o->prompt_tokens;
    add_words(&text, o->seed, shared);
    /* Of the sum: with an exclusive or, request i of seed s would be request s of seed i. */
    add_words(&text, hash_u64(o->seed + (uint64_t)i + 1), o->prompt_tokens - shared);
    buf_str(out, "{\"model\":");
    buf_json(out, o->model, strlen(o->model));
    if (o->completions) {
        buf_str(out, ",\"prompt\":");
        buf_json(out, buf_cstr(&text), text.len);
    } else {
        buf_str(talk, "{\"role\":\"user\",\"content\":");
        buf_json(talk, buf_cstr(&text), text.len);
        buf_str(talk, "}");
        buf_str(out, ",\"messages\":[");
        buf_add(out, talk->p, talk->len);
        buf_str(out, "]");
    }
    buf_fmt(out,
            ",\"max_tokens\":%d,\"temperature\":%g,\"seed\":%d,\"stream\":true,\"stream_options\":{"
            "\"include_usage\":true}%s}",
            o->max_tokens, o->temperature, i, o->no_ignore_eos ? "" : ",\"ignore_eos\":true");
    buf_free(&text);
}

/* ---- report ---- */

static int cmp_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

struct dist {
    double mean, p50, p90, p99; /* ms */
};

static struct dist dist_of(int64_t *us, size_t n)
{
    struct dist d = {0};
    if (!n)
        return d;
    qsort(us, n, sizeof *us, cmp_i64);
    for (size_t i = 0; i < n; i++)
        d.mean += (double)us[i] / (double)n / 1e3;
    double *out[] = {&d.p50, &d.p90, &d.p99}, q[] = {0.5, 0.9, 0.99};
    for (int k = 0; k < 3; k++) {
        size_t at = (size_t)ceil(q[k] * (double)n);
        *out[k] = (double)us[at ? at - 1 : 0] / 1e3;
    }
    return d;
}

struct summary {
    int ok, failed, cut;
    int64_t prompt, output;
    double seconds;
    struct dist ttft, later, tpot, itl, e2e; /* later: TTFT of the second and later turns */
};

/* Samples of the distributions, one room a request. */
struct samples {
    int64_t *us;
    size_t n;
};

static void sample(struct samples *s, int64_t us)
{
    s->us[s->n++] = us;
}

/* A request that the time limit cut counts with what it gave until then: one token a frame. One without text waited at
 * least so long. */
static void summarise_one(struct summary *s, const struct bench_result *r, struct samples *t)
{
    bool counted = !r->cut && r->n_output > 0;
    int32_t out = counted ? r->n_output : r->n_frames;
    int64_t waited = (r->first ? r->first : r->last) - r->start;
    s->output += out;
    s->prompt += r->n_prompt > 0 && !r->cut ? r->n_prompt : 0;
    *(r->cut ? &s->cut : &s->ok) += 1;
    sample(&t[0], waited);
    if (r->turn)
        sample(&t[1], waited);
    if (out > 1)
        sample(&t[2], ((r->cut ? r->last_text : r->last) - r->first) / (out - 1));
    if (!r->cut)
        sample(&t[3], r->last - r->start);
}

static void summarise(struct bench *b, struct summary *s)
{
    int first = b->o.warmup, last = b->o.warmup + b->o.requests;
    struct dist *out[] = {&s->ttft, &s->later, &s->tpot, &s->e2e};
    struct samples t[4] = {0};
    for (int k = 0; k < 4; k++)
        t[k].us = xcalloc((size_t)b->o.requests, sizeof *t[k].us);
    int64_t from = INT64_MAX, to = 0;
    for (int i = first; i < last; i++) {
        const struct bench_result *r = &b->result[i];
        if (!r->start)
            continue; /* the time was up before its turn */
        if (!r->cut && (r->status != 200 || !r->first)) {
            s->failed++;
            continue;
        }
        summarise_one(s, r, t);
        from = r->start < from ? r->start : from;
        to = r->last > to ? r->last : to;
    }
    s->seconds = to ? (double)(to - from) / 1e6 : 0;
    for (int k = 0; k < 4; k++) {
        *out[k] = dist_of(t[k].us, t[k].n);
        free(t[k].us);
    }
    s->itl = dist_of(b->itl, b->n_itl);
}

static void put_dist(bool json, const char *name, struct dist d)
{
    if (json)
        printf(",\"%s_ms\":{\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f}", name, d.mean,
               d.p50, d.p90, d.p99);
    else
        printf("%-5s ms   mean %9.2f   p50 %9.2f   p90 %9.2f   p99 %9.2f\n", name, d.mean, d.p50,
               d.p90, d.p99);
}

static void report(struct bench *b)
{
    struct summary s = {0};
    bool json = b->o.json;
    summarise(b, &s);
    double rate = s.seconds > 0 ? (double)s.output / s.seconds : 0;
    if (json)
        printf("{\"concurrency\":%d,\"requests\":%d,\"failed\":%d,\"cut\":%d,\"seconds\":%.3f,"
               "\"prompt_"
               "tokens\":%lld,\"output_tokens\":%lld,"
               "\"output_tokens_per_s\":%.2f,\"requests_per_s\":%.3f",
               b->o.concurrency, s.ok, s.failed, s.cut, s.seconds, (long long)s.prompt,
               (long long)s.output, rate, s.seconds > 0 ? s.ok / s.seconds : 0);
    else
        printf(
            "%d requests, %d failed, %d cut by the time limit, %d at once, %.2f s; %lld prompt and "
            "%lld output tokens; %.1f output tokens/s\n",
            s.ok, s.failed, s.cut, b->o.concurrency, s.seconds, (long long)s.prompt,
            (long long)s.output, rate);
    put_dist(json, "ttft", s.ttft);
    if (b->o.turns > 1)
        put_dist(json, "ttft_later", s.later);
    put_dist(json, "tpot", s.tpot);
    put_dist(json, "itl", s.itl);
    put_dist(json, "e2e", s.e2e);
    if (json)
        printf("}\n");
    if (b->error[0])
        fprintf(stderr, "stepd bench: first failure: %s\n", b->error);
}

/* ---- options ---- */

static int usage(int rc)
{
    fputs(
        "usage: stepd bench --url http://HOST:PORT [--model NAME] [--api-key KEY] [--concurrency "
        "1] [--requests 32]\n"
        "                   [--warmup 0] [--prompt-tokens 128] [--max-tokens 64] "
        "[--shared-prefix 0] [--temperature 0]\n"
        "                   [--seed 1] [--turns 1] [--seconds 0] [--completions] [--stop-at-eos] "
        "[--json]\n"
        "Closed loop: keeps CONCURRENCY requests in flight until REQUESTS are answered. Token "
        "counts of prompts are words;\n"
        "the report gives the server's own count. TURNS > 1: conversations, each request with all "
        "that was said before it.\n"
        "SECONDS: time limit from the first measured request; what then runs is cut off, and "
        "counted with what it gave.\n",
        rc ? stderr : stdout);
    return rc;
}

static int parse_url(struct bench_opts *o, const char *url)
{
    if (strncmp(url, "http://", 7) != 0)
        return ERR_INVAL;
    const char *p = url + 7;
    size_t n;
    if (*p == '[') { /* IPv6 */
        n = strcspn(++p, "]");
        if (p[n] != ']' || n >= sizeof o->host)
            return ERR_INVAL;
        memcpy(o->host, p, n);
        p += n + 1;
    } else {
        n = strcspn(p, ":/");
        if (n == 0 || n >= sizeof o->host)
            return ERR_INVAL;
        memcpy(o->host, p, n);
        p += n;
    }
    snprintf(o->port, sizeof o->port, "80");
    if (*p == ':') {
        n = strcspn(++p, "/");
        snprintf(o->port, sizeof o->port, "%.*s", (int)(n < 6 ? n : 6), p);
        p += n;
    }
    n = strlen(p);
    while (n && p[n - 1] == '/')
        n--;
    if (n >= 3 && strncmp(p + n - 3, "/v1", 3) == 0)
        n -= 3;
    snprintf(o->path, sizeof o->path, "%.*s", (int)n, p);
    return 0;
}

static bool whole(const char *s, int lo, int *out)
{
    char *end;
    long v = strtol(s, &end, 10);
    if (end == s || *end || v < lo || v > 100000000)
        return false;
    *out = (int)v;
    return true;
}

enum {
    O_URL = 256,
    O_MODEL,
    O_KEY,
    O_CONC,
    O_REQ,
    O_WARM,
    O_PROMPT,
    O_MAX,
    O_SHARED,
    O_TEMP,
    O_SEED,
    O_TURNS,
    O_SECONDS,
    O_COMP,
    O_EOS,
    O_JSON,
    O_HELP
};
static const struct option longs[] = {{"url", 1, 0, O_URL},
                                      {"model", 1, 0, O_MODEL},
                                      {"api-key", 1, 0, O_KEY},
                                      {"concurrency", 1, 0, O_CONC},
                                      {"requests", 1, 0, O_REQ},
                                      {"warmup", 1, 0, O_WARM},
                                      {"prompt-tokens", 1, 0, O_PROMPT},
                                      {"max-tokens", 1, 0, O_MAX},
                                      {"shared-prefix", 1, 0, O_SHARED},
                                      {"temperature", 1, 0, O_TEMP},
                                      {"seed", 1, 0, O_SEED},
                                      {"turns", 1, 0, O_TURNS},
                                      {"seconds", 1, 0, O_SECONDS},
                                      {"completions", 0, 0, O_COMP},
                                      {"stop-at-eos", 0, 0, O_EOS},
                                      {"json", 0, 0, O_JSON},
                                      {"help", 0, 0, O_HELP},
                                      {0, 0, 0, 0}};

/* One option; 0, or an exit status that ends the program. */
static int set_option(struct bench_opts *o, int opt, const char *arg)
{
    int seed = 1;
    bool ok = true;
    switch (opt) {
    case O_URL:
        ok = parse_url(o, arg) == 0;
        break;
    case O_MODEL:
        snprintf(o->model, sizeof o->model, "%s", arg);
        break;
    case O_KEY:
        snprintf(o->key, sizeof o->key, "%s", arg);
        break;
    case O_CONC:
        ok = whole(arg, 1, &o->concurrency);
        break;
    case O_REQ:
        ok = whole(arg, 1, &o->requests);
        break;
    case O_WARM:
        ok = whole(arg, 0, &o->warmup);
        break;
    case O_PROMPT:
        ok = whole(arg, 1, &o->prompt_tokens);
        break;
    case O_MAX:
        ok = whole(arg, 1, &o->max_tokens);
        break;
    case O_SHARED:
        ok = whole(arg, 0, &o->shared_prefix);
        break;
    case O_TEMP:
        o->temperature = strtod(arg, NULL);
        break;
    case O_SEED:
        ok = whole(arg, 0, &seed);
        o->seed = hash_u64((uint64_t)seed);
        break;
    case O_TURNS:
        ok = whole(arg, 1, &o->turns);
        break;
    case O_SECONDS:
        ok = whole(arg, 0, &o->seconds);
        break;
    case O_COMP:
        o->completions = true;
        break;
    case O_EOS:
        o->no_ignore_eos = true;
        break;
    case O_JSON:
        o->json = true;
        break;
    default:
        ok = false;
        break;
    }
    if (!ok)
        fprintf(stderr, "stepd bench: bad option or value%s%s\n", arg ? ": " : "", arg ? arg : "");
    return ok ? 0 : usage(2);
}

int srv_bench_main(int argc, char **argv)
{
    struct bench b = {.o = {.concurrency = 1,
                            .requests = 32,
                            .prompt_tokens = 128,
                            .max_tokens = 64,
                            .turns = 1,
                            .seed = hash_u64(1),
                            .model = "default"}};
    optind = 1;
    for (int opt; (opt = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (opt == O_HELP)
            return usage(0);
        int rc = set_option(&b.o, opt, optarg);
        if (rc)
            return rc;
    }
    if (!b.o.host[0] || optind < argc || (b.o.turns > 1 && b.o.completions))
        return usage(2);
    if (b.o.concurrency > b.o.requests + b.o.warmup)
        b.o.concurrency = b.o.requests + b.o.warmup;
    b.result = xcalloc((size_t)(b.o.requests + b.o.warmup), sizeof *b.result);
    if (srv_bench_run(&b)) {
        fprintf(stderr, "stepd bench: no such host: %s\n", b.o.host);
        free(b.result);
        return 1;
    }
    report(&b);
    int failed = 0;
    for (int i = 0; i < b.o.requests + b.o.warmup; i++)
        failed += b.result[i].start && !b.result[i].cut && b.result[i].status != 200;
    free(b.result);
    free(b.itl);
    return failed ? 1 : 0;
}
