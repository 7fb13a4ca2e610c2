/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a kf_step: step.c gathers, agree.c plans and compares. */
#ifndef KFI_STEP_H
#define KFI_STEP_H

#include "comm.h"

/* What a rank measured of the last step, as it travels. */
typedef struct kfi_times {
  int64_t given; /* 0: nothing */
  double seconds;
  kf_counters counters;
} kfi_times;

struct kf_step {
  kf_comm *comm;
  int64_t record_bytes, room;
  bool factors, profiles;
  kfi_buffer slots, arrays, agreed, proof; /* gathered; the batch; two of agree.c */
  kf_batch batch;
  const void *records;    /* (n_ranks, record_bytes) */
  const kfi_times *times; /* (n_ranks) */
  bool gathered;
};

/* Gather into s->batch, s->records and s->times, as part of `call`. */
kf_status kfi_step_collect(kf_step *s, const char *call, const kf_rank_batch *mine,
                           const kfi_times *times);

/* The first rank whose value differs from the usual one, or -1; *like is a rank that has that. */
int32_t kfi_odd_one(const char *value, int64_t stride, size_t n_bytes, int32_t n_ranks,
                    int32_t *like);

#endif
