/* SPDX-License-Identifier: Apache-2.0 */
/*
** The sampler's promises, computed a second time, slowly: random data sets, a record of what an
** epoch handed out, and what the header says of it. Nothing here knows how the sampler works.
**
** Batch b of a record belongs to step b / n_ranks and rank b % n_ranks, and has the samples
** sample[off[b]] .. sample[off[b + 1] - 1].
*/
#ifndef SAMPLER_TWIN_H
#define SAMPLER_TWIN_H

#include <inttypes.h>
#include <stdlib.h>

#include "dice.h"

enum { TWIN_SAMPLES = 3000, TWIN_RANKS = 40 };

/* Work is summed in another order than the sampler's, so compared to this. */
#define TWIN_EPS 1e-9

typedef struct twin {
  uint64_t seed;
  int number;       /* of the case */
  const char *what; /* is being looked at */
  kf_sampler_options options;
  int64_t n;
  int64_t len[TWIN_SAMPLES];
} twin;

#define MUST(twin, condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      twin_complain(twin);                                                                         \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static inline void twin_complain(const twin *t) {
  static const char *const modes[] = {"random", "same", "similar"};
  static const char *const powers[] = {"best", "fitted", "given"};
  const kf_bucket_options *b = &t->options.bucket;
  printf("seed %" PRIu64 ", case %d: %d samples, %d ranks, %s (p %s), %s%s, M_mem %" PRId64
         ", match_len %" PRId64 ", comp_s %.17g, cost %.17g %.17g %.17g, window %d\n%s: ",
         t->seed, t->number, (int)t->n, (int)b->n_ranks, kf_rule_name(b->rule), powers[b->power],
         modes[t->options.mode], t->options.keep_all ? ", keep_all" : "", b->mem_tokens,
         b->match_len, b->comp_s, b->cost.linear_s, b->cost.quadratic_s, b->cost.constant_s,
         (int)t->options.window, t->what ? t->what : "");
}

static inline bool twin_close(double a, double b) {
  return fabs(a - b) <= TWIN_EPS * fmax(fabs(a), fabs(b));
}

/* ------------------------------------------------------------------ random problems */

static inline int64_t twin_longest(const twin *t) {
  int64_t most = 1;
  for (int64_t i = 0; i < t->n; i++)
    if (t->len[i] > most) most = t->len[i];
  return most;
}

static inline void twin_lengths(dice *d, twin *t) {
  int64_t kind = dice_int(d, 7), some[12];
  t->n = dice_one_in(d, 3) ? dice_int(d, 60) : dice_int(d, TWIN_SAMPLES + 1);
  if (dice_one_in(d, 20)) t->n = dice_int(d, 2);
  int64_t n_some = kind == 1 ? 1 : 2 + dice_int(d, 11), first = 1 + dice_int(d, 3000);
  for (int i = 0; i < 12; i++) some[i] = 1 + dice_int(d, dice_one_in(d, 3) ? 100000 : 5000);
  for (int64_t i = 0; i < t->n; i++) {
    int64_t tail = dice_one_in(d, 12) ? 80000 : 1500, throw = dice_int(d, 1000000);
    switch (kind) {
    case 0: /* few, of any frequency */
    case 1: t->len[i] = some[throw % n_some]; break;
    case 2: t->len[i] = first + i * 7; break; /* all distinct */
    case 3: t->len[i] = 1 + throw % 4; break;
    case 4: t->len[i] = 1 + throw % 20000; break;
    default: t->len[i] = 1 + throw % tail; break; /* a heavy tail */
    }
  }
}

static inline void twin_cost(dice *d, kf_cost *cost) {
  *cost = (kf_cost){0}; /* only the three coefficients are the sampler's business */
  if (dice_one_in(d, 2)) {
    static const char *const models[] = {"flux", "wan1.3b", "DiT-S"};
    double gamma = dice_real(d, 0.2, 1.5);
    if (kf_cost_preset(models[dice_int(d, 3)], NULL, 0, gamma, cost)) abort();
  } else {
    cost->linear_s = dice_real(d, 1e-7, 1e-4);
    cost->quadratic_s = cost->linear_s / dice_real(d, 100, 100000);
    if (dice_one_in(d, 3)) cost->quadratic_s = 0;
    if (cost->quadratic_s > 0 && dice_one_in(d, 3)) cost->linear_s = 0;
  }
  if (dice_one_in(d, 2)) cost->constant_s = dice_real(d, 0, 2) * kf_cost_work(cost, 500);
}

static inline void twin_limits(dice *d, twin *t) {
  kf_bucket_options *b = &t->options.bucket;
  int64_t longest = twin_longest(t), match = 1 + dice_int(d, longest);
  b->mem_tokens = longest + dice_int(d, 1 + longest * (1 + dice_int(d, 12)));
  if (dice_one_in(d, 8)) b->mem_tokens = longest;
  if (dice_one_in(d, 16)) b->mem_tokens = KF_MAX_TOKENS;
  if (dice_one_in(d, 2)) match = longest;
  if (dice_one_in(d, 4)) match = longest + dice_int(d, 5 * longest);
  if (dice_one_in(d, 8) && t->n > 0) match = t->len[dice_int(d, t->n)];
  bool neither = b->rule == KF_RULE_EQUAL_TOKEN && dice_one_in(d, 2);
  if (neither) return;
  if (dice_one_in(d, 2))
    b->match_len = match;
  else
    b->comp_s = kf_cost_work(&b->cost, match) * dice_real(d, 1, 3);
}

static inline void twin_random(twin *t, uint64_t seed, int number) {
  dice d = {seed << 32 ^ (uint64_t)number};
  kf_sampler_options *o = &t->options;
  t->seed = seed;
  t->number = number;
  t->what = NULL;
  *o = (kf_sampler_options){0};
  o->bucket.rule = (kf_rule)dice_int(&d, 4);
  twin_lengths(&d, t);
  twin_cost(&d, &o->bucket.cost);
  twin_limits(&d, t);
  o->bucket.power = (kf_power)dice_int(&d, 3);
  if (o->bucket.power == KF_POWER_GIVEN) o->bucket.p = dice_real(&d, 0.5, 3);
  o->bucket.n_ranks = 1 + (int32_t)dice_int(&d, dice_one_in(&d, 3) ? 4 : TWIN_RANKS);
  o->mode = (kf_step_mode)dice_int(&d, 3);
  o->seed = dice_next(&d);
  if (!dice_one_in(&d, 3)) o->window = 1 + dice_int(&d, dice_one_in(&d, 2) ? 50 : 2000);
  o->keep_all = dice_one_in(&d, 2);
}

static inline kf_sampler *twin_sampler(const twin *t) {
  kf_sampler *s = NULL;
  kf_status status = kf_sampler_create(&t->options, t->len, t->n, &s);
  MUST(t, status == KF_OK && s, "create: %s", kf_last_error());
  return s;
}

/* ------------------------------------------------------------------------ a record */

typedef struct record {
  int64_t n_steps, n_batches, n_samples;
  int32_t n_ranks;
  int64_t off[TWIN_SAMPLES + 1], sample[TWIN_SAMPLES];
  bool used[TWIN_SAMPLES];
} record;

static inline void record_begin(record *r, int32_t n_ranks) {
  memset(r, 0, sizeof *r);
  r->n_ranks = n_ranks;
}

/* Of a batch, by a cost. */
static inline double record_work(const twin *t, const record *r, int64_t batch, const kf_cost *c) {
  double sum = 0;
  for (int64_t i = r->off[batch]; i < r->off[batch + 1]; i++)
    sum += kf_cost_work(c, t->len[r->sample[i]]);
  return sum;
}

static inline int64_t record_tokens(const twin *t, const record *r, int64_t batch) {
  int64_t sum = 0;
  for (int64_t i = r->off[batch]; i < r->off[batch + 1]; i++) sum += t->len[r->sample[i]];
  return sum;
}

/* Take one step and look at its form. False: there was none left. */
static inline bool record_step(const twin *t, kf_sampler *s, int64_t epoch, record *r) {
  const kf_sampled *k = NULL;
  int64_t step = kf_sampler_step(s);
  MUST(t, step == r->n_steps, "the next step is %" PRId64 " after %" PRId64, step, r->n_steps);
  kf_status status = kf_sampler_next(s, &k);
  MUST(t, status == KF_OK, "next: %s", kf_last_error());
  if (!k) {
    MUST(t, step == kf_sampler_steps(s), "ends at step %" PRId64 " of %" PRId64, step,
         kf_sampler_steps(s));
    MUST(t, kf_sampler_step(s) == step, "the step after the last is counted");
    return false;
  }
  MUST(t, k->step == step && k->epoch == epoch, "step %" PRId64 " of epoch %" PRId64, k->step,
       k->epoch);
  MUST(t, kf_sampler_step(s) == step + 1, "step %" PRId64 " follows", kf_sampler_step(s));
  const kf_batch *b = &k->batch;
  MUST(t, b->n_ranks == r->n_ranks && b->rank_off[0] == 0 && b->rank_off[b->n_ranks] == b->n_seqs,
       "not a batch of %d ranks", (int)r->n_ranks);
  MUST(t, !b->factor && !b->profile, "factors or profiles");
  for (int32_t q = 0; q < b->n_ranks; q++) {
    MUST(t, b->rank_off[q] < b->rank_off[q + 1], "rank %d has nothing in step %" PRId64, (int)q,
         step);
    for (int64_t i = b->rank_off[q]; i < b->rank_off[q + 1]; i++) {
      int64_t sample = k->sample[i];
      MUST(t, sample >= 0 && sample < t->n, "sample %" PRId64, sample);
      MUST(t, !r->used[sample], "sample %" PRId64 " a second time, in step %" PRId64, sample, step);
      MUST(t, b->len[i] == t->len[sample],
           "sample %" PRId64 " has %" PRId64 " tokens, given %" PRId64, sample, b->len[i],
           t->len[sample]);
      r->used[sample] = true;
      r->sample[r->n_samples++] = sample;
    }
    r->off[++r->n_batches] = r->n_samples;
  }
  r->n_steps++;
  return true;
}

/* From wherever both are to the end of the epoch. */
static inline void record_rest(const twin *t, kf_sampler *s, int64_t epoch, record *r) {
  while (record_step(t, s, epoch, r)) continue;
  MUST(t, r->n_steps == kf_sampler_steps(s), "%" PRId64 " steps, promised %" PRId64, r->n_steps,
       kf_sampler_steps(s));
}

/* Up to, not including, a step. */
static inline void record_until(const twin *t, kf_sampler *s, int64_t epoch, int64_t step,
                                record *r) {
  while (r->n_steps < step)
    MUST(t, record_step(t, s, epoch, r), "there is no step %" PRId64, r->n_steps);
}

/* Whether steps first .. last-1 are the same. */
static inline bool record_same(const record *a, const record *b, int64_t first, int64_t last) {
  if (a->n_steps < last || b->n_steps < last || a->n_ranks != b->n_ranks) return false;
  int64_t b0 = first * a->n_ranks, b1 = last * a->n_ranks;
  for (int64_t i = b0; i <= b1; i++)
    if (a->off[i] - a->off[b0] != b->off[i] - b->off[b0]) return false;
  size_t n = (size_t)(a->off[b1] - a->off[b0]);
  return memcmp(a->sample + a->off[b0], b->sample + b->off[b0], n * sizeof *a->sample) == 0;
}

static inline bool record_equal(const record *a, const record *b) {
  return a->n_steps == b->n_steps && record_same(a, b, 0, a->n_steps);
}

/* -------------------------------------------------------------------------- buckets */

static inline int twin_rising(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* floor(q), but where q is a whole number but for rounding: `got`, if that is about as many. */
static inline int64_t twin_floor(double q, int64_t got) {
  double whole = floor(q + 0.5), eps = TWIN_EPS * whole;
  if (whole > 0 && fabs(q - whole) <= eps && fabs((double)got - whole) <= 1 + eps) return got;
  return q > 0x1p62 ? INT64_MAX : (int64_t)floor(q);
}

/* The formula of section 18. */
static inline int64_t twin_batch_size(const kf_buckets *b, const kf_cost *cost, int64_t len,
                                      int64_t got) {
  int64_t by_memory = b->mem_tokens / len, by_work = INT64_MAX;
  if (b->rule == KF_RULE_POWER)
    by_work = twin_floor(pow(b->match_len / (double)len, b->p), got);
  else if (b->rule != KF_RULE_EQUAL_TOKEN)
    by_work = twin_floor(b->comp_s / kf_cost_work(cost, len), got);
  int64_t least = by_memory < by_work ? by_memory : by_work;
  return least > 1 ? least : 1;
}

static inline double twin_slope(const kf_buckets *b) {
  double x = 0, y = 0, xx = 0, xy = 0, n = (double)b->n;
  for (int64_t i = 0; i < b->n; i++) {
    x += log((double)b->bucket[i].len) / n;
    y += log(b->bucket[i].work_s) / n;
  }
  for (int64_t i = 0; i < b->n; i++) {
    double dx = log((double)b->bucket[i].len) - x;
    xx += dx * dx;
    xy += dx * (log(b->bucket[i].work_s) - y);
  }
  return xy / xx;
}

static inline void twin_check_p(const twin *t, const kf_bucket_options *o, const kf_buckets *b) {
  if (o->rule != KF_RULE_POWER) {
    MUST(t, b->p == 0, "p is %g, but the rule has none", b->p);
    return;
  }
  MUST(t, b->p > 0 && isfinite(b->p), "p is %g", b->p);
  if (o->power == KF_POWER_GIVEN) MUST(t, b->p == o->p, "p is %.17g, given %.17g", b->p, o->p);
  if (o->power == KF_POWER_GIVEN) return;
  double slope = b->n > 1 ? twin_slope(b) : 1, hundredths = b->p * 100;
  bool fitted = fabs(b->p - fmin(fmax(slope, 0.5), 3)) < 1e-6;
  bool of_grid = b->p >= 0.5 && b->p <= 3 && fabs(hundredths - floor(hundredths + 0.5)) < 1e-9;
  MUST(t, fitted || (o->power == KF_POWER_BEST && of_grid), "p is %.17g, the slope %.17g", b->p,
       slope);
}

/* Whether the buckets are those of the lengths, the limits those of the options. */
static inline void twin_check_buckets(const twin *t, const kf_bucket_options *o,
                                      const kf_buckets *b) {
  static int64_t sorted[TWIN_SAMPLES];
  int64_t n = 0;
  memcpy(sorted, t->len, (size_t)t->n * sizeof *sorted);
  qsort(sorted, (size_t)t->n, sizeof *sorted, twin_rising);
  MUST(t, b->rule == o->rule && b->mem_tokens == o->mem_tokens, "other buckets");
  if (o->match_len > 0 && o->rule != KF_RULE_EQUAL_TOKEN) {
    MUST(t, twin_close(b->comp_s, kf_cost_work(&o->cost, o->match_len)), "M_comp %.17g", b->comp_s);
    MUST(t, b->match_len == (double)o->match_len, "match_len %.17g", b->match_len);
  } else if (o->comp_s > 0 && o->rule != KF_RULE_EQUAL_TOKEN) {
    double m = b->match_len, a = o->cost.linear_s, q = o->cost.quadratic_s;
    MUST(t, b->comp_s == o->comp_s, "M_comp %.17g", b->comp_s);
    MUST(t, twin_close(a * m + q * m * m + o->cost.constant_s, o->comp_s),
         "the work of %.17g tokens is not M_comp", m);
  }
  twin_check_p(t, o, b);
  for (int64_t i = 0, k; i < t->n; i = k, n++) {
    for (k = i; k < t->n && sorted[k] == sorted[i];) k++;
    const kf_bucket *u = &b->bucket[n];
    MUST(t, n < b->n && u->len == sorted[i] && u->count == k - i,
         "bucket %" PRId64 " is not %" PRId64 " times %" PRId64, n, k - i, sorted[i]);
    MUST(t, twin_close(u->work_s, kf_cost_work(&o->cost, u->len)), "work %.17g", u->work_s);
    int64_t want = twin_batch_size(b, &o->cost, u->len, u->batch_size);
    MUST(t, u->batch_size == want,
         "batches of %" PRId64 " samples of %" PRId64 " tokens, expected "
         "%" PRId64,
         u->batch_size, u->len, want);
  }
  MUST(t, n == b->n, "%" PRId64 " buckets, expected %" PRId64, b->n, n);
}

static inline const kf_bucket *twin_bucket(const kf_buckets *b, int64_t len) {
  int64_t low = 0, high = b->n;
  while (low + 1 < high) {
    int64_t middle = (low + high) / 2;
    if (b->bucket[middle].len <= len)
      low = middle;
    else
      high = middle;
  }
  return &b->bucket[low];
}

/* -------------------------------------------------------------------------- figures */

/* What a batch counts as. */
typedef struct twin_batch {
  int64_t n, tokens, len; /* len: of the first */
  double work;
  bool one_len, over, underfilled;
} twin_batch;

static inline twin_batch twin_batch_of(const twin *t, const record *r, int64_t batch,
                                       const kf_buckets *b, const kf_cost *cost) {
  twin_batch k = {.n = r->off[batch + 1] - r->off[batch], .one_len = true};
  k.tokens = record_tokens(t, r, batch);
  k.work = record_work(t, r, batch, cost);
  k.len = t->len[r->sample[r->off[batch]]];
  for (int64_t i = r->off[batch]; i < r->off[batch + 1]; i++)
    if (t->len[r->sample[i]] != k.len) k.one_len = false;
  k.over = k.n == 1 && b->comp_s > 0 && k.work > b->comp_s * (1 + TWIN_EPS);
  if (b->rule != KF_RULE_PACKED)
    k.underfilled = k.n < twin_bucket(b, k.len)->batch_size;
  else
    k.underfilled = (double)k.tokens < 0.9 * (double)b->mem_tokens && k.work < 0.9 * b->comp_s;
  return k;
}

/* Of a whole epoch of one cost. dropped_batches and split_batches cannot be seen in a record. */
static inline kf_epoch twin_figures(const twin *t, const record *r, const kf_buckets *b,
                                    const kf_cost *cost) {
  kf_epoch e = {.n_steps = r->n_steps, .n_batches = r->n_batches, .n_samples = r->n_samples};
  double mem = (double)b->mem_tokens;
  for (int64_t i = 0; i < t->n; i++) {
    e.dropped_samples += !r->used[i];
    if (!r->used[i]) e.dropped_tokens += t->len[i];
  }
  for (int64_t s = 0; s < r->n_steps; s++) {
    double sum = 0, most = 0;
    bool mixed = false;
    for (int32_t q = 0; q < r->n_ranks; q++) {
      twin_batch k = twin_batch_of(t, r, s * r->n_ranks + q, b, cost);
      mixed = mixed || k.len != t->len[r->sample[r->off[s * r->n_ranks]]];
      e.n_tokens += k.tokens;
      e.over_batches += k.over;
      e.underfilled_batches += k.underfilled;
      e.mean_memory_use += (double)k.tokens / mem / (double)r->n_batches;
      e.max_memory_use = fmax(e.max_memory_use, (double)k.tokens / mem);
      if (b->comp_s > 0) {
        e.mean_compute_use += k.work / b->comp_s / (double)r->n_batches;
        e.max_compute_use = fmax(e.max_compute_use, k.work / b->comp_s);
      }
      sum += k.work;
      most = fmax(most, k.work);
    }
    if (most > 0) e.imbalance_rate += (1 - sum / r->n_ranks / most) / (double)r->n_steps;
    e.predicted_s += most;
    e.mixed_steps += mixed && t->options.mode == KF_STEPS_SAME && b->rule != KF_RULE_PACKED;
  }
  if (e.predicted_s > 0) e.predicted_tokens_per_s = (double)e.n_tokens / e.predicted_s;
  return e;
}

#define TWIN_COUNT(name)                                                                           \
  MUST(t, got->name == want->name, #name " %" PRId64 ", counted %" PRId64, got->name, want->name)
#define TWIN_REAL(name)                                                                            \
  MUST(t, fabs(got->name - want->name) <= TWIN_EPS * fmax(fabs(want->name), 1e-3),                 \
       #name " %.17g, computed %.17g", got->name, want->name)

/* What is handed out, whatever costs there were. */
static inline void twin_same_counts(const twin *t, const kf_epoch *got, const kf_epoch *want) {
  TWIN_COUNT(n_steps);
  TWIN_COUNT(n_batches);
  TWIN_COUNT(n_samples);
  TWIN_COUNT(n_tokens);
  TWIN_COUNT(dropped_samples);
  TWIN_COUNT(dropped_tokens);
  MUST(t, got->dropped_batches < t->options.bucket.n_ranks && got->dropped_batches >= 0,
       "%" PRId64 " batches dropped", got->dropped_batches);
  MUST(t, (got->dropped_batches > 0) == (got->dropped_samples > 0),
       "%" PRId64 " batches dropped, of %" PRId64 " samples", got->dropped_batches,
       got->dropped_samples);
  MUST(t,
       t->options.keep_all || got->split_batches == 0 || t->options.bucket.rule == KF_RULE_PACKED,
       "%" PRId64 " batches cut", got->split_batches);
}

static inline void twin_same_figures(const twin *t, const kf_epoch *got, const kf_epoch *want) {
  twin_same_counts(t, got, want);
  TWIN_COUNT(underfilled_batches);
  TWIN_COUNT(over_batches);
  TWIN_COUNT(mixed_steps);
  TWIN_REAL(imbalance_rate);
  MUST(t, got->imbalance_rate >= 0 && !signbit(got->imbalance_rate), "imbalance_rate %g",
       got->imbalance_rate);
  TWIN_REAL(mean_memory_use);
  TWIN_REAL(max_memory_use);
  TWIN_REAL(mean_compute_use);
  TWIN_REAL(max_compute_use);
  TWIN_REAL(predicted_s);
  TWIN_REAL(predicted_tokens_per_s);
}

/* --------------------------------------------------------------------------- limits */

/* No batch of the steps from `first` on breaks a limit. `slack`: of M_comp. */
static inline void twin_check_limits(const twin *t, const record *r, int64_t first,
                                     const kf_buckets *b, const kf_cost *cost, double slack) {
  for (int64_t i = first * r->n_ranks; i < r->n_batches; i++) {
    twin_batch k = twin_batch_of(t, r, i, b, cost);
    MUST(t, k.tokens <= b->mem_tokens, "%" PRId64 " tokens in step %" PRId64, k.tokens,
         i / r->n_ranks);
    if (b->rule == KF_RULE_PACKED) {
      MUST(t, k.n == 1 || k.work <= b->comp_s * (1 + slack),
           "%" PRId64 " samples of %.17g s in step %" PRId64 ", M_comp is %.17g", k.n, k.work,
           i / r->n_ranks, b->comp_s);
      continue;
    }
    MUST(t, k.one_len, "a batch of several lengths in step %" PRId64, i / r->n_ranks);
    MUST(t, k.n <= twin_bucket(b, k.len)->batch_size,
         "%" PRId64 " samples of %" PRId64 " tokens in "
         "step %" PRId64,
         k.n, k.len, i / r->n_ranks);
    if (b->rule == KF_RULE_TWO_TERM)
      MUST(t, k.n == 1 || k.work <= b->comp_s * (1 + slack),
           "%.17g s in step %" PRId64 ", M_comp is %.17g", k.work, i / r->n_ranks, b->comp_s);
    if (b->rule == KF_RULE_POWER) {
      double share = (double)k.n * pow((double)k.len / b->match_len, b->p);
      MUST(t, k.n == 1 || share <= 1 + slack, "%.17g of M_comp in step %" PRId64, share,
           i / r->n_ranks);
    }
  }
}

typedef struct twin_range {
  double low, high;
} twin_range;

/* By their middles: of two that share an end but for rounding, the lower one comes first. */
static inline int twin_range_rising(const void *a, const void *b) {
  const twin_range *x = a, *y = b;
  double middle[2] = {x->low + x->high, y->low + y->high};
  return (middle[0] > middle[1]) - (middle[0] < middle[1]);
}

/* Ranges that touch at their ends only, to six digits: nobody needs more to sort by work. */
static inline void twin_check_apart(const twin *t, twin_range *range, int64_t n, const char *of) {
  qsort(range, (size_t)n, sizeof *range, twin_range_rising);
  for (int64_t i = 1; i < n; i++)
    MUST(t, range[i - 1].high <= range[i].low * (1 + 1e-6),
         "%s of a step from %.17g to %.17g, of another from %.17g", of, range[i - 1].low,
         range[i - 1].high, range[i].low);
}

/* Who shares a step, from step `first` on. */
static inline void twin_check_mode(const twin *t, const record *r, int64_t first,
                                   const kf_buckets *b, const kf_cost *cost) {
  static twin_range work[TWIN_SAMPLES], mixed[TWIN_SAMPLES];
  int64_t n_work = 0, n_mixed = 0;
  for (int64_t s = first; s < r->n_steps; s++) {
    twin_range w = {INFINITY, 0}, l = {INFINITY, 0};
    for (int32_t q = 0; q < r->n_ranks; q++) {
      twin_batch k = twin_batch_of(t, r, s * r->n_ranks + q, b, cost);
      w.low = fmin(w.low, k.work);
      w.high = fmax(w.high, k.work);
      l.low = fmin(l.low, (double)k.len);
      l.high = fmax(l.high, (double)k.len);
    }
    work[n_work++] = w;
    if (l.low < l.high) mixed[n_mixed++] = l;
  }
  bool packed = b->rule == KF_RULE_PACKED;
  if (t->options.mode == KF_STEPS_SIMILAR || (packed && t->options.mode == KF_STEPS_SAME))
    twin_check_apart(t, work, n_work, "work");
  else if (t->options.mode == KF_STEPS_SAME)
    twin_check_apart(t, mixed, n_mixed, "lengths");
}

#endif
