/* SPDX-License-Identifier: Apache-2.0 */
/*
** Batch sizes under two limits: lengths become buckets, a rule becomes limits, limits become sizes.
**
** `power` with p chosen: for each p of a grid the works of all batches follow from the histogram
** alone, and with them, in closed form, the imbalance of steps that draw n_ranks of them at random
** (below). That is 252 times a sort of at most 2048 numbers, 20 ms, whatever the number of samples;
** sampling an epoch for each p would take minutes for ten million.
*/
#include "bucket.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../real.h"
#include "../sort.h"

#define LEAST_P 0.5
#define MOST_P 3.0
#define P_STEPS 250
#define BELOW (1 - 1e-9) /* and by more than rounding */
#define LARGEST 1e10     /* seconds: then all works, and sums of them, can be sorted as floats */
#define LEAST 1e-30
#define LONGEST 1e30 /* of a batch */

enum { MERGED = 1024 }; /* buckets that p is chosen by: more are merged with their neighbours */

/* ---------------------------------------------------------------------------- rules */

static const char *const rule_name[] = {"two_term", "power", "equal_token", "packed"};
enum { N_RULES = sizeof rule_name / sizeof *rule_name };

static bool rule_is_known(kf_rule rule) { return (int)rule >= 0 && (int)rule < N_RULES; }

const char *kf_rule_name(kf_rule rule) { return rule_is_known(rule) ? rule_name[rule] : "unknown"; }

kf_status kf_rule_parse(const char *text, kf_rule *out) {
  if (!text || !out) return kfi_fail(KF_EINVAL, "kf_rule_parse: a pointer is NULL");
  for (int i = 0; i < N_RULES; i++) {
    if (strcmp(text, rule_name[i]) == 0) {
      *out = (kf_rule)i;
      return KF_OK;
    }
  }
  return kfi_fail(KF_EINVAL, "rule \"%.80s\": expected equal_token, power, two_term or packed",
                  text);
}

/* ------------------------------------------------------------------------ the input */

static kf_status check_cost(const kf_cost *c) {
  const struct {
    const char *name;
    double value;
  } number[] = {
    {"linear_s", c->linear_s}, {"quadratic_s", c->quadratic_s}, {"constant_s", c->constant_s}};
  for (int i = 0; i < 3; i++)
    if (!(number[i].value >= 0) || number[i].value > LARGEST)
      return kfi_fail(KF_EINVAL, "cost: %s is %g, expected 0 to %g", number[i].name,
                      number[i].value, LARGEST);
  if (!(c->linear_s + c->quadratic_s >= LEAST))
    return kfi_fail(KF_EINVAL,
                    "cost: linear_s %g and quadratic_s %g, expected one of them above %g",
                    c->linear_s, c->quadratic_s, LEAST);
  return KF_OK;
}

kf_status kfi_bucket_check(const kf_bucket_options *o) {
  kf_status status = check_cost(&o->cost);
  if (status) return status;
  if (!rule_is_known(o->rule))
    return kfi_fail(KF_EINVAL, "rule is %d, expected a kf_rule from 0 to %d", (int)o->rule,
                    N_RULES - 1);
  if (o->mem_tokens < 1 || o->mem_tokens > KF_MAX_TOKENS)
    return kfi_fail(KF_EINVAL, "mem_tokens is %" PRId64 ", expected 1 to %" PRId64, o->mem_tokens,
                    KF_MAX_TOKENS);
  if (o->match_len < 0 || o->match_len > KF_MAX_LEN)
    return kfi_fail(KF_EINVAL, "match_len is %" PRId64 ", expected 1 to %" PRId64 " or 0 for none",
                    o->match_len, KF_MAX_LEN);
  if (o->comp_s != 0 && !(o->comp_s >= LEAST && o->comp_s <= LONGEST))
    return kfi_fail(KF_EINVAL, "comp_s is %g, expected %g to %g, or 0 for none", o->comp_s, LEAST,
                    LONGEST);
  if (o->match_len && o->comp_s > 0)
    return kfi_fail(KF_EINVAL, "match_len is %" PRId64 " and comp_s %g, expected one of them",
                    o->match_len, o->comp_s);
  if (!o->match_len && !(o->comp_s > 0) && o->rule != KF_RULE_EQUAL_TOKEN)
    return kfi_fail(KF_EINVAL, "neither match_len nor comp_s is given, expected one of them");
  if ((int)o->power < 0 || o->power > KF_POWER_GIVEN)
    return kfi_fail(KF_EINVAL, "power is %d, expected a kf_power from 0 to %d", (int)o->power,
                    KF_POWER_GIVEN);
  if (o->power == KF_POWER_GIVEN && !(o->p >= LEAST_P && o->p <= MOST_P))
    return kfi_fail(KF_EINVAL, "p is %g, expected %g to %g", o->p, LEAST_P, MOST_P);
  if (o->n_ranks < 1 || o->n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "n_ranks is %" PRId32 ", expected 1 to %d", o->n_ranks,
                    KF_MAX_RANKS);
  return KF_OK;
}

kf_status kfi_bucket_check_lens(const kf_bucket_options *o, const int64_t *len,
                                const int64_t *count, int64_t n) {
  int64_t n_samples = 0, n_tokens = 0, n_above = 0, longest = -1;
  if (n < 0 || n > KF_MAX_SEQS)
    return kfi_fail(KF_EINVAL, "%" PRId64 " lengths, expected 0 to %" PRId64, n, KF_MAX_SEQS);
  if (n > 0 && !len) return kfi_fail(KF_EINVAL, "%" PRId64 " lengths, but len is NULL", n);
  for (int64_t i = 0; i < n; i++) {
    int64_t times = count ? count[i] : 1;
    if (len[i] < 1 || len[i] > KF_MAX_LEN)
      return kfi_fail(KF_EINVAL,
                      "sample %" PRId64 ": a length of %" PRId64 ", expected 1 to %" PRId64, i,
                      len[i], KF_MAX_LEN);
    if (times < 1 || times > KF_MAX_SEQS - n_samples)
      return kfi_fail(KF_EINVAL,
                      "length %" PRId64 " occurs %" PRId64
                      " times, expected 1 or more, and at most "
                      "%" PRId64 " samples in all",
                      len[i], times, KF_MAX_SEQS);
    if (len[i] > o->mem_tokens) {
      n_above += times;
      if (longest < 0 || len[i] > len[longest]) longest = i;
    }
    if (len[i] > (KF_MAX_TOKENS - n_tokens) / times)
      return kfi_fail(KF_EINVAL,
                      "more than %" PRId64 " tokens up to sample %" PRId64
                      ", expected at most that many in all",
                      KF_MAX_TOKENS, i);
    n_samples += times;
    n_tokens += len[i] * times;
  }
  if (longest >= 0)
    return kfi_fail(KF_EINFEASIBLE,
                    "%" PRId64 " of %" PRId64 " samples exceed the %" PRId64
                    " tokens that memory holds: the longest, sample %" PRId64 ", has %" PRId64,
                    n_above, n_samples, o->mem_tokens, longest, len[longest]);
  return KF_OK;
}

/* -------------------------------------------------------------------- lengths to buckets */

uint64_t *kfi_bucket_sort(const int64_t *len, int64_t n, uint64_t *key, uint64_t *spare,
                          int64_t *n_buckets) {
  for (int64_t i = 0; i < n; i++) key[i] = (uint64_t)(len[i] - 1) << 32 | (uint64_t)i;
  key = kfi_sort_high(key, spare, n);
  *n_buckets = n > 0;
  for (int64_t k = 1; k < n; k++) *n_buckets += key[k] >> 32 != key[k - 1] >> 32;
  return key;
}

void kfi_bucket_gather(const int64_t *len, const int64_t *count, int64_t n, const uint64_t *sorted,
                       kf_bucket *bucket, int32_t *bucket_of) {
  int64_t b = -1;
  for (int64_t k = 0; k < n; k++) {
    int64_t i = (int64_t)(uint32_t)sorted[k];
    if (k == 0 || sorted[k] >> 32 != sorted[k - 1] >> 32) bucket[++b] = (kf_bucket){.len = len[i]};
    bucket[b].count += count ? count[i] : 1;
    if (bucket_of) bucket_of[i] = (int32_t)b;
  }
}

/* -------------------------------------------------------------------------------- limits */

/* Least squares of log work over log length: the local exponent, averaged over the lengths. */
static double fitted_p(const kfi_limits *l, const kf_bucket *bucket, int64_t n) {
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  for (int64_t i = 0; i < n; i++) {
    double len = (double)bucket[i].len;
    mean_x += kfi_log(len) / (double)n;
    mean_y += kfi_log(kfi_limits_work(l, len)) / (double)n;
  }
  for (int64_t i = 0; i < n; i++) {
    double len = (double)bucket[i].len, x = kfi_log(len) - mean_x;
    xx += x * x;
    xy += x * (kfi_log(kfi_limits_work(l, len)) - mean_y);
  }
  return xx > 0 ? fmin(fmax(xy / xx, LEAST_P), MOST_P) : 1;
}

static double whole_power(double x, int32_t n) {
  double y = 1;
  for (; n > 0; n /= 2, x *= x)
    if (n % 2) y *= x;
  return y;
}

/* Works of batches, each with the number of batches that have it. */
typedef struct step_works {
  int64_t n;
  double work[2 * MERGED], weight[2 * MERGED];
  uint64_t key[2 * MERGED], spare[2 * MERGED];
} step_works;

static void add_work(step_works *d, double work, double weight) {
  if (!(weight > 0)) return;
  d->key[d->n] = kfi_sort_real(fmin(work, 1e38)) | (uint64_t)d->n;
  d->work[d->n] = work;
  d->weight[d->n++] = weight;
}

/*
** The expected imbalance, E[1 - mean/max] of n_ranks batches drawn at random. Let F_k be the share
** of batches up to the k-th smallest work w_k, and m_k their mean. The largest of n draws is at
** most w_k with probability F_k^n, and given that, the mean of the draws is m_k. So
**
**     E[mean/max] = sum over k of (F_k^n m_k - F_(k-1)^n m_(k-1)) / w_k.
*/
static double imbalance(step_works *d, int32_t n_ranks) {
  double total = 0, weight = 0, sum = 0, share = 0, before = 0;
  const uint64_t *key = kfi_sort_high(d->key, d->spare, d->n);
  for (int64_t k = 0; k < d->n; k++) total += d->weight[k];
  for (int64_t k = 0; k < d->n; k++) {
    uint32_t i = (uint32_t)key[k];
    weight += d->weight[i];
    sum += d->weight[i] * d->work[i];
    double now = whole_power(weight / total, n_ranks) * (sum / weight);
    share += (now - before) / d->work[i];
    before = now;
  }
  return 1 - share;
}

/* At most MERGED buckets that stand for all: neighbours together have the length of the middle
** one. */
static int64_t merge(const kf_bucket *bucket, int64_t n, kf_bucket *merged) {
  int64_t n_merged = n < MERGED ? n : MERGED;
  for (int64_t g = 0; g < n_merged; g++) {
    int64_t first = g * n / n_merged, end = (g + 1) * n / n_merged;
    merged[g] = (kf_bucket){.len = bucket[(first + end) / 2].len};
    for (int64_t i = first; i < end; i++) merged[g].count += bucket[i].count;
  }
  return n_merged;
}

/*
** The p up to which no batch of several samples is above M_comp by the cost. So many samples of a
** length are within it, n; floor((match_len / len)^p) must not be more, so p < log(n + 1) /
** log(match_len / len), unless memory holds no more than n.
*/
static double most_p(const kfi_limits *l, const kf_bucket *bucket, int64_t n) {
  double most = MOST_P;
  for (int64_t i = 0; i < n; i++) {
    double len = (double)bucket[i].len;
    double within = fmax(1, floor(l->comp_s / kfi_limits_work(l, len) * (1 + KFI_ROUNDING)));
    if (len < l->match_len && floor(l->mem_tokens / len) > within)
      most = fmin(most, BELOW * kfi_log(within + 1) / kfi_log(l->match_len / len));
  }
  return most;
}

/* The p of the grid with the least imbalance that keeps to M_comp; the fitted one unless one is
** truly better. Where none keeps to it, the least. */
static double best_p(kfi_limits l, const kf_bucket *bucket, int64_t n, int32_t n_ranks) {
  double best = LEAST_P, least = 2, fitted = l.p, most = most_p(&l, bucket, n);
  kf_bucket merged[MERGED];
  step_works d;
  n = merge(bucket, n, merged);
  for (int step = -1; step <= P_STEPS; step++) { /* -1: the fitted one */
    l.p = step < 0 ? fitted : LEAST_P + (MOST_P - LEAST_P) * step / P_STEPS;
    if (l.p > most) continue;
    d.n = 0;
    for (int64_t g = 0; g < n; g++) {
      int64_t count = merged[g].count, size = kfi_bucket_size(&l, merged[g].len);
      double work = kfi_limits_work(&l, (double)merged[g].len);
      add_work(&d, work * (double)size, (double)(count / size));
      add_work(&d, work * (double)(count % size), count % size > 0);
    }
    double now = imbalance(&d, n_ranks);
    if (now < least - 1e-9) best = l.p, least = now;
  }
  return best;
}

kf_status kfi_bucket_limits(const kf_bucket_options *o, const kf_bucket *bucket, int64_t n,
                            kfi_limits *out) {
  const kf_cost *c = &o->cost;
  kfi_limits l = {.rule = o->rule,
                  .linear_s = c->linear_s,
                  .quadratic_s = c->quadratic_s,
                  .constant_s = c->constant_s,
                  .mem_tokens = (double)o->mem_tokens};
  if (o->match_len) {
    l.match_len = (double)o->match_len;
    l.comp_s = kfi_limits_work(&l, l.match_len);
  } else if (o->comp_s > 0) {
    l.comp_s = o->comp_s;
    l.match_len = kfi_limits_len(&l, l.comp_s);
    if (!(l.match_len > 0) && o->rule != KF_RULE_EQUAL_TOKEN)
      return kfi_fail(KF_EINFEASIBLE,
                      "comp_s is %g, expected more than constant_s, the %g seconds that any "
                      "sequence takes",
                      o->comp_s, c->constant_s);
  }
  if (o->rule == KF_RULE_POWER) {
    l.p = o->power == KF_POWER_GIVEN ? o->p : fitted_p(&l, bucket, n);
    if (o->power == KF_POWER_BEST) l.p = best_p(l, bucket, n, o->n_ranks);
  }
  *out = l;
  return KF_OK;
}

/* --------------------------------------------------------------------------------- sizes */

int64_t kfi_bucket_size(const kfi_limits *l, int64_t len) {
  double most = floor(l->mem_tokens / (double)len), by_work = most;
  if (l->rule == KF_RULE_POWER)
    by_work = kfi_exp(l->p * kfi_log(l->match_len / (double)len));
  else if (l->rule != KF_RULE_EQUAL_TOKEN)
    by_work = l->comp_s / kfi_limits_work(l, (double)len);
  most = fmin(most, floor(by_work * (1 + KFI_ROUNDING)));
  return most > 1 ? (int64_t)most : 1;
}

void kfi_bucket_fill(const kfi_limits *l, kf_bucket *bucket, int64_t n, kf_buckets *out) {
  for (int64_t i = 0; i < n; i++) {
    bucket[i].batch_size = kfi_bucket_size(l, bucket[i].len);
    bucket[i].work_s = kfi_limits_work(l, (double)bucket[i].len);
  }
  *out = (kf_buckets){.rule = l->rule,
                      .n = n,
                      .bucket = bucket,
                      .mem_tokens = (int64_t)l->mem_tokens,
                      .comp_s = l->comp_s,
                      .match_len = l->match_len,
                      .p = l->p};
}

kf_status kf_bucket_create(const kf_bucket_options *options, const int64_t *len,
                           const int64_t *count, int64_t n, kf_buckets **out) {
  if (!options || !out) return kfi_fail(KF_EINVAL, "kf_bucket_create: a pointer is NULL");
  uint64_t *key = NULL;
  kf_buckets *buckets = NULL;
  kfi_limits limits;
  int64_t n_buckets;
  kf_status status;
  if ((status = kfi_bucket_check(options))) return status;
  if ((status = kfi_bucket_check_lens(options, len, count, n))) return status;
  size_t n_bytes = 2 * ((size_t)n + 1) * sizeof *key;
  if (!(key = malloc(n_bytes))) return kfi_fail_memory(n_bytes, "sorting lengths");
  const uint64_t *sorted = kfi_bucket_sort(len, n, key, key + n, &n_buckets);
  n_bytes = sizeof *buckets + (size_t)n_buckets * sizeof(kf_bucket);
  if (!(buckets = malloc(n_bytes))) {
    status = kfi_fail_memory(n_bytes, "buckets");
    goto fail;
  }
  kf_bucket *bucket = (kf_bucket *)(buckets + 1);
  kfi_bucket_gather(len, count, n, sorted, bucket, NULL);
  if ((status = kfi_bucket_limits(options, bucket, n_buckets, &limits))) goto fail;
  kfi_bucket_fill(&limits, bucket, n_buckets, buckets);
  free(key);
  *out = buckets;
  return KF_OK;

fail:
  free(key);
  free(buckets);
  return status;
}

void kf_bucket_free(kf_buckets *buckets) { free(buckets); }

/* -------------------------------------------------------------------------------- memory */

#define KEPT 17 /* widths of a token that a block keeps: 34 bytes of 2-byte elements and width 1 */

kf_status kf_activations_static(const kf_model *model, double elem_bytes, int recompute,
                                kf_activations *out) {
  if (!model || !out) return kfi_fail(KF_EINVAL, "kf_activations_static: a pointer is NULL");
  if (model->dim < 1 || model->layers < 1)
    return kfi_fail(KF_EINVAL, "model d=%" PRId32 ",layers=%" PRId32 ": expected 1 or more of both",
                    model->dim, model->layers);
  if (!(elem_bytes > 0) || elem_bytes > 64)
    return kfi_fail(KF_EINVAL, "elem_bytes is %g, expected above 0 and at most 64", elem_bytes);
  double widths = recompute ? (double)model->layers + KEPT : (double)model->layers * KEPT;
  *out = (kf_activations){.token_bytes = widths * model->dim * elem_bytes};
  return KF_OK;
}

kf_status kf_activations_tokens(const kf_activations *a, double limit_bytes, int64_t *mem_tokens) {
  if (!a || !mem_tokens) return kfi_fail(KF_EINVAL, "kf_activations_tokens: a pointer is NULL");
  if (!(a->token_bytes > 0) || isinf(a->token_bytes))
    return kfi_fail(KF_EINVAL, "token_bytes is %g, expected a finite number above 0",
                    a->token_bytes);
  if (!(a->fixed_bytes >= 0) || isinf(a->fixed_bytes))
    return kfi_fail(KF_EINVAL, "fixed_bytes is %g, expected a finite number from 0 on",
                    a->fixed_bytes);
  if (!(limit_bytes > 0) || isinf(limit_bytes))
    return kfi_fail(KF_EINVAL, "a limit of %g bytes, expected a finite number above 0",
                    limit_bytes);
  double tokens = floor((limit_bytes - a->fixed_bytes) / a->token_bytes);
  if (!(tokens >= 1))
    return kfi_fail(KF_EINFEASIBLE,
                    "%g bytes hold no token beside the fixed %g bytes: a token takes %g",
                    limit_bytes, a->fixed_bytes, a->token_bytes);
  *mem_tokens = tokens < (double)KF_MAX_TOKENS ? (int64_t)tokens : KF_MAX_TOKENS;
  return KF_OK;
}
