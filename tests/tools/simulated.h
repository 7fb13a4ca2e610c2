/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training job on a simulated clock: a scheduler plans, and each rank takes as long as a true cost,
** which the scheduler does not know, says of what the plan gives it. Only arithmetic is used, so that
** times are the same to the bit with every compiler.
*/
#ifndef TRAINING_H
#define TRAINING_H

#include <stdlib.h>

#include "dice.h"
#include "scheduler_wish.h"

enum { TRAINING_RANKS = 32, TRAINING_KINDS = 4 };

typedef struct training {
  kf_scheduler *scheduler;
  const char *mix; /* of every step; only the texts' lengths change */
  kf_cost truth;
  double overhead_s;              /* of a rank and step */
  double kind_s[TRAINING_KINDS];  /* a kf_kind computes so many times what the truth says; 0: 1 */
  const kf_profile *profile;      /* of the sequences; NULL: what the mix says */
  double speed[TRAINING_RANKS];   /* true ones */
  double noise;                   /* of what is reported, relative */
  double comm;                    /* true over predicted time of moving data; 0: none is counted */
  double stretch[TRAINING_RANKS]; /* what is reported of the next step is so many times too long */
  uint64_t seed;
  int64_t step;

  /* Of the last step: */
  const kf_plan *plan;
  uint64_t hash;
  double true_s[TRAINING_RANKS], said_s[TRAINING_RANKS];
  double max_over_mean; /* of true_s */
} training;

/* Nearly normal: the sum of twelve. */
static inline double training_normal(dice *d) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += dice_real(d, 0, 1);
  return sum;
}

/* The truth: attention is twice as dear, all 30% slower, and a sequence costs as much as 50 tokens. */
static inline training training_of(kf_scheduler *scheduler, const char *mix, uint64_t seed) {
  training t = {.scheduler = scheduler, .mix = mix, .noise = 0.03, .comm = 1, .seed = seed};
  t.truth = kf_scheduler_metrics(scheduler)->cost;
  t.truth.linear_s *= 1.3;
  t.truth.quadratic_s *= 2.6;
  t.truth.constant_s = 50 * t.truth.linear_s;
  for (int r = 0; r < TRAINING_RANKS; r++) t.speed[r] = t.stretch[r] = 1;
  return t;
}

/* What the plan truly takes on each rank. */
static inline void training_clock(training *t, const kf_batch *batch, const kf_plan *plan) {
  int32_t n = plan->n_ranks;
  double most = 0, sum = 0;
  for (int32_t r = 0; r < n; r++) t->true_s[r] = 0;
  for (int64_t i = 0; i < plan->n_chunks; i++) {
    const kf_chunk *c = &plan->chunk[i];
    double l = (double)batch->len[c->seq], f = batch->factor ? batch->factor[c->seq] : 1;
    int32_t kind = batch->profile ? batch->profile[c->seq].kind : 0;
    if (t->kind_s[kind] > 0) f *= t->kind_s[kind];
    t->true_s[c->destination] +=
      f * (t->truth.linear_s * (double)c->length +
           t->truth.quadratic_s * l * l * (double)c->heads / plan->heads + t->truth.constant_s);
  }
  for (int32_t r = 0; r < n; r++) {
    if (t->true_s[r] > 0) t->true_s[r] = (t->true_s[r] + t->overhead_s) / t->speed[r];
    t->true_s[r] += t->comm * plan->comm_s[r];
    if (t->true_s[r] > most) most = t->true_s[r];
    sum += t->true_s[r];
  }
  t->max_over_mean = sum > 0 ? most * n / sum : 1;
}

/* What a rank says it took: noise, and what was asked for. */
static inline double training_said(const training *t, int32_t rank) {
  dice d = {t->seed * 1000003 + (uint64_t)t->step * 257 + (uint64_t)rank};
  return t->true_s[rank] * (1 + t->noise * training_normal(&d)) * t->stretch[rank];
}

/* Plan this batch and report all ranks' times. */
static inline kf_status training_take(training *t, const kf_batch *batch) {
  kf_status status;
  if ((status = kf_scheduler_plan(t->scheduler, batch, &t->plan))) return status;
  t->hash = t->plan->hash;
  training_clock(t, batch, t->plan);
  for (int32_t r = 0; r < batch->n_ranks; r++) {
    t->said_s[r] = training_said(t, r);
    if ((status = kf_scheduler_update_stats(t->scheduler, r, t->said_s[r], NULL))) return status;
    t->stretch[r] = 1;
  }
  t->step++;
  return KF_OK;
}

/* The batch of this step: free it. */
static inline kf_status training_batch(const training *t, kf_batch **batch) {
  int32_t n = kf_scheduler_metrics(t->scheduler)->n_ranks;
  kf_status status = kf_mix_create(t->mix, n, t->seed * 100003 + (uint64_t)t->step, batch);
  if (!status && t->profile) (*batch)->profile = t->profile;
  return status;
}

static inline kf_status training_step(training *t) {
  kf_batch *batch;
  kf_status status = training_batch(t, &batch);
  if (status) return status;
  status = training_take(t, batch);
  kf_batch_free(batch);
  return status;
}

#endif
