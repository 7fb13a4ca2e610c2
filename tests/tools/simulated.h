/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training job on a simulated clock: a scheduler plans, and each rank takes as long as a true
** cost, which the scheduler does not know, says of what the plan gives it.
*/
#ifndef SIMULATED_H
#define SIMULATED_H

#include <stdlib.h>

#include "dice.h"
#include "scheduler_wish.h"

enum { TRAINING_RANKS = 32 };

typedef struct training {
  kf_scheduler *scheduler;
  const char *mix;                /* of every step; only the texts' lengths change */
  kf_sim_clock clock;             /* the truth; its speed is: */
  double speed[TRAINING_RANKS];   /* true ones */
  const kf_profile *profile;      /* of the sequences; NULL: what the mix says */
  double stretch[TRAINING_RANKS]; /* what is reported of the next step is so many times too long */
  int64_t step;

  /* Of the last step: */
  const kf_plan *plan;
  uint64_t hash;
  kf_sim_times times[TRAINING_RANKS];
  double max_over_mean; /* of the true times */
} training;

/* The truth: attention is twice as dear, all 30% slower, and a sequence costs as much as 50
** tokens. */
static inline training training_of(kf_scheduler *scheduler, const char *mix, uint64_t seed) {
  training t = {.scheduler = scheduler, .mix = mix, .clock = {.noise = 0.03, .seed = seed}};
  t.clock.cost = kf_scheduler_metrics(scheduler)->cost;
  t.clock.cost.linear_s *= 1.3;
  t.clock.cost.quadratic_s *= 2.6;
  t.clock.cost.constant_s = 50 * t.clock.cost.linear_s;
  for (int r = 0; r < TRAINING_RANKS; r++) t.speed[r] = t.stretch[r] = 1;
  return t;
}

/* What the plan truly takes on each rank. */
static inline void training_clock(training *t, const kf_batch *batch, const kf_plan *plan) {
  double most = 0, sum = 0;
  t->clock.speed = t->speed;
  if (kf_sim_step(&t->clock, t->step, batch, plan, t->times)) abort();
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    most = fmax(most, t->times[r].true_s);
    sum += t->times[r].true_s;
  }
  t->max_over_mean = sum > 0 ? most * plan->n_ranks / sum : 1;
}

/* What a rank says it took: noise, and what was asked for. */
static inline double training_said(const training *t, int32_t rank) {
  return t->times[rank].measured_s * t->stretch[rank];
}

/* Plan this batch and report all ranks' times. */
static inline kf_status training_take(training *t, const kf_batch *batch) {
  kf_status status;
  if ((status = kf_scheduler_plan(t->scheduler, batch, &t->plan))) return status;
  t->hash = t->plan->hash;
  training_clock(t, batch, t->plan);
  for (int32_t r = 0; r < batch->n_ranks; r++) {
    if ((status = kf_scheduler_update_stats(t->scheduler, r, training_said(t, r), NULL)))
      return status;
    t->stretch[r] = 1;
  }
  t->step++;
  return KF_OK;
}

/* The batch of this step: free it. */
static inline kf_status training_batch(const training *t, kf_batch **batch) {
  int32_t n = kf_scheduler_metrics(t->scheduler)->n_ranks;
  kf_status status = kf_mix_create(t->mix, n, t->clock.seed * 100003 + (uint64_t)t->step, batch);
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
