/* SPDX-License-Identifier: Apache-2.0 */
/*
** The inside of a kf_sampler: sampler.c hands steps out, arrange.c makes them, sampler_state.c
** saves.
**
** An epoch is two arrays. Batch k, of step k / n_ranks and rank k % n_ranks, is
** sample[off[k]] .. sample[off[k+1]-1]; after the last step's come the samples that are dropped.
*/
#ifndef KFI_SAMPLER_H
#define KFI_SAMPLER_H

#include <stdbool.h>

#include "../memory.h"
#include "bucket.h"

enum { KFI_WINDOW = 1024 }; /* of packed, where the options do not say */

/* A cost from some step on. */
typedef struct kfi_change {
  int64_t at;
  double linear_s, quadratic_s, constant_s;
} kfi_change;

struct kf_sampler {
  kf_sampler_options options; /* bucket.cost is the first; limits have the one in force */
  uint64_t kind;              /* a hash of options and lengths, but for the cost */
  int64_t n_samples;
  int64_t n_buckets;
  kf_bucket *bucket;   /* (n_buckets) */
  int32_t *bucket_of;  /* (n_samples) */
  kfi_limits limits;   /* by the cost in force */
  kfi_limits arranged; /* that the steps from arranged_at on were arranged by */
  int64_t arranged_at;
  kf_buckets buckets; /* what the user sees of them */

  int64_t epoch, next; /* the next step */
  int64_t n_steps;
  int64_t n_split;    /* batches that keep_all has cut */
  int64_t n_dropped;  /* batches */
  int32_t *sample;    /* (n_samples) */
  int32_t *off;       /* (n_samples + 1) */
  kfi_change start;   /* the cost that the epoch began with; its `at` is 0 */
  kfi_change *change; /* (n_changes) since, in the order in which they were made */
  int64_t n_changes, change_room;
  bool idle_change; /* the last change has arranged nothing */

  kf_sampled sampled;
  kfi_buffer view; /* its arrays */
};

/* ---------------------------------------------------------------------------- arrange.c */

/* Arrange anew what the steps from `first` on have, and what was dropped: or all samples, if the
** epoch is fresh. By s->limits, s->epoch and s->n_changes. On failure nothing has changed. */
kf_status kfi_arrange(kf_sampler *s, int64_t first, bool fresh);

/* ---------------------------------------------------------------------------- sampler.c */

/* Begin an epoch with a cost. On failure nothing has changed; so below. */
kf_status kfi_sampler_begin(kf_sampler *s, int64_t epoch, kfi_change start);

/* Take a change into force and into the list. */
kf_status kfi_sampler_change(kf_sampler *s, kfi_change change);

#endif
