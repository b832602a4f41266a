/* The Prometheus text format, version 0.0.4. */
#include <dirent.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/thread.h"
#include "server/metrics_impl.h"
#include "server/srv.h"

void metrics__head(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* {model_name="...",engine="0"} with `extra` ("le=\"1\"") inside; names are escaped as the format wants. */
void metrics__labels(struct buf *b, const struct srv_model *m, const char *extra)
{
    buf_str(b, "{model_name=\"");
    for (const char *p = m->name; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_char(b, '\\');
        buf_char(b, *p == '\n' ? ' ' : *p);
    }
    buf_fmt(b, "\",engine=\"%d\"%s%s}", m->index, extra ? "," : "", extra ? extra : "");
}

/* Where a plain value of sched_stats lies, and what it is called. */
enum value_type { V_INT, V_I32, V_U64 };
static const struct {
    const char *name, *type, *help;
    enum value_type v;
    size_t at;
} plain[] = {
#define STAT(f) offsetof(struct sched_stats, f)
    {"vllm:num_requests_running", "gauge", "Requests in the engine.", V_INT, STAT(running)},
    {"vllm:num_requests_waiting", "gauge", "Requests in the queue.", V_INT, STAT(waiting)},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens computed.", V_U64, STAT(prompt_tokens)},
    {"vllm:generation_tokens_total", "counter", "Tokens generated.", V_U64, STAT(generated_tokens)},
    {"vllm:num_preemptions_total", "counter", "Requests set back for want of memory.", V_U64,
     STAT(preemptions)},
    {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
     V_U64, STAT(prefix_queries)},
    {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", V_U64,
     STAT(prefix_hits)},
    {"vllm:spec_decode_num_drafts_total", "counter", "Times that drafts of an answer were tried.",
     V_U64, STAT(drafts)},
    {"vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens tried before they were due.",
     V_U64, STAT(draft_tokens)},
    {"vllm:spec_decode_num_accepted_tokens_total", "counter", "Of those, the right ones.", V_U64,
     STAT(draft_accepted)},
    {"stepd:sequences_running", "gauge", "Sequences in the engine.", V_INT, STAT(running_seqs)},
    {"stepd:kv_blocks_used", "gauge", "Cache blocks held by live sequences.", V_I32,
     STAT(blocks_used)},
    {"stepd:kv_blocks_cached", "gauge", "Cache blocks kept for prefix reuse only.", V_I32,
     STAT(blocks_cached)},
    {"stepd:state_slots", "gauge", "Slots for recurrent states (0: the model has none).", V_I32,
     STAT(states_total)},
    {"stepd:state_snapshots", "gauge", "Recurrent states kept for prefix reuse.", V_I32,
     STAT(states_cached)},
    {"stepd:steps_total", "counter", "Engine steps.", V_U64, STAT(steps)},
    {"stepd:steps_ahead_total", "counter", "Engine steps begun while the one before ran.", V_U64,
     STAT(steps_ahead)},
    {"stepd:cancelled_total", "counter", "Requests cancelled in the scheduler.", V_U64,
     STAT(cancelled)},
#undef STAT
};

static void write_plain(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        metrics__head(b, plain[i].name, plain[i].type, plain[i].help);
        for (int m = 0; m < s->n_model; m++) {
            const char *at = (const char *)&st[m] + plain[i].at;
            unsigned long long v = plain[i].v == V_INT   ? (unsigned long long)*(const int *)at
                                   : plain[i].v == V_I32 ? (unsigned long long)*(const int32_t *)at
                                                         : *(const uint64_t *)at;
            buf_str(b, plain[i].name);
            metrics__labels(b, &s->m[m], NULL);
            buf_fmt(b, " %llu\n", v);
        }
    }
}

static void write_cache(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    metrics__head(b, "vllm:kv_cache_usage_perc", "gauge",
                  "Part of the cache blocks in use, 0 to 1.");
    for (int m = 0; m < s->n_model; m++) {
        int32_t all = st[m].blocks_total;
        buf_str(b, "vllm:kv_cache_usage_perc");
        metrics__labels(b, &s->m[m], NULL);
        buf_fmt(b, " %.6g\n", all > 0 ? (double)st[m].blocks_used / all : 0.0);
    }
    metrics__head(b, "vllm:cache_config_info", "gauge", "Shape of the cache.");
    for (int m = 0; m < s->n_model; m++) {
        const struct eng_info *i = worker_engine(s->m[m].w);
        char extra[160];
        if (!i)
            continue;
        snprintf(extra, sizeof(extra), "block_size=\"%d\",num_gpu_blocks=\"%d\",backend=\"%s\"",
                 i->block_len, i->n_block, i->backend);
        buf_str(b, "vllm:cache_config_info");
        metrics__labels(b, &s->m[m], extra);
        buf_str(b, " 1\n");
    }
    metrics__head(b, "stepd:step_seconds_total", "counter", "Time inside engine steps.");
    for (int m = 0; m < s->n_model; m++) {
        buf_str(b, "stepd:step_seconds_total");
        metrics__labels(b, &s->m[m], NULL);
        buf_fmt(b, " %.6f\n", (double)st[m].step_us_total / 1e6);
    }
}

static void write_drafts(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    const char *name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    metrics__head(b, name, "counter", "Right tokens by their place in the draft.");
    for (int m = 0; m < s->n_model; m++)
        for (int i = 0; i < SPEC_TOKENS_MAX && i < (int)s->conf->speculative_tokens; i++) {
            char place[32];
            snprintf(place, sizeof(place), "position=\"%d\"", i);
            buf_str(b, name);
            metrics__labels(b, &s->m[m], place);
            buf_fmt(b, " %llu\n", (unsigned long long)st[m].draft_accepted_at[i]);
        }
}

static void write_gap(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    metrics__head(b, "stepd:step_gap_seconds_total", "counter",
                  "Time between engine steps while there was work.");
    for (int m = 0; m < s->n_model; m++) {
        buf_str(b, "stepd:step_gap_seconds_total");
        metrics__labels(b, &s->m[m], NULL);
        buf_fmt(b, " %.6f\n", (double)st[m].gap_us_total / 1e6);
    }
}

static void write_finished(struct srv *s, struct buf *b)
{
    static const char *const why[METRICS_REASONS] = {"stop", "length", "abort", "error"};
    metrics__head(b, "vllm:request_success_total", "counter", "Finished choices by reason.");
    for (int m = 0; m < s->n_model; m++)
        for (int i = 0; i < METRICS_REASONS; i++) {
            char extra[48];
            snprintf(extra, sizeof(extra), "finished_reason=\"%s\"", why[i]);
            buf_str(b, "vllm:request_success_total");
            metrics__labels(b, &s->m[m], extra);
            buf_fmt(b, " %llu\n", (unsigned long long)s->metrics.m[m].finished[i]);
        }
    metrics__head(b, "vllm:prompt_tokens_cached_total", "counter",
                  "Prompt tokens taken from the cache.");
    for (int m = 0; m < s->n_model; m++) {
        buf_str(b, "vllm:prompt_tokens_cached_total");
        metrics__labels(b, &s->m[m], NULL);
        buf_fmt(b, " %llu\n", (unsigned long long)s->metrics.m[m].cached_tokens);
    }
}

void metrics__bucket(struct buf *b, const char *name, const struct srv_model *m, double bound,
                     uint64_t n)
{
    char le[40];
    if (bound < 0)
        snprintf(le, sizeof(le), "le=\"+Inf\"");
    else
        snprintf(le, sizeof(le), "le=\"%.10g\"", bound);
    buf_fmt(b, "%s_bucket", name);
    metrics__labels(b, m, le);
    buf_fmt(b, " %llu\n", (unsigned long long)n);
}

void metrics__tail(struct buf *b, const char *name, const struct srv_model *m, double sum,
                   uint64_t n)
{
    buf_fmt(b, "%s_sum", name);
    metrics__labels(b, m, NULL);
    buf_fmt(b, " %.9g\n%s_count", sum, name);
    metrics__labels(b, m, NULL);
    buf_fmt(b, " %llu\n", (unsigned long long)n);
}

static void write_hists(struct srv *s, struct buf *b)
{
    for (int h = 0; h < HIST_COUNT; h++) {
        const struct metrics_hist_def *d = &metrics__hist[h];
        metrics__head(b, d->name, "histogram", d->help);
        for (int m = 0; m < s->n_model; m++) {
            const struct hist *v = &s->metrics.m[m].h[h];
            uint64_t n = 0;
            for (size_t i = 0; i < d->n; i++)
                metrics__bucket(b, d->name, &s->m[m], d->bound[i], n += v->count[i]);
            metrics__bucket(b, d->name, &s->m[m], -1, n += v->count[METRICS_BUCKETS]);
            metrics__tail(b, d->name, &s->m[m], v->sum, n);
        }
    }
}

/* The engine thread counts rows per step in powers of two; vLLM's buckets are 1, 8, 16, ... of these. */
static void write_steps(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    static const char *const name = "vllm:iteration_tokens_total";
    metrics__head(b, name, "histogram", "Tokens computed in one step.");
    for (int m = 0; m < s->n_model; m++) {
        uint64_t n = 0;
        for (int i = 0; i < 15; i++) {
            n += st[m].step_tokens_hist[i];
            if (i == 0 || i >= 3)
                metrics__bucket(b, name, &s->m[m], (double)(1 << i), n);
        }
        n += st[m].step_tokens_hist[15];
        metrics__bucket(b, name, &s->m[m], -1, n);
        metrics__tail(b, name, &s->m[m], st[m].step_tokens_sum, n);
    }
}

static void one(struct buf *b, const char *name, const char *type, const char *help, double v)
{
    metrics__head(b, name, type, help);
    buf_fmt(b, "%s %.15g\n", name, v);
}

static double resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    char line[128] = "";
    if (f && !fgets(line, sizeof(line), f))
        line[0] = 0;
    if (f)
        fclose(f);
    char *p = strchr(line, ' ');
    return p ? (double)strtoll(p, NULL, 10) * (double)sysconf(_SC_PAGESIZE) : 0;
}

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n > 3 ? n - 3 : 0; /* ".", "..", and the one that lists */
}

static void write_process(struct srv *s, struct buf *b)
{
    const struct metrics *m = &s->metrics;
    one(b, "stepd:requests_aborted_total", "counter", "Requests whose client left.",
        (double)m->aborted);
    one(b, "stepd:stalled_readers_total", "counter", "Streams cut off because nobody read them.",
        (double)m->stalled_readers);
    one(b, "stepd:connections", "gauge", "Open connections.", s->n_conn);
    one(b, "stepd:connections_refused_total", "counter", "Connections over a limit.",
        (double)m->refused_connections);
    one(b, "stepd:connections_timed_out_total", "counter", "Connections too slow with a request.",
        (double)m->timed_out_connections);
    one(b, "stepd:http_requests_open", "gauge", "Requests being answered.",
        (double)m->open_requests);
    metrics__head(b, "stepd:http_requests_total", "counter", "Answers by route and status.");
    for (int i = 0; i < m->n_http; i++)
        buf_fmt(b, "stepd:http_requests_total{path=\"%s\",status=\"%d\"} %llu\n", m->http[i].path,
                m->http[i].status, (unsigned long long)m->http[i].n);
    one(b, "stepd:log_lines_dropped_total", "counter", "Log lines that nobody took.",
        (double)log_dropped());
    one(b, "stepd:uptime_seconds", "gauge", "Since the start.",
        (double)(clock_us() - s->start_us) / 1e6);
    one(b, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    one(b, "process_open_fds", "gauge", "Open file descriptors.", open_fds());
}

void metrics_write(struct srv *s, struct buf *out)
{
    struct sched_stats st[SRV_MODELS] = {0};
    for (int i = 0; i < s->n_model; i++)
        worker_stats(s->m[i].w, &st[i]);
    write_plain(s, st, out);
    write_cache(s, st, out);
    write_drafts(s, st, out);
    write_gap(s, st, out);
    write_finished(s, out);
    write_hists(s, out);
    write_steps(s, st, out);
    metrics__images(s, st, out);
    metrics__audio(s, st, out);
    write_process(s, out);
}
