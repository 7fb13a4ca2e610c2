/* SPDX-License-Identifier: Apache-2.0 */
/*
** Training with the balancer gives the numbers of training without it: random small models, mixes
** and configurations, a few steps of both variants on the same samples. Every gradient of every
** step is compared, and losses; then both variants go on from the same parameters.
*/
#ifndef PARITY_H
#define PARITY_H

#include <cblas.h>

#include "dice.h"
#include "train/train.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct parity {
  kf_comm *comm;
  char mix[200], what[400];
  kf_config config;
  train_options options;
  train_job *job;
  train_variant *variant[2];
  float *grads; /* of the variant without */
} parity;

/* Says what differs, and which seed shows it; tells the other ranks. */
static inline bool parity_differ(parity *p, uint64_t seed, const char *what, double by) {
  fprintf(stderr, "seed %" PRIu64 ", rank %d, %s: %s differs by %g\n", seed,
          (int)kf_comm_rank(p->comm), p->what, what, by);
  kf_comm_fail(p->comm, "numbers differ");
  return false;
}

static inline bool parity_fail(parity *p, uint64_t seed) {
  fprintf(stderr, "seed %" PRIu64 ", rank %d, %s: %s\n", seed, (int)kf_comm_rank(p->comm), p->what,
          kf_last_error());
  kf_comm_fail(p->comm, kf_last_error());
  return false;
}

/* A mix of one to three codes: images, keyframes, videos, of a few dozen to a few hundred
** tokens. */
static inline void parity_mix(dice *d, parity *p) {
  int n = 1 + (int)dice_int(d, 3);
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    int ranks = 1 + (int)dice_int(d, 3), samples = 1 + (int)dice_int(d, 4);
    int side = 16 * (2 + (int)dice_int(d, 12)), frames = 1 + (int)dice_int(d, 6);
    int video = dice_one_in(d, 2);
    at += (size_t)snprintf(p->mix + at, sizeof p->mix - at, "%sg%db%di%df%ds%d", i ? "," : "",
                           ranks, samples, side, video ? 4 * frames : frames, video);
  }
}

static inline void parity_config(dice *d, parity *p, int32_t n_ranks) {
  kf_config *c = &p->config;
  c->cost_model = dice_one_in(d, 2) ? KF_COST_STATIC : KF_COST_HISTORY;
  c->rebalance_interval = 2;
  if (dice_one_in(d, 2))
    c->max_chunk_size = 700 / n_ranks + dice_int(d, 100); /* no sample has 700 */
  if (dice_one_in(d, 3)) snprintf(c->bag_size, sizeof c->bag_size, "%d", (int)n_ranks);
  if (dice_one_in(d, 3)) c->affinity_policy = KF_AFFINITY_SPREAD;
  strcpy(c->cluster, dice_one_in(d, 2) ? "free" : "");
}

static inline kf_status parity_create(parity *p, uint64_t seed) {
  dice d = {seed};
  int32_t n_ranks = kf_comm_size(p->comm);
  int heads = 1 + (int)dice_int(&d, 5), head_dim = 2 * (1 + (int)dice_int(&d, 9));
  parity_mix(&d, p);
  parity_config(&d, p, n_ranks);
  p->options = (train_options){.comm = p->comm,
                               .model = {heads * head_dim, 1 + (int)dice_int(&d, 3), heads},
                               .data = {.mix = p->mix, .seed = seed},
                               .keep_bytes = dice_one_in(&d, 3) ? 1 : 0,
                               .seed = seed};
  p->options.data.scale = dice_real(&d, 0.1, 0.5);
  snprintf(p->config.model, sizeof p->config.model, "d=%d,layers=%d,heads=%d", p->options.model.dim,
           p->options.model.layers, heads);
  snprintf(p->what, sizeof p->what, "%.60s, mix %s x %.2f, bags \"%.60s\", max chunk %" PRId64,
           p->config.model, p->mix, p->options.data.scale, p->config.bag_size,
           p->config.max_chunk_size);
  kf_scheduler_options *scheduling = NULL;
  p->config.gamma = 1;
  kf_status status = kf_config_resolve(&p->config, n_ranks, &scheduling);
  if (!status) status = train_job_create(&p->options, &p->job);
  for (int v = 0; v < 2 && !status; v++)
    status = train_variant_create(p->job, scheduling, v, &p->variant[v]);
  kf_scheduler_options_free(scheduling);
  if (status) return status;
  p->grads = malloc((size_t)train_job_params(p->job)->n_floats * sizeof(float));
  return p->grads ? KF_OK : kf_fail(KF_ENOMEM, "out of memory: gradients");
}

/* adaLN-Zero begins with most gradients 0: here every tensor has values. */
static inline void parity_randomise(parity *p, uint64_t seed) {
  const train_params *params = train_job_params(p->job);
  for (int v = 0; v < 2; v++) {
    dice d = {seed + 99};
    for (int64_t i = 0; i < params->n_floats; i++)
      train_variant_params(p->variant[v])[i] = (float)dice_real(&d, -0.15, 0.15);
  }
}

static inline bool parity_step(parity *p, uint64_t seed, int64_t step) {
  const train_params *params = train_job_params(p->job);
  size_t n_bytes = (size_t)params->n_floats * sizeof(float);
  train_result result[2];
  for (int v = 0; v < 2; v++) {
    if (train_run_step(p->job, p->variant[v], step, &result[v])) return parity_fail(p, seed);
    if (!v) memcpy(p->grads, train_job_grads(p->job), n_bytes);
  }
  const kf_batch *batch;
  int64_t samples = 0;
  if (train_data_lengths(train_job_data(p->job), step, &batch)) return parity_fail(p, seed);
  for (int32_t r = 0; r < batch->n_ranks; r++) samples += result[1].counters[r].samples;
  if (samples != batch->n_seqs) return parity_differ(p, seed, "number of samples", (double)samples);
  double by = fabs(result[1].loss - result[0].loss) / fmax(fabs(result[0].loss), 1e-30);
  if (!(by < 1e-5)) return parity_differ(p, seed, "loss", by);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    double worst = 0, most = 1e-30;
    for (int64_t i = t->offset; i < t->offset + train_tensor_size(t); i++) {
      worst = fmax(worst, fabs((double)train_job_grads(p->job)[i] - p->grads[i]));
      most = fmax(most, fabs(p->grads[i]));
      if (!isfinite(train_job_grads(p->job)[i])) worst = INFINITY;
    }
    if (worst > 1e-4 * most) return parity_differ(p, seed, t->name, worst / most);
  }
  memcpy(train_variant_params(p->variant[1]), train_variant_params(p->variant[0]), n_bytes);
  return true;
}

/* `rounds` random problems on the ranks of a comm. */
static inline bool parity_check(kf_comm *comm, uint64_t seed, int rounds) {
  bool good = true;
  openblas_set_num_threads(1);
  for (int i = 0; i < rounds && good; i++) {
    parity p = {.comm = comm};
    uint64_t of_round = seed * 1000 + (uint64_t)i;
    if (parity_create(&p, of_round)) good = parity_fail(&p, of_round);
    if (good) parity_randomise(&p, of_round);
    for (int64_t step = 0; step < 3 && good; step++) good = parity_step(&p, of_round, step);
    for (int v = 0; v < 2 && good; v++)
      if (train_check_ranks(p.job, p.variant[v])) good = parity_fail(&p, of_round);
    free(p.grads);
    for (int v = 0; v < 2; v++) train_variant_free(p.variant[v]);
    train_job_free(p.job);
  }
  return good;
}

#endif
