/* SPDX-License-Identifier: Apache-2.0 */
/*
** The end of packing: deal what is left over the batches of the last steps by falling work,
** each sample to the batch with the least work that has room for it.
**
** As many steps as can be full are dealt first: they get the long samples, and short ones fill them
** up. What has no room there is short, and makes one more step, even and quick. Dealing all steps
** alike would leave those of the long samples as uneven as these are; it is done only where what
** has no room is too little to give every rank of a step one.
*/
#include <stdlib.h>

#include "../sort.h"
#include "pack.h"

enum { ASIDE = 64 };

typedef struct batch {
  double work, tokens;
} batch;

typedef struct dealing {
  const kfi_packing *to;
  int64_t n; /* samples */
  const int32_t *rest;
  const uint64_t *sorted; /* (n) places in rest, by falling work */
  uint64_t *left;         /* (n) those that have not been dealt, by falling work */
  int32_t *batch_of;      /* (n) by place */
  batch *batch;           /* (n_batches) */
  int32_t *heap;          /* (n_batches) least work on top, ties by number */
  int64_t n_batches, n_heap, n_left;
  const kf_bucket *shortest;
  const kf_bucket *refused; /* the last for which the open batches had no room: they only fill up */
} dealing;

static const kf_bucket *bucket_at(const dealing *d, int64_t place) {
  return &d->to->bucket[d->to->bucket_of[d->rest[place]]];
}

static bool less(const dealing *d, int32_t a, int32_t b) {
  double x = d->batch[a].work, y = d->batch[b].work;
  return x < y || (x == y && a < b);
}

static void sift_down(dealing *d, int64_t at) {
  int64_t n = d->n_heap;
  if (n == 0) return;
  int32_t h = d->heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && less(d, d->heap[child + 1], d->heap[child])) child++;
    if (!less(d, d->heap[child], h)) break;
    d->heap[at] = d->heap[child];
  }
  d->heap[at] = h;
}

static void sift_up(dealing *d, int64_t at) {
  int32_t h = d->heap[at];
  for (; at > 0 && less(d, h, d->heap[(at - 1) / 2]); at = (at - 1) / 2)
    d->heap[at] = d->heap[(at - 1) / 2];
  d->heap[at] = h;
}

/* Does its work alone leave no room? */
static bool work_is_full(const dealing *d, const batch *h, const kf_bucket *b) {
  return h->tokens > 0 && h->work + b->work_s > d->to->limits->comp_s * (1 + KFI_ROUNDING);
}

static bool has_room(const dealing *d, const batch *h, const kf_bucket *b) {
  const kfi_limits *l = d->to->limits;
  return !work_is_full(d, h, b) && h->tokens + (double)b->len <= l->mem_tokens;
}

/* Open n more batches, empty, which alone take part from now on. */
static void open_batches(dealing *d, int64_t n) {
  d->refused = NULL;
  d->n_heap = 0;
  for (int64_t h = 0; h < n; h++, d->n_batches++) {
    d->batch[d->n_batches] = (batch){0, 0};
    d->heap[d->n_heap++] = (int32_t)d->n_batches; /* all alike: a heap by number */
  }
}

/*
** Give a sample to the batch with the least work that has room; false: none has. If work leaves no
** room in that batch, it leaves none in any other. If memory does not, the next ones are asked, but
** not all of thousands: so a sample costs no more than ASIDE looks. A batch with no room for even
** the shortest drops out.
*/
static bool give(dealing *d, int64_t place) {
  const kf_bucket *b = bucket_at(d, place);
  int32_t aside[ASIDE];
  int n_aside = 0;
  bool given = false;
  if (b == d->refused) return false;
  while (d->n_heap > 0 && n_aside < ASIDE) {
    int32_t h = d->heap[0];
    if ((given = has_room(d, &d->batch[h], b)) || work_is_full(d, &d->batch[h], b)) break;
    if (has_room(d, &d->batch[h], d->shortest)) aside[n_aside++] = h;
    d->heap[0] = d->heap[--d->n_heap];
    sift_down(d, 0);
  }
  if (given) {
    int32_t h = d->heap[0];
    d->batch_of[place] = h;
    d->batch[h].work += b->work_s;
    d->batch[h].tokens += (double)b->len;
    sift_down(d, 0);
  }
  while (n_aside > 0) {
    d->heap[d->n_heap] = aside[--n_aside];
    sift_up(d, d->n_heap++);
  }
  if (!given) d->refused = b;
  return given;
}

/* Deal what is left over n new batches; what fits nowhere stays. */
static void deal_over(dealing *d, int64_t n) {
  int64_t n_left = 0;
  open_batches(d, n);
  for (int64_t k = 0; k < d->n_left; k++)
    if (!give(d, (int64_t)(uint32_t)d->left[k])) d->left[n_left++] = d->left[k];
  d->n_left = n_left;
}

static void take_back(dealing *d) {
  d->n_batches = 0;
  d->n_left = d->n;
  for (int64_t k = 0; k < d->n; k++) d->left[k] = d->sorted[k];
}

/* The batches into order and begin, samples of one in the order of rest. */
static void write_out(kfi_packing *to, dealing *d) {
  int32_t *begin = to->begin + to->n_batches;
  for (int64_t h = 1; h <= d->n_batches; h++) begin[h] = 0;
  for (int64_t i = 0; i < d->n; i++) begin[d->batch_of[i] + 1]++;
  for (int64_t h = 0; h < d->n_batches; h++) begin[h + 1] += begin[h];
  for (int64_t h = 0; h < d->n_batches; h++) d->heap[h] = begin[h];
  for (int64_t i = 0; i < d->n; i++) to->order[d->heap[d->batch_of[i]]++] = d->rest[i];
  to->n_batches += d->n_batches;
}

static void sort_by_work(dealing *d, uint64_t *key, uint64_t *spare) {
  for (int64_t i = 0; i < d->n; i++) /* work rises with length, which 32 bits hold exactly */
    key[i] = ~(uint64_t)(bucket_at(d, i)->len - 1) << 32 | (uint64_t)i;
  d->sorted = kfi_sort_high(key, spare, d->n);
  d->left = d->sorted == key ? spare : key;
  d->shortest = bucket_at(d, (int64_t)(uint32_t)d->sorted[d->n - 1]);
}

/* Steps that the limits ask for at least. */
static double least_steps(const dealing *d) {
  const kfi_limits *l = d->to->limits;
  double work = 0, tokens = 0, alone = 0;
  for (int64_t i = 0; i < d->n; i++) {
    const kf_bucket *b = bucket_at(d, i);
    bool over = b->work_s > l->comp_s * (1 + KFI_ROUNDING);
    alone += over;
    work += over ? 0 : b->work_s;
    tokens += over ? 0 : (double)b->len;
  }
  return (fmax(work / l->comp_s, tokens / l->mem_tokens) * (1 - 1e-9) + alone) / d->to->n_ranks;
}

/* Full steps, and short ones for what they have no room for; false: that is too little. */
static bool deal_full(dealing *d, double steps) {
  int64_t n_ranks = d->to->n_ranks;
  take_back(d);
  for (int64_t n = (int64_t)steps * n_ranks; d->n_left > 0; n = n_ranks) {
    if (n > d->n_left) return false;
    deal_over(d, n);
  }
  return true;
}

/* All steps alike; false: so many steps have no room. */
static bool deal_even(dealing *d, int64_t steps) {
  take_back(d);
  deal_over(d, steps * d->to->n_ranks);
  return d->n_left == 0;
}

static void deal(dealing *d) {
  int64_t whole = d->n / d->to->n_ranks; /* steps in which every rank gets a sample */
  double steps = least_steps(d);
  if (steps >= 1 && deal_full(d, steps)) return;
  for (int64_t k = (int64_t)ceil(steps); k <= whole;
       k += 1 + k / 8) /* few tries where steps are many */
    if (deal_even(d, k)) return;
  take_back(d);
  deal_over(d, whole * d->to->n_ranks);
  for (int64_t k = 0; k < d->n_left; k++) /* of a step that stays incomplete: fewer than ranks */
    d->batch_of[(uint32_t)d->left[k]] = (int32_t)d->n_batches++;
}

kf_status kfi_pack_deal(kfi_packing *to, const int32_t *rest, int64_t n) {
  if (n == 0) return KF_OK;
  dealing d = {.to = to, .n = n, .rest = rest, .batch_of = to->batch_of};
  uint64_t *key = to->key;
  size_t n_bytes = (size_t)n * (sizeof(batch) + sizeof(int32_t) + (key ? 0 : 2 * sizeof *key));
  d.batch = malloc(n_bytes); /* no more batches than samples, as none is empty */
  if (!d.batch) return kfi_fail_memory(n_bytes, "the last steps");
  if (!key) key = (uint64_t *)(d.batch + n);
  d.heap = (int32_t *)(to->key ? (void *)(d.batch + n) : (void *)(key + 2 * n));
  sort_by_work(&d, key, key + n);
  deal(&d);
  write_out(to, &d);
  free(d.batch);
  return KF_OK;
}
