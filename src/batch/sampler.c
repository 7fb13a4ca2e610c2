/* SPDX-License-Identifier: Apache-2.0 */
/*
** The sampler: lengths in, each rank's samples of each step out.
**
** The whole epoch is arranged when it begins (arrange.c), so that handing out a step is a copy. A
** change of the cost arranges what has not been handed out anew. All that led here is the seed, the
** epoch, the cost it began with and the list of changes: that is what is saved.
*/
#include "sampler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../numbers.h"

#define MOST_EPOCHS ((int64_t)1 << 32)
#define MOST_WINDOW ((int64_t)1 << 20)
#define NOTICED 0.01 /* packed: a change of a sample's share of M_comp that is worth a new order */
#define FULL_ENOUGH 0.9 /* of one limit: a packed batch that is not underfilled */

/* ----------------------------------------------------------------------------- create */

static kf_status check_options(const kf_sampler_options *o) {
  kf_status status = kfi_bucket_check(&o->bucket);
  if (status) return status;
  if ((int)o->mode < 0 || o->mode > KF_STEPS_SIMILAR)
    return kfi_fail(KF_EINVAL, "mode is %d, expected a kf_step_mode from 0 to %d", (int)o->mode,
                    KF_STEPS_SIMILAR);
  if (o->window < 0 || o->window > MOST_WINDOW)
    return kfi_fail(KF_EINVAL,
                    "window is %" PRId64 ", expected 1 to %" PRId64 " samples, or 0 for %d",
                    o->window, MOST_WINDOW, KFI_WINDOW);
  return KF_OK;
}

static uint64_t hash_lens(uint64_t hash, const int64_t *len, int64_t n) {
  for (int64_t i = 0; i < n; i++) hash = kfi_mix64(hash ^ (uint64_t)len[i]);
  return hash; /* by words: FNV goes by bytes, and ten million lengths are many */
}

static uint64_t hash_kind(const kf_sampler_options *o, const int64_t *len, int64_t n) {
  const kf_bucket_options *b = &o->bucket;
  bool packed = b->rule == KF_RULE_PACKED, power = b->rule == KF_RULE_POWER;
  int64_t window = o->window ? o->window : KFI_WINDOW;
  const int64_t whole[] = {b->rule,          b->mem_tokens,
                           b->match_len,     power ? (int64_t)b->power : 0,
                           b->n_ranks,       o->mode,
                           (int64_t)o->seed, packed ? window : 0,
                           o->keep_all != 0, n};
  const double real[] = {b->comp_s, power && b->power == KF_POWER_GIVEN ? b->p : 0};
  uint64_t h = kfi_hash(KF_HASH_START, whole, sizeof whole / sizeof *whole);
  h = kfi_hash_reals(h, real, 2);
  return hash_lens(h, len, n);
}

static kf_status reserve(kf_sampler *s) {
  size_t n = (size_t)s->n_samples;
  s->bucket_of = malloc((n + 1) * sizeof *s->bucket_of);
  s->sample = malloc((n + 1) * sizeof *s->sample);
  s->off = malloc((n + 1) * sizeof *s->off);
  if (s->bucket_of && s->sample && s->off) return KF_OK;
  return kfi_fail_memory(3 * (n + 1) * sizeof *s->off, "a sampler");
}

static kf_status make_buckets(kf_sampler *s, const int64_t *len) {
  int64_t n = s->n_samples;
  size_t n_bytes = 2 * ((size_t)n + 1) * sizeof(uint64_t);
  uint64_t *key = malloc(n_bytes);
  if (!key) return kfi_fail_memory(n_bytes, "sorting lengths");
  const uint64_t *sorted = kfi_bucket_sort(len, n, key, key + n, &s->n_buckets);
  n_bytes = ((size_t)s->n_buckets + 1) * sizeof *s->bucket;
  s->bucket = malloc(n_bytes);
  if (s->bucket) kfi_bucket_gather(len, NULL, n, sorted, s->bucket, s->bucket_of);
  free(key);
  return s->bucket ? KF_OK : kfi_fail_memory(n_bytes, "buckets");
}

kf_status kf_sampler_create(const kf_sampler_options *options, const int64_t *len,
                            int64_t n_samples, kf_sampler **out) {
  if (!options || !out) return kfi_fail(KF_EINVAL, "kf_sampler_create: a pointer is NULL");
  kf_status status;
  if ((status = check_options(options))) return status;
  if ((status = kfi_bucket_check_lens(&options->bucket, len, NULL, n_samples))) return status;
  kf_sampler *s = calloc(1, sizeof *s);
  if (!s) return kfi_fail_memory(sizeof *s, "a sampler");
  const kf_cost *c = &options->bucket.cost;
  s->options = *options;
  s->n_samples = n_samples;
  s->kind = hash_kind(options, len, n_samples);
  s->start = (kfi_change){0, c->linear_s, c->quadratic_s, c->constant_s};
  if ((status = reserve(s))) goto fail;
  if ((status = make_buckets(s, len))) goto fail;
  if ((status = kfi_sampler_begin(s, 0, s->start))) goto fail;
  *out = s;
  return KF_OK;

fail:
  kf_sampler_free(s);
  return status;
}

void kf_sampler_free(kf_sampler *s) {
  if (!s) return;
  free(s->bucket);
  free(s->bucket_of);
  free(s->sample);
  free(s->off);
  free(s->change);
  kfi_buffer_free(&s->view);
  free(s);
}

/* ------------------------------------------------------------------------ cost in force */

static void set_limits(kf_sampler *s, const kfi_limits *limits) {
  s->limits = *limits;
  kfi_bucket_fill(limits, s->bucket, s->n_buckets, &s->buckets);
}

/* What a cost makes of the options' limits, or why it cannot. */
static kf_status limits_of(const kf_sampler *s, const kfi_change *change, kfi_limits *out) {
  kf_bucket_options o = s->options.bucket;
  o.cost.linear_s = change->linear_s;
  o.cost.quadratic_s = change->quadratic_s;
  o.cost.constant_s = change->constant_s;
  kf_status status = kfi_bucket_check(&o);
  return status ? status : kfi_bucket_limits(&o, s->bucket, s->n_buckets, out);
}

kf_status kfi_sampler_begin(kf_sampler *s, int64_t epoch, kfi_change start) {
  if (epoch < 0 || epoch > MOST_EPOCHS)
    return kfi_fail(KF_EINVAL, "epoch %" PRId64 ", expected 0 to %" PRId64, epoch, MOST_EPOCHS);
  kfi_limits old = s->limits, new;
  int64_t old_epoch = s->epoch, old_changes = s->n_changes;
  kf_status status = limits_of(s, &start, &new);
  if (status) return status;
  set_limits(s, &new);
  s->epoch = epoch;
  s->n_changes = 0;
  if ((status = kfi_arrange(s, 0, true))) {
    if (old.mem_tokens > 0) set_limits(s, &old); /* not the first epoch of all */
    s->epoch = old_epoch;
    s->n_changes = old_changes;
    return status;
  }
  s->arranged = new;
  s->arranged_at = 0;
  s->idle_change = false;
  s->start = start;
  s->start.at = 0;
  s->next = 0;
  return KF_OK;
}

/* Would what was arranged last come out differently? What counts is the change since then: many
** small ones add up. */
static bool matters(const kf_sampler *s, const kfi_limits *new) {
  const kfi_limits *old = &s->arranged;
  for (int64_t b = 0; b < s->n_buckets; b++) {
    int64_t len = s->bucket[b].len;
    double before = kfi_limits_work(old, (double)len) / old->comp_s;
    double now = kfi_limits_work(new, (double)len) / new->comp_s;
    if (old->rule == KF_RULE_PACKED ? fabs(now - before) > NOTICED * before
                                    : kfi_bucket_size(new, len) != kfi_bucket_size(old, len))
      return true;
  }
  return false;
}

/* Room for one more change in the list. */
static kf_status reserve_change(kf_sampler *s) {
  if (s->n_changes < s->change_room) return KF_OK;
  int64_t room = 2 * s->change_room + 8;
  kfi_change *more = realloc(s->change, (size_t)room * sizeof *more);
  if (!more) return kfi_fail_memory((size_t)room * sizeof *more, "changes of the cost");
  s->change = more;
  s->change_room = room;
  return KF_OK;
}

kf_status kfi_sampler_change(kf_sampler *s, kfi_change change) {
  kfi_limits old = s->limits, new;
  int64_t old_changes = s->n_changes;
  kf_status status;
  if ((status = limits_of(s, &change, &new))) return status;
  if ((status = reserve_change(s))) return status;
  bool anew = change.at < s->arranged_at || matters(s, &new);
  set_limits(s, &new);
  /* one that arranged nothing leaves no trace once another comes: its place is taken */
  int64_t place = s->n_changes - s->idle_change;
  kfi_change before = s->idle_change ? s->change[place] : change;
  s->change[place] = change;
  s->n_changes = place + 1;
  if (anew && (status = kfi_arrange(s, change.at, false))) {
    s->change[place] = before;
    s->n_changes = old_changes;
    set_limits(s, &old);
    return status;
  }
  s->idle_change = !anew;
  if (anew) {
    s->arranged = new;
    s->arranged_at = change.at;
  }
  return KF_OK;
}

/* ------------------------------------------------------------------------------- calls */

kf_status kf_sampler_set_epoch(kf_sampler *s, int64_t epoch) {
  if (!s) return kfi_fail(KF_EINVAL, "kf_sampler_set_epoch: the sampler is NULL");
  const kfi_limits *l = &s->limits;
  return kfi_sampler_begin(s, epoch, (kfi_change){0, l->linear_s, l->quadratic_s, l->constant_s});
}

kf_status kf_sampler_set_cost(kf_sampler *s, int64_t at, const kf_cost *cost) {
  if (!s || !cost) return kfi_fail(KF_EINVAL, "kf_sampler_set_cost: a pointer is NULL");
  if (at < s->next || at > s->n_steps)
    return kfi_fail(KF_EINVAL,
                    "a cost from step %" PRId64 " on, expected a step from %" PRId64
                    ", the next one, to %" PRId64 ", the end of the epoch",
                    at, s->next, s->n_steps);
  return kfi_sampler_change(s,
                            (kfi_change){at, cost->linear_s, cost->quadratic_s, cost->constant_s});
}

kf_status kf_sampler_next(kf_sampler *s, const kf_sampled **out) {
  if (!s || !out) return kfi_fail(KF_EINVAL, "kf_sampler_next: a pointer is NULL");
  if (s->next == s->n_steps) {
    *out = NULL;
    return KF_OK;
  }
  int32_t n_ranks = s->options.bucket.n_ranks;
  const int32_t *off = s->off + s->next * n_ranks;
  int64_t n = off[n_ranks] - off[0];
  int64_t *rank_off =
    kfi_buffer_reserve(&s->view, (size_t)(n_ranks + 1 + 2 * n) * sizeof *rank_off);
  if (!rank_off) return KF_ENOMEM;
  int64_t *len = rank_off + n_ranks + 1, *sample = len + n;
  for (int32_t r = 0; r <= n_ranks; r++) rank_off[r] = off[r] - off[0];
  for (int64_t i = 0; i < n; i++) {
    sample[i] = s->sample[off[0] + i];
    len[i] = s->bucket[s->bucket_of[sample[i]]].len;
  }
  s->sampled =
    (kf_sampled){.epoch = s->epoch,
                 .step = s->next++,
                 .batch = {.n_ranks = n_ranks, .n_seqs = n, .rank_off = rank_off, .len = len},
                 .sample = sample};
  *out = &s->sampled;
  return KF_OK;
}

int64_t kf_sampler_steps(const kf_sampler *s) { return s ? s->n_steps : 0; }
int64_t kf_sampler_step(const kf_sampler *s) { return s ? s->next : 0; }
const kf_buckets *kf_sampler_buckets(const kf_sampler *s) { return s ? &s->buckets : NULL; }

uint64_t kf_sampler_hash(const kf_sampler *s) {
  if (!s) return 0;
  const int64_t whole[] = {(int64_t)s->kind, s->epoch, s->next, s->n_changes};
  uint64_t h = kfi_hash(KF_HASH_START, whole, sizeof whole / sizeof *whole);
  for (int64_t i = -1; i < s->n_changes; i++) {
    const kfi_change *c = i < 0 ? &s->start : &s->change[i];
    const double real[] = {c->linear_s, c->quadratic_s, c->constant_s};
    h = kfi_hash_reals(kfi_hash(h, &c->at, 1), real, 3);
  }
  return h;
}

/* ----------------------------------------------------------------------------- figures */

typedef struct batch_sum {
  double tokens, work;
  int64_t n;
  bool mixed; /* more than one bucket */
} batch_sum;

static batch_sum sum_batch(const kf_sampler *s, int64_t k) {
  batch_sum sum = {.n = s->off[k + 1] - s->off[k]};
  int32_t first = s->bucket_of[s->sample[s->off[k]]];
  for (int32_t i = s->off[k]; i < s->off[k + 1]; i++) {
    int32_t b = s->bucket_of[s->sample[i]];
    sum.tokens += (double)s->bucket[b].len;
    sum.work += s->bucket[b].work_s;
    sum.mixed |= b != first;
  }
  return sum;
}

static void count_batch(const kf_sampler *s, int64_t k, const batch_sum *sum, kf_epoch *e) {
  const kf_bucket *b = &s->bucket[s->bucket_of[s->sample[s->off[k]]]];
  double memory = sum->tokens / s->limits.mem_tokens, compute = 0;
  if (s->limits.comp_s > 0) compute = sum->work / s->limits.comp_s;
  e->n_samples += sum->n;
  e->n_tokens += (int64_t)sum->tokens;
  e->mean_memory_use += memory;
  e->mean_compute_use += compute;
  e->max_memory_use = fmax(e->max_memory_use, memory);
  e->max_compute_use = fmax(e->max_compute_use, compute);
  e->over_batches += sum->n == 1 && compute > 1 + KFI_ROUNDING;
  if (s->limits.rule == KF_RULE_PACKED)
    e->underfilled_batches += memory < FULL_ENOUGH && compute < FULL_ENOUGH;
  else
    e->underfilled_batches += sum->n < b->batch_size;
}

static void count_step(const kf_sampler *s, int64_t step, kf_epoch *e) {
  int32_t n_ranks = s->options.bucket.n_ranks;
  int64_t first = step * n_ranks;
  int32_t bucket = s->bucket_of[s->sample[s->off[first]]];
  double sum = 0, most = 0;
  bool mixed = false;
  for (int64_t k = first; k < first + n_ranks; k++) {
    batch_sum batch = sum_batch(s, k);
    count_batch(s, k, &batch, e);
    mixed |= batch.mixed || s->bucket_of[s->sample[s->off[k]]] != bucket;
    sum += batch.work;
    most = fmax(most, batch.work);
  }
  e->imbalance_rate += fmax(0, 1 - sum / n_ranks / most); /* rounding may go below */
  e->predicted_s += most;
  e->mixed_steps += mixed && s->options.mode == KF_STEPS_SAME && s->limits.rule != KF_RULE_PACKED;
}

kf_status kf_sampler_figures(const kf_sampler *s, kf_epoch *out) {
  if (!s || !out) return kfi_fail(KF_EINVAL, "kf_sampler_figures: a pointer is NULL");
  kf_epoch e = {.epoch = s->epoch, .n_steps = s->n_steps, .split_batches = s->n_split};
  e.n_batches = s->n_steps * s->options.bucket.n_ranks;
  for (int64_t step = 0; step < s->n_steps; step++) count_step(s, step, &e);
  for (int64_t i = s->off[e.n_batches]; i < s->n_samples; i++) {
    e.dropped_samples++;
    e.dropped_tokens += s->bucket[s->bucket_of[s->sample[i]]].len;
  }
  e.dropped_batches = s->n_dropped;
  if (s->n_steps > 0) {
    e.imbalance_rate /= (double)s->n_steps;
    e.mean_memory_use /= (double)e.n_batches;
    e.mean_compute_use /= (double)e.n_batches;
    e.predicted_tokens_per_s = (double)e.n_tokens / e.predicted_s;
  }
  *out = e;
  return KF_OK;
}
