/* SPDX-License-Identifier: Apache-2.0 */
/*
** From samples to steps: shuffle, make batches, place them in steps, write the steps down.
**
**     sample numbers --shuffle--> random order --cut or pack--> batches
**       --place--> batches in the order of (step, rank) --write--> sample[], off[]
**
** All shuffles draw from one stream that begins with (seed, epoch, changes made so far), so the
** same calls give the same steps on every rank and after every restart. Linear in samples but for
** the digits of radix sorts; ten million samples take 0.5 s in buckets, 1 s packed.
**
** Memory is taken for the call: 20 bytes a sample, 16 more where batches are sorted, and for packed
** up to 36 more (20 where batches are sorted) for each sample of the last steps. A sampler keeps 12
** a sample and 32 a bucket: at most 100 in all, if all lengths differ and the last steps are all
** there are.
*/
#include <float.h>
#include <stdlib.h>

#include "../numbers.h"
#include "../sort.h"
#include "pack.h"
#include "sampler.h"

typedef struct arranging {
  kf_sampler *s;
  int32_t n_ranks;
  uint64_t dice;   /* state of the stream */
  int64_t n;       /* samples */
  int32_t *random; /* (n) samples in random order; later scratch of places */
  int32_t *order;  /* (n) samples, batch after batch */
  int32_t *first;  /* (n + 1) by batch: where it begins in order */
  int32_t *count;  /* (n) by batch: its samples */
  int32_t *place;  /* (n) batches by step and rank; those that are dropped come last */
  uint64_t *key;   /* (2 n) of sorting; NULL: mode random */
  int64_t n_batches, n_placed, n_split;
  void *memory;
} arranging;

/* ----------------------------------------------------------------------------- chance */

/* 0 .. n-1, n up to 2^31: the high half of a 64 by 32 bit product, so that no number is
** favoured. */
static int64_t throw_below(arranging *a, int64_t n) {
  uint64_t r = kfi_mix64(a->dice);
  a->dice += KF_SPLITMIX64_STEP;
  return (int64_t)(((r >> 32) * (uint64_t)n + ((r & 0xffffffffu) * (uint64_t)n >> 32)) >> 32);
}

static void shuffle(arranging *a, int32_t *v, int64_t n) {
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t k = throw_below(a, i + 1);
    int32_t t = v[i];
    v[i] = v[k];
    v[k] = t;
  }
}

/* ---------------------------------------------------------------------------- batches */

/* The bucket rules: samples by bucket, still in random order, each bucket cut into its sizes. */
static kf_status cut_buckets(arranging *a) {
  const kf_sampler *s = a->s;
  int32_t *end = calloc((size_t)s->n_buckets + 1, sizeof *end);
  if (!end) return kfi_fail_memory(((size_t)s->n_buckets + 1) * sizeof *end, "buckets");
  for (int64_t i = 0; i < a->n; i++) end[s->bucket_of[a->random[i]] + 1]++;
  for (int64_t b = 0; b < s->n_buckets; b++) end[b + 1] += end[b];
  for (int64_t i = 0; i < a->n; i++) a->order[end[s->bucket_of[a->random[i]]]++] = a->random[i];
  int64_t at = 0;
  for (int64_t b = 0; b < s->n_buckets; b++) {
    int64_t size = s->bucket[b].batch_size;
    for (int64_t left; (left = end[b] - at) > 0; at += left) {
      if (left > size) left = size;
      a->first[a->n_batches] = (int32_t)at;
      a->count[a->n_batches++] = (int32_t)left;
    }
  }
  free(end);
  return KF_OK;
}

static kf_status pack(arranging *a) {
  const kf_sampler *s = a->s;
  kfi_packing packing = {.limits = &s->limits,
                         .bucket = s->bucket,
                         .n_buckets = s->n_buckets,
                         .bucket_of = s->bucket_of,
                         .sample = a->random,
                         .n = a->n,
                         .window = s->options.window ? s->options.window : KFI_WINDOW,
                         .n_ranks = a->n_ranks,
                         .order = a->order,
                         .begin = a->first,
                         .rest = a->count,
                         .batch_of = a->place,
                         .key = a->key};
  kf_status status = kfi_pack(&packing);
  if (status) return status;
  a->n_batches = packing.n_batches;
  for (int64_t k = 0; k < a->n_batches; k++) a->count[k] = a->first[k + 1] - a->first[k];
  return KF_OK;
}

static int32_t bucket_of_batch(const arranging *a, int32_t batch) {
  return a->s->bucket_of[a->order[a->first[batch]]];
}

static double work_of_batch(const arranging *a, int32_t batch) {
  double sum = 0;
  if (a->s->limits.rule != KF_RULE_PACKED)
    return a->s->bucket[bucket_of_batch(a, batch)].work_s * a->count[batch];
  for (int32_t i = 0; i < a->count[batch]; i++)
    sum += a->s->bucket[a->s->bucket_of[a->order[a->first[batch] + i]]].work_s;
  return sum;
}

/* ------------------------------------------------------------------------------ places */

static void cut(arranging *a, int32_t batch, int32_t *half) {
  int32_t keeps = a->count[batch] - a->count[batch] / 2;
  *half = (int32_t)a->n_batches++;
  a->first[*half] = a->first[batch] + keeps;
  a->count[*half] = a->count[batch] - keeps;
  a->count[batch] = keeps;
  a->n_split++;
}

/*
** Batches shall fill whole steps. Those that do not, the last of a random order, so that nobody's
** are dropped more often than others', stay behind the placed ones and are dropped; or batches are
** cut in two, those of the last step first, until it is full, if there are samples enough.
*/
static void complete(arranging *a) {
  int64_t n = a->n_batches, last = n - n % a->n_ranks, wanted = last + a->n_ranks;
  a->n_placed = last;
  if (last == n || !a->s->options.keep_all || a->n < wanted) return;
  for (int64_t earlier = last - 1, from = last; n < wanted;) { /* before `from`: single samples */
    int64_t before = n;
    for (int64_t k = from; k < before && n < wanted; k++)
      if (a->count[a->place[k]] > 1) cut(a, a->place[k], &a->place[n++]);
    if (n > before) continue;
    from = n;
    while (a->count[a->place[earlier]] == 1) earlier--; /* the last step has single samples only */
    cut(a, a->place[earlier], &a->place[n++]);
  }
  a->n_placed = n;
}

/* Sort what is placed by work or bucket; equal ones keep their order. */
static void sort_placed(arranging *a, bool by_bucket) {
  int64_t n = a->n_placed;
  for (int64_t k = 0; k < n; k++) {
    int32_t batch = a->place[k];
    uint64_t high = by_bucket ? (uint64_t)bucket_of_batch(a, batch) << 32
                              : kfi_sort_real(fmin(work_of_batch(a, batch), FLT_MAX));
    a->key[k] = high | (uint64_t)batch;
  }
  const uint64_t *sorted = kfi_sort_high(a->key, a->key + a->n, n);
  for (int64_t k = 0; k < n; k++) a->place[k] = (int32_t)(uint32_t)sorted[k];
}

/* Whole steps of each bucket; what is left of all buckets then shares steps by length. */
static void place_same(arranging *a) {
  int64_t n = a->n_placed, n_pure = 0, n_mixed = 0;
  int32_t *spare = a->random; /* whole steps from its front, the others from its back */
  sort_placed(a, true);
  for (int64_t k = 0, end; k < n; k = end) {
    int32_t bucket = bucket_of_batch(a, a->place[k]);
    for (end = k + 1; end < n && bucket_of_batch(a, a->place[end]) == bucket;) end++;
    int64_t whole = end - (end - k) % a->n_ranks;
    for (int64_t i = k; i < whole; i++) spare[n_pure++] = a->place[i];
    for (int64_t i = whole; i < end; i++) spare[n - ++n_mixed] = a->place[i];
  }
  for (int64_t k = 0; k < n_pure; k++) a->place[k] = spare[k];
  for (int64_t k = 0; k < n_mixed; k++) a->place[n_pure + k] = spare[n - 1 - k];
}

/* Steps in random order; in each, no rank is favoured. */
static void shuffle_steps(arranging *a) {
  int32_t n_ranks = a->n_ranks;
  for (int64_t i = a->n_placed / n_ranks - 1; i > 0; i--) {
    int32_t *x = a->place + i * n_ranks, *y = a->place + throw_below(a, i + 1) * n_ranks;
    for (int32_t r = 0; r < n_ranks; r++) {
      int32_t t = x[r];
      x[r] = y[r];
      y[r] = t;
    }
  }
}

static void shuffle_ranks(arranging *a) {
  for (int64_t k = 0; k < a->n_placed; k += a->n_ranks) shuffle(a, a->place + k, a->n_ranks);
}

static void place(arranging *a) {
  bool packed = a->s->limits.rule == KF_RULE_PACKED;
  kf_step_mode mode = a->s->options.mode;
  for (int64_t k = 0; k < a->n_batches; k++) a->place[k] = (int32_t)k;
  if (!packed) shuffle(a, a->place, a->n_batches); /* packed ones come in a random order */
  complete(a);
  if (mode == KF_STEPS_SAME && !packed)
    place_same(a);
  else if (mode != KF_STEPS_RANDOM)
    sort_placed(a, false);
  if (mode != KF_STEPS_RANDOM) shuffle_steps(a);
  shuffle_ranks(a);
}

/* ---------------------------------------------------------------------------- outline */

static kf_status reserve(arranging *a, int64_t n) {
  bool sorts = a->s->options.mode != KF_STEPS_RANDOM;
  for (int pass = 0; pass < 2; pass++) {
    kfi_layout lay = {.base = a->memory};
    a->random = KFI_TAKE(&lay, int32_t, n);
    a->order = KFI_TAKE(&lay, int32_t, n);
    a->first = KFI_TAKE(&lay, int32_t, n + 1);
    a->count = KFI_TAKE(&lay, int32_t, n);
    a->place = KFI_TAKE(&lay, int32_t, n);
    a->key = sorts ? KFI_TAKE(&lay, uint64_t, 2 * n) : NULL;
    if (pass == 0 && !(a->memory = malloc(lay.n_bytes)))
      return kfi_fail_memory(lay.n_bytes, "arranging an epoch");
  }
  return KF_OK;
}

static void write_steps(const arranging *a, int64_t first) {
  kf_sampler *s = a->s;
  int64_t at = s->n_samples - a->n;
  int32_t *off = s->off + first * a->n_ranks;
  for (int64_t k = 0; k < a->n_batches; k++) {
    int32_t batch = a->place[k];
    if (k <= a->n_placed) off[k] = (int32_t)at; /* also the end of the last one */
    for (int32_t i = 0; i < a->count[batch]; i++) s->sample[at++] = a->order[a->first[batch] + i];
  }
  if (a->n_placed == a->n_batches) off[a->n_placed] = (int32_t)at;
  s->n_steps = first + a->n_placed / a->n_ranks;
  s->n_split = a->n_split;
  s->n_dropped = a->n_batches - a->n_placed;
}

kf_status kfi_arrange(kf_sampler *s, int64_t first, bool fresh) {
  arranging a = {.s = s, .n_ranks = s->options.bucket.n_ranks};
  int64_t handed_out = fresh ? 0 : s->off[first * a.n_ranks];
  a.n = s->n_samples - handed_out;
  if (a.n == 0 && !fresh) return KF_OK; /* nothing is left to arrange */
  a.dice = kfi_mix64(s->options.seed);
  a.dice = kfi_mix64(a.dice ^ (uint64_t)s->epoch);
  a.dice = kfi_mix64(a.dice ^ (uint64_t)s->n_changes);
  kf_status status = reserve(&a, a.n);
  if (status) return status;
  for (int64_t i = 0; i < a.n; i++) a.random[i] = fresh ? (int32_t)i : s->sample[handed_out + i];
  shuffle(&a, a.random, a.n);
  status = s->limits.rule == KF_RULE_PACKED ? pack(&a) : cut_buckets(&a);
  if (!status) {
    place(&a);
    write_steps(&a, first);
  }
  free(a.memory);
  return status;
}
