/* SPDX-License-Identifier: Apache-2.0 */
/*
** What routing makes of the batches of two_term: each step's samples go to a planner, which splits
** and moves sequences until all ranks take as long, within the memory that the batches were made
** for.
**
** Planning takes a few milliseconds a step, a data set has up to millions of steps, and their mean
** is what is wanted: at most BUCKET_MOST_STEPS are planned, evenly spaced over the epoch.
*/
#include <stdlib.h>

#include "cmd_bucket.h"

enum { BUDGET_US = 2000 };

/* Sums over the planned steps; memory and compute over their ranks, as shares of the limits. */
typedef struct sums {
  int64_t n, n_ranks, n_tokens, unlevelled;
  double seconds, imbalance;
  double memory, max_memory, compute, max_compute;
} sums;

static void add_rank(sums *s, double memory, double compute) {
  s->n_ranks++;
  s->memory += memory;
  s->compute += compute;
  if (memory > s->max_memory) s->max_memory = memory;
  if (compute > s->max_compute) s->max_compute = compute;
}

static void add_plan(sums *s, const kf_plan *plan, double mem_tokens, double comp_s) {
  s->imbalance += 1 - 1 / plan->figures.max_over_mean;
  s->seconds += plan->figures.step_s;
  for (int32_t r = 0; r < plan->n_ranks; r++)
    add_rank(s, (double)plan->load_tokens[r] / mem_tokens, plan->compute_s[r] / comp_s);
}

/* The step as it is, every sample on the rank that drew it. */
static void add_home(sums *s, const kf_batch *b, const kf_cost *cost, double mem_tokens,
                     double comp_s) {
  double most = 0, all = 0;
  for (int32_t r = 0; r < b->n_ranks; r++) {
    double tokens = 0, work = 0;
    for (int64_t i = b->rank_off[r]; i < b->rank_off[r + 1]; i++) {
      tokens += (double)b->len[i];
      work += kf_cost_work(cost, b->len[i]);
    }
    add_rank(s, tokens / mem_tokens, work / comp_s);
    if (work > most) most = work;
    all += work;
  }
  s->imbalance += most > 0 ? 1 - all / (most * b->n_ranks) : 0;
  s->seconds += most;
  s->unlevelled++;
}

static kf_status level_steps(kf_sampler *sampler, kf_planner *planner,
                             const kf_bucket_options *options, double comp_s, sums *s) {
  int64_t n_steps = kf_sampler_steps(sampler);
  int64_t n = n_steps < BUCKET_MOST_STEPS ? n_steps : BUCKET_MOST_STEPS;
  double mem_tokens = (double)options->mem_tokens;
  const kf_sampled *sampled;
  const kf_plan *plan;
  kf_status status;
  while (s->n < n) {
    if ((status = kf_sampler_next(sampler, &sampled))) return status;
    if (sampled->step != s->n * n_steps / n) continue;
    status = kf_planner_plan(planner, &sampled->batch, &plan);
    if (status == KF_EINFEASIBLE)
      add_home(s, &sampled->batch, &options->cost, mem_tokens, comp_s);
    else if (status)
      return status;
    else
      add_plan(s, plan, mem_tokens, comp_s);
    for (int64_t i = 0; i < sampled->batch.n_seqs; i++) s->n_tokens += sampled->batch.len[i];
    s->n++;
  }
  return KF_OK;
}

kf_status bucket_level(kf_sampler *sampler, const kf_bucket_options *options, bucket_result *out) {
  kf_planner_options planning = {.cost = options->cost, .budget = kf_planner_budget(BUDGET_US)};
  kf_planner *planner = NULL;
  sums s = {0};
  kf_epoch *epoch = &out->epoch[BALANCED];
  int32_t n_ranks = options->n_ranks;
  int64_t *cap = malloc((size_t)n_ranks * sizeof *cap);
  kf_status status = cap ? KF_OK : kf_fail(KF_ENOMEM, "out of memory for the ranks' caps");
  for (int32_t r = 0; cap && r < n_ranks; r++) cap[r] = options->mem_tokens;
  planning.mem_tokens = cap;
  if (!status) status = kf_planner_create(&planning, &planner);
  if (!status) status = level_steps(sampler, planner, options, out->buckets[TWO_TERM]->comp_s, &s);
  kf_planner_free(planner);
  free(cap);
  if (status) return status;
  *epoch = out->epoch[TWO_TERM];
  out->planned_steps = s.n;
  out->unlevelled_steps = s.unlevelled;
  if (s.n == 0) return KF_OK;
  epoch->imbalance_rate = s.imbalance / (double)s.n;
  epoch->mean_memory_use = s.memory / (double)s.n_ranks;
  epoch->max_memory_use = s.max_memory;
  epoch->mean_compute_use = s.compute / (double)s.n_ranks;
  epoch->max_compute_use = s.max_compute;
  epoch->predicted_tokens_per_s = s.seconds > 0 ? (double)s.n_tokens / s.seconds : 0;
  epoch->predicted_s = s.seconds * ((double)epoch->n_tokens / (double)s.n_tokens);
  return KF_OK;
}
