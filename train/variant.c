/* SPDX-License-Identifier: Apache-2.0 */
/* One variant of training: parameters, AdamW with clipping and averaging, and the scheduler. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Without the balancer every rank is a bag of its own, whatever it has to hold. */
static kf_status make_scheduler(const kf_scheduler_options *o, bool balance, kf_scheduler **out) {
  kf_scheduler_options at_home = *o;
  kf_bags *bags = NULL;
  if (balance) return kf_scheduler_create(o, out);
  kf_status status = kf_bags_parse("g1n1", o->plan.cost.cluster.n_ranks, &bags);
  at_home.plan.bags = bags;
  at_home.plan.mem_tokens = NULL;
  at_home.plan.max_chunk_size = 0;
  if (!status) status = kf_scheduler_create(&at_home, out);
  kf_bags_free(bags);
  return status;
}

kf_status train_variant_create(train_job *job, const kf_scheduler_options *options, bool balance,
                               train_variant **out) {
  size_t n = (size_t)job->params.n_floats;
  kf_status status;
  train_variant *variant = calloc(1, sizeof *variant);
  if (!variant) return kf_fail(KF_ENOMEM, "out of memory: a variant of training");
  variant->job = job;
  if ((status = make_scheduler(options, balance, &variant->scheduler))) goto fail;
  variant->block = aligned_alloc(64, 4 * n * sizeof(float));
  if (!variant->block) {
    status = train_fail(KF_ENOMEM, "out of memory: %zu bytes for parameters and their moments",
                        4 * n * sizeof(float));
    goto fail;
  }
  variant->state = (train_state){variant->block, variant->block + n, variant->block + 2 * n,
                                 variant->block + 3 * n, 0};
  train_params_init(&job->params, job->o.seed, variant->state.p);
  memset(variant->state.m, 0, 2 * n * sizeof(float)); /* v follows */
  memcpy(variant->state.ema, variant->state.p, n * sizeof(float));
  if ((status = kf_step_create(job->o.comm, 0, &variant->step))) goto fail;
  *out = variant;
  return KF_OK;

fail:
  train_variant_free(variant);
  return status;
}

void train_variant_free(train_variant *variant) {
  if (!variant) return;
  kf_step_free(variant->step);
  kf_scheduler_free(variant->scheduler);
  free(variant->block);
  free(variant);
}

kf_scheduler *train_variant_scheduler(train_variant *variant) { return variant->scheduler; }
float *train_variant_params(train_variant *variant) { return variant->state.p; }
const float *train_variant_average(const train_variant *variant) { return variant->state.ema; }

double train_update(const train_params *params, const train_pointwise *pw, const train_options *o,
                    double grad_scale, const float *grads, train_state *state) {
  double t = (double)++state->n_updates;
  double norm = sqrt(pw->sum_squares(grads, params->n_floats)) * grad_scale;
  double clip = norm > o->clip_norm ? o->clip_norm / norm : 1; /* a NaN stays one */
  double ramp = t < (double)o->warmup ? t / (double)o->warmup : 1;
  const double beta1 = 0.9, beta2 = 0.99;
  train_adamw a = {.lr = (float)(o->lr * ramp),
                   .beta1 = (float)beta1,
                   .beta2 = (float)beta2,
                   .eps = 1e-8f,
                   .ema_decay = (float)fmin(o->ema_decay, t / (t + 10)), /* follows at first */
                   .grad_scale = (float)(grad_scale * clip),
                   .correction1 = (float)(1 - pow(beta1, t)),
                   .correction2 = (float)(1 - pow(beta2, t))};
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *tensor = &params->tensor[id];
    int64_t at = tensor->offset;
    a.weight_decay = train_tensor_decays(id) ? (float)o->weight_decay : 0;
    pw->adamw(&a, train_tensor_size(tensor), grads + at, state->p + at, state->m + at,
              state->v + at, state->ema + at);
  }
  return norm;
}

kf_status train_variant_difference(const train_variant *a, const train_variant *b, double *out) {
  const train_job *job = a->job;
  int64_t n = job->params.n_floats;
  double apart = 0, change = 0;
  float *start = malloc((size_t)n * sizeof *start);
  if (!start) return kf_fail(KF_ENOMEM, "out of memory: the first parameters, to compare with");
  train_params_init(&job->params, job->o.seed, start);
  for (int64_t i = 0; i < n; i++) {
    double from_b = (double)a->state.p[i] - b->state.p[i],
           from_start = (double)a->state.p[i] - start[i];
    apart += from_b * from_b;
    change += from_start * from_start;
  }
  free(start);
  *out = change > 0 ? sqrt(apart / change) : 0;
  return KF_OK;
}

kf_status train_check_ranks(train_job *job, const train_variant *variant) {
  size_t n_bytes = (size_t)job->params.n_floats * sizeof(float);
  int64_t mine = (int64_t)(kf_hash_bytes(KF_HASH_START, variant->state.p, n_bytes) >> 1);
  int64_t all[2] = {mine, -mine}; /* the largest and, negated, the smallest */
  kf_status status = kf_comm_reduce(job->o.comm, KF_MAX, KF_I64, 2, all);
  if (status || all[0] == -all[1]) return status;
  return kf_fail(KF_EMISMATCH,
                 "ranks hold different parameters, expected the same bits on all: do all have the "
                 "same C library and MPI?");
}
