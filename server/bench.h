/* `stepd bench`: a closed-loop load generator for any OpenAI-compatible server. Keeps `concurrency` requests in
 * flight over as many connections until `requests` have been answered; measures from the client's side. */
#ifndef SERVER_BENCH_H
#define SERVER_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "engine/base/buf.h"

struct bench_opts {
    char host[256], port[16], path[256]; /* path prefix of --url, "" or "/x" */
    char model[256], key[256];
    int concurrency, requests, warmup;
    int prompt_tokens, max_tokens, shared_prefix; /* tokens, roughly one word each */
    int turns; /* requests of a conversation: each sends all that was said before, and prompt_tokens more */
    int seconds; /* from the first measured request; what then runs is cut off. 0 = no limit */
    double temperature;
    uint64_t seed;
    bool json, completions, no_ignore_eos;
};

/* One answered (or failed) request; times in microseconds of uv_hrtime / 1000. */
struct bench_result {
    int64_t start, first, last; /* sent, first text, end; first 0 = no text came */
    int64_t last_text;          /* the newest text frame */
    int32_t n_frames;           /* text frames */
    int32_t n_prompt, n_output; /* of the usage frame, or -1 */
    int status;                 /* HTTP status; 0 = connection failed */
    int turn;                   /* of its conversation, from 0 */
    bool cut;                   /* the time limit ended it; `last` is when */
};

struct bench {
    struct bench_opts o;
    struct bench_result *result; /* [requests + warmup] */
    int n_started, n_done;
    int64_t *itl; /* gaps between text frames, µs */
    size_t n_itl, cap_itl;
    struct sockaddr_storage addr;
    uv_loop_t loop;
    uv_timer_t limit;
    struct bench_client *clients; /* [concurrency] while it runs */
    char error[160];              /* the first failure, for the report */
};

/* Run until all requests are done (bench_client.c). 0 or ERR_*. */
int srv_bench_run(struct bench *b);
/* Body of request i: deterministic words of the seed. `talk`: messages before them, as the inside of a JSON list that
 * ends with a comma; may be empty. The new message is added to it. */
void srv_bench_body(const struct bench_opts *o, int i, struct buf *talk, struct buf *out);

int srv_bench_main(int argc, char **argv);

#endif
