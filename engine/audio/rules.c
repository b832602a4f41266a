/* Which token comes next: bans, time tokens in pairs that never go back, then the likeliest or a drawn one
 * (Radford et al. 2022, section 4.5 and the published decoding code). See model.h. */
#include <math.h>

#include "engine/audio/model.h"

/* log sum exp of z [from, to), in double and in this order. */
static double log_sum(const float *z, int from, int to)
{
    float max = -INFINITY;
    double sum = 0;
    for (int i = from; i < to; i++)
        max = z[i] > max ? z[i] : max;
    if (!(max > -INFINITY))
        return -INFINITY;
    for (int i = from; i < to; i++)
        sum += (double)expf(z[i] - max);
    return (double)max + log(sum);
}

float aud_prob(const float *z, int n, int32_t token)
{
    return token >= 0 && token < n ? (float)exp((double)z[token] - log_sum(z, 0, n)) : 0;
}

int aud_pick_language(const struct aud_tokens *t, const float *z)
{
    int best = 0;
    for (int i = 1; i < AUD_LANGUAGES; i++)
        if (t->lang[i] >= 0 && (t->lang[best] < 0 || z[t->lang[i]] > z[t->lang[best]]))
            best = i;
    return best;
}

static void wipe(float *z, int from, int to)
{
    for (int i = from; i < to; i++)
        z[i] = -INFINITY;
}

/* Times open and close segments: after a pair comes text, after one alone its partner or the end; none goes back, and
 * none is twice where a segment closes. */
static void time_rules(const struct aud_tokens *t, float *z, const int32_t *seq, int n)
{
    int32_t first = t->first_time, last = -1;
    bool was = n >= 1 && seq[n - 1] >= first, before = n < 2 || seq[n - 2] >= first;
    if (was && before)
        wipe(z, first, t->n_vocab);
    else if (was)
        wipe(z, 0, t->eot);
    for (int i = n - 1; i >= 0 && last < 0; i--)
        last = seq[i] >= first ? seq[i] : -1;
    if (last >= 0)
        wipe(z, first, was && !before ? last : last + 1);
    if (n == 0) {
        wipe(z, 0, first);
        if (first + t->first_time_max + 1 < t->n_vocab)
            wipe(z, first + t->first_time_max + 1, t->n_vocab);
    }
    float text = -INFINITY;
    for (int i = 0; i < first; i++)
        text = z[i] > text ? z[i] : text;
    if (log_sum(z, first, t->n_vocab) > (double)text)
        wipe(z, 0, first);
}

static int32_t likeliest(const float *z, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = z[i] > z[best] ? i : best;
    return best;
}

static int32_t draw(const float *z, int n, float heat, double u)
{
    float max = z[likeliest(z, n)];
    double sum = 0, at = 0;
    int32_t last = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)(z[i] - max) / (double)heat);
    for (int32_t i = 0; i < n; i++) {
        double p = exp((double)(z[i] - max) / (double)heat);
        if (p <= 0)
            continue;
        at += p;
        last = i;
        if (at > u * sum)
            break;
    }
    return last;
}

struct aud_pick aud_pick_next(const struct aud_tokens *t, float *z, const int32_t *seq, int n,
                              float heat, double u)
{
    uint8_t bans = n == 0 ? AUD_BAN_ALWAYS | AUD_BAN_FIRST : AUD_BAN_ALWAYS;
    for (int i = 0; i < t->n_vocab; i++)
        if (t->ban[i] & bans)
            z[i] = -INFINITY;
    time_rules(t, z, seq, n);
    struct aud_pick p = {heat > 0 ? draw(z, t->n_vocab, heat, u) : likeliest(z, t->n_vocab), 0};
    p.logprob = (float)((double)z[p.token] - log_sum(z, 0, t->n_vocab));
    return p;
}
