/* SPDX-License-Identifier: Apache-2.0 */
/* Batches without buckets; pack.c tells how. */
#ifndef KFI_PACK_H
#define KFI_PACK_H

#include "bucket.h"

typedef struct kfi_packing {
  const kfi_limits *limits;
  const kf_bucket *bucket; /* (n_buckets) rising lengths */
  int64_t n_buckets;
  const int32_t *bucket_of; /* by sample */
  const int32_t *sample;    /* (n) in random order */
  int64_t n, window;
  int32_t n_ranks;
  int32_t *order; /* (n) samples, batch after batch */
  int32_t *begin; /* (n + 1) where a batch begins in order */
  int64_t n_batches;
  int32_t *rest, *batch_of; /* (n) each, scratch */
  uint64_t *key;            /* (2 n) scratch, or NULL: it is then taken where needed */
} kfi_packing;

/* Fill order, begin and n_batches. Fails only where memory runs out. */
kf_status kfi_pack(kfi_packing *packing);

/* kfi_pack's end, by itself: deal `n` samples of `rest` evenly over whole steps, as few as have
** room, and append their batches. Where there are fewer samples than ranks, the last step stays
** incomplete. */
kf_status kfi_pack_deal(kfi_packing *packing, const int32_t *rest, int64_t n);

#endif
