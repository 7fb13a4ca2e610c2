/* SPDX-License-Identifier: Apache-2.0 */
/*
** What mixes share: how a sample is drawn, and the mix that is more than a list of codes.
*/
#ifndef KFI_MIX_H
#define KFI_MIX_H

#include "../numbers.h"
#include "knapformer.h"

/*
** The draws of one sample. Its numbers depend on seed, rank and sample only: no generator state
** runs through a batch, so any rank can compute any other's lengths.
*/
typedef struct kfi_draw {
  uint64_t state;
} kfi_draw;

static inline kfi_draw kfi_draw_start(uint64_t seed, int32_t rank, int64_t sample) {
  return (kfi_draw){seed << 40 ^ (uint64_t)rank << 20 ^ (uint64_t)sample};
}

/* The next output of splitmix64, modulo n. */
static inline int64_t kfi_draw_next(kfi_draw *d, int64_t n) {
  uint64_t output = kfi_mix64(d->state);
  d->state += KF_SPLITMIX64_STEP;
  return (int64_t)(output % (uint64_t)n);
}

/* The mix `wan` on so many ranks, 0 to KF_MAX_RANKS; 0 is its own 16. */
kf_status kfi_wan_create(int32_t n_ranks, uint64_t seed, kf_batch **out);

#endif
