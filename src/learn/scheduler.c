/* SPDX-License-Identifier: Apache-2.0 */
/*
** The online scheduler: a planner, the cost it plans with, and what is learned from times.
**
**     reports --settle--> history --every rebalance_interval steps--> planner's options
**     batch --plan--> plan --load--> what history expects of each rank
**
** Everything here is a function of the options, the batches and the reports, in their order: ranks
** that see the same plan the same. The clock is never read.
*/
#include "scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/planning.h"
#include "../real.h"

#define MOST_SECONDS 86400 /* a step that takes a day is a unit mistaken, */
#define LEAST_SECONDS 1e-9 /* as is work of less than a nanosecond */

/* --------------------------------------------------------------------- create */

static void lay(kf_scheduler *s, kfi_layout *layout) {
  int32_t n = s->history.n_ranks, n_bags = s->metrics.n_bags;
  kfi_history_lay(&s->history, layout);
  s->report = KFI_TAKE(layout, kfi_times, n);
  s->speed = KFI_TAKE(layout, double, n);
  s->cap = KFI_TAKE(layout, int64_t, n);
  s->busy_s = KFI_TAKE(layout, double, n);
  s->predicted_s = KFI_TAKE(layout, double, n);
  s->busy_share = KFI_TAKE(layout, double, n);
  s->pressure = KFI_TAKE(layout, double, n);
  s->counters = KFI_TAKE(layout, kf_counters, n);
  s->bag_busy = KFI_TAKE(layout, double, n_bags);
  s->bag_tokens = KFI_TAKE(layout, double, n_bags);
  s->bag_samples = KFI_TAKE(layout, double, n_bags);
  s->planned_tokens = KFI_TAKE(layout, double, n);
  s->planned_samples = KFI_TAKE(layout, double, n);
  s->planned_pressure = KFI_TAKE(layout, double, n);
  s->bag_first = KFI_TAKE(layout, int32_t, n_bags + 1);
  s->drift_speed = KFI_TAKE(layout, double, n);
}

kf_status kfi_scheduler_lay(kf_scheduler *s) {
  kfi_layout layout = {0};
  lay(s, &layout);
  if (!kfi_layout_reserve(&layout, &s->memory)) return KF_ENOMEM;
  memset(layout.base, 0, s->memory.n_bytes);
  lay(s, &layout);
  return KF_OK;
}

void kfi_scheduler_begin(kf_scheduler *s) {
  s->options.cost = s->start;
  for (int32_t r = 0; r < s->history.n_ranks; r++) s->speed[r] = kfi_exp(-s->history.slow_start[r]);
  for (int c = 0; c < KFI_CLASSES; c++) s->correction[c] = 1;
  s->corrected = false;
}

/* The arrays, and what stands in them at the start. */
static kf_status allocate(const kf_scheduler_options *o, kf_scheduler *s) {
  kf_status status;
  const kf_bags *bags = o->plan.bags;
  int32_t n = s->start.cluster.n_ranks;
  s->history.n_ranks = n;
  s->metrics.n_bags = bags ? bags->n_bags : n;
  if ((status = kfi_scheduler_lay(s))) return status;
  kfi_history_start(&s->history, &s->start, o->plan.speed);
  kfi_scheduler_begin(s);
  for (int32_t r = 0; r < n; r++) {
    s->drift_speed[r] = s->speed[r];
    s->cap[r] = o->plan.mem_tokens ? o->plan.mem_tokens[r] : 0;
  }
  for (int32_t b = 0; b <= s->metrics.n_bags; b++) s->bag_first[b] = bags ? bags->first[b] : b;
  if (bags) s->bags = *bags;
  s->options = o->plan;
  kfi_scheduler_own(s);
  for (int c = 0; c < KFI_CLASSES; c++) s->drift_class[c] = 1;
  return KF_OK;
}

void kfi_scheduler_own(kf_scheduler *s) {
  s->bags.first = s->bag_first;
  s->options.speed = s->speed;
  if (s->options.bags) s->options.bags = &s->bags;
  if (s->options.mem_tokens) s->options.mem_tokens = s->cap;
}

/* What the planner does not look at. */
static kf_status check_options(const kf_scheduler_options *o) {
  const kf_cost *cost = &o->plan.cost;
  int32_t n_ranks = cost->cluster.n_ranks;
  if (n_ranks < 1 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "a scheduler of %d ranks, expected 1 to %d", n_ranks, KF_MAX_RANKS);
  if (o->rebalance_interval < 0)
    return kfi_fail(KF_EINVAL, "rebalance_interval is %lld, expected 1 or more",
                    (long long)o->rebalance_interval);
  if (o->cost_model < KF_COST_HISTORY || o->cost_model > KF_COST_MODELLED)
    return kfi_fail(KF_EINVAL, "cost_model is %d, expected a kf_cost_model", (int)o->cost_model);
  if (!(cost->linear_s > 0) && !(cost->quadratic_s > 0))
    return kfi_fail(KF_EINVAL,
                    "a cost of %g seconds a token and %g a token squared, expected one above 0",
                    cost->linear_s, cost->quadratic_s);
  return KF_OK;
}

static kf_status build(const kf_scheduler_options *o, kf_scheduler *s) {
  kf_status status;
  s->start = o->plan.cost;
  s->cost_model = o->cost_model;
  s->interval = o->rebalance_interval ? o->rebalance_interval : KF_DEFAULT_INTERVAL;
  s->log_level = o->log_level ? o->log_level : KF_LOG_INFO;
  s->log = o->log;
  s->log_user = o->log_user;
  if ((status = kf_planner_create(&o->plan, &s->planner))) return status; /* checks the rest */
  if ((status = allocate(o, s))) return status;
  kfi_metrics_start(s);
  return kfi_planner_reset(s->planner, &s->options);
}

kf_status kf_scheduler_create(const kf_scheduler_options *o, kf_scheduler **out) {
  kf_status status;
  if (!o || !out) return kfi_fail(KF_EINVAL, "kf_scheduler_create: options or out is NULL");
  if ((status = check_options(o))) return status;
  kf_scheduler *s = calloc(1, sizeof *s);
  if (!s) return kfi_fail_memory(sizeof *s, "a scheduler");
  if ((status = build(o, s))) {
    kf_scheduler_free(s);
    return status;
  }
  *out = s;
  return KF_OK;
}

void kf_scheduler_free(kf_scheduler *s) {
  if (!s) return;
  kf_planner_free(s->planner);
  kfi_buffer_free(&s->memory);
  kfi_buffer_free(&s->factors);
  free(s);
}

/* ---------------------------------------------------------------------- learn */

/*
** The speeds to plan with. The planner knows of no overhead: it gives ranks work in proportion to
** their speeds. Ranks are done together after T tokens' worth of time if rank r is given speed_r *
** T less the overhead E, so E/T is taken off each speed; by their mean they stay what they were.
** Without this a rank of half the speed is late by as much as the overhead.
*/
static void apply_speeds(kf_scheduler *s) {
  const kfi_history *h = &s->history;
  double mean = 0, share = 0;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    double moved = h->slow[r] - h->slow_start[r];
    s->speed[r] = kfi_exp(-h->slow_start[r] - kfi_trust(moved, kfi_history_rank_error(h, r)));
    mean += s->speed[r] / h->n_ranks;
  }
  if (h->rank_tokens > 0) share = fmin(h->law.overhead_tokens / h->rank_tokens, 0.5);
  for (int32_t r = 0; r < h->n_ranks; r++) {
    double rest = (s->speed[r] - share * mean) / (1 - share);
    s->speed[r] = fmin(fmax(fmax(rest, s->speed[r] / 4), 1e-6), 1e6);
  }
}

/* Make the planner plan with what history has learned. */
static void apply(kf_scheduler *s) {
  const kfi_history *h = &s->history;
  s->corrected = false;
  if (s->cost_model != KF_COST_HISTORY || h->n_steps == 0) return;
  s->options.cost.linear_s = h->law.linear_s;
  s->options.cost.quadratic_s = h->law.quadratic_s;
  s->options.cost.constant_s = h->law.constant_tokens * h->law.linear_s;
  apply_speeds(s);
  for (int32_t i = 0; i < h->n_slots; i++) {
    s->correction[h->class_of[i]] = h->factor[i];
    s->corrected |= h->factor[i] != 1;
  }
  /* Cannot fail: the law is finite and above 0, and as many ranks take no more memory. */
  kf_status status = kfi_planner_reset(s->planner, &s->options);
  (void)status;
}

kf_status kf_scheduler_update_stats(kf_scheduler *s, int32_t rank, double seconds,
                                    const kf_counters *counters) {
  if (!s) return kfi_fail(KF_EINVAL, "kf_scheduler_update_stats: scheduler is NULL");
  int32_t n = s->history.n_ranks;
  if (rank < 0 || rank >= n)
    return kfi_fail(KF_EINVAL, "times of rank %d, expected a rank from 0 to %d", rank, n - 1);
  if (!s->awaiting)
    return kfi_fail(KF_EINVAL, "rank %d took %g s, but no step is planned whose times are due",
                    rank, seconds);
  if (!(seconds >= 0) || seconds > MOST_SECONDS)
    return kfi_fail(KF_EINVAL, "rank %d took %g s, expected 0 to %d", rank, seconds, MOST_SECONDS);
  if (seconds < LEAST_SECONDS && (seconds > 0 || s->planned_tokens[rank] > 0))
    return kfi_fail(KF_EINVAL, "rank %d took %g s for %.0f tokens, expected %g or more", rank,
                    seconds, s->planned_tokens[rank], LEAST_SECONDS);
  if (counters) {
    const int64_t whole[] = {counters->memory_bytes, counters->memory_limit_bytes, counters->tokens,
                             counters->samples};
    const double time[] = {counters->plan_s, counters->route_s, counters->compute_s,
                           counters->wait_s};
    static const char *const name[] = {
      "memory_bytes", "memory_limit_bytes", "tokens", "samples", "plan_s",
      "route_s",      "compute_s",          "wait_s"};
    for (int i = 0; i < 4; i++) {
      if (whole[i] < 0)
        return kfi_fail(KF_EINVAL, "rank %d: %s is %lld, expected 0 or more", rank, name[i],
                        (long long)whole[i]);
      if (!(time[i] >= 0) || time[i] > MOST_SECONDS)
        return kfi_fail(KF_EINVAL, "rank %d: %s is %g, expected 0 to %d", rank, name[4 + i],
                        time[i], MOST_SECONDS);
    }
  }
  s->report[rank] = (kfi_times){.seconds = seconds, .given = 1};
  if (counters) s->report[rank].counters = *counters;
  return KF_OK;
}

kf_status kf_scheduler_settle(kf_scheduler *s) {
  bool given = false;
  if (!s) return kfi_fail(KF_EINVAL, "kf_scheduler_settle: scheduler is NULL");
  if (!s->awaiting) return KF_OK;
  kfi_history *h = &s->history;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    h->seconds[r] = s->report[r].given ? s->report[r].seconds : 0;
    given |= s->report[r].given != 0;
  }
  s->awaiting = false;
  if (!given) return KF_OK;
  kfi_metrics_step(s);
  if (kfi_history_observe(h))
    kfi_note(s, KF_LOG_DEBUG, "step %lld: the last %d steps agree on a jump",
             (long long)(s->step - 1), KFI_RECENT);
  kfi_metrics_learned(s);
  s->refit_due = true;
  return KF_OK;
}

/* ----------------------------------------------------------------------- plan */

/* The batch with each class's correction in its factors; the batch itself where there is none. */
static kf_status correct(kf_scheduler *s, const kf_batch *batch, kf_batch *out) {
  *out = *batch;
  if (!s->corrected || !batch->profile || batch->n_seqs <= 0) return KF_OK;
  double *factor = kfi_buffer_reserve(&s->factors, (size_t)batch->n_seqs * sizeof *factor);
  if (!factor) return KF_ENOMEM;
  for (int64_t i = 0; i < batch->n_seqs; i++) {
    double given = kfi_factor(batch, i);
    factor[i] = given * s->correction[kfi_class(&batch->profile[i])];
    if (given > 0 && given <= 1e6) factor[i] = fmin(fmax(factor[i], 1e-300), 1e6);
  }
  out->factor = factor;
  return KF_OK;
}

kf_status kf_scheduler_plan(kf_scheduler *s, const kf_batch *batch, const kf_plan **out) {
  kf_status status;
  kf_batch corrected;
  const kf_plan *plan;
  if (!s || !batch || !out) return kfi_fail(KF_EINVAL, "kf_scheduler_plan: a pointer is NULL");
  if ((status = kf_scheduler_settle(s))) return status;
  if (s->refit_due && s->step % s->interval == 0) {
    kfi_history_refit(&s->history);
    apply(s);
    kfi_metrics_refit(s);
    s->refit_due = false;
  }
  if ((status = kfi_planner_check(s->planner, batch))) return status;
  if ((status = correct(s, batch, &corrected))) return status;
  if ((status = kf_planner_plan(s->planner, &corrected, &plan))) return status;
  kfi_history_load(&s->history, batch, plan);
  memset(s->report, 0, (size_t)s->history.n_ranks * sizeof *s->report);
  kfi_metrics_plan(s, batch, plan);
  s->awaiting = true;
  s->step++;
  *out = plan;
  return KF_OK;
}

int64_t kf_scheduler_steps(const kf_scheduler *s) { return s ? s->step : 0; }

/* --------------------------------------------------------------------- hashes */

uint64_t kfi_scheduler_kind(const kf_scheduler *s) {
  const kf_cost *c = &s->start;
  const int64_t whole[] = {s->history.n_ranks, c->layers, c->heads, c->cluster.ranks_per_node};
  const double real[] = {c->linear_s,          c->quadratic_s,      c->constant_s,
                         c->ulysses_bytes,     c->route_bytes,      c->cluster.intra_Bps,
                         c->cluster.inter_Bps, c->cluster.latency_s};
  uint64_t h = kfi_hash(KF_HASH_START, whole, sizeof whole / sizeof *whole);
  h = kfi_hash_reals(h, real, sizeof real / sizeof *real);
  return kfi_hash_reals(h, s->history.slow_start, s->history.n_ranks);
}

uint64_t kf_scheduler_hash(const kf_scheduler *s) {
  if (!s) return 0;
  const kfi_history *h = &s->history;
  const kfi_law *law = &h->law;
  /* The step that is planned does not count yet: a rank whose plan has failed is not another's. */
  const int64_t whole[] = {(int64_t)kf_planner_hash(s->planner), s->step - s->awaiting, h->n_steps,
                           s->interval, (int64_t)s->cost_model};
  const double real[] = {law->linear_s,        law->quadratic_s, law->constant_tokens,
                         law->overhead_tokens, law->comm_scale,  h->noise,
                         h->scatter,           h->rank_tokens};
  uint64_t hash = kfi_hash(KF_HASH_START, whole, sizeof whole / sizeof *whole);
  hash = kfi_hash_reals(hash, real, sizeof real / sizeof *real);
  hash = kfi_hash_reals(hash, law->correction, h->n_slots);
  hash = kfi_hash_reals(hash, s->correction, KFI_CLASSES);
  hash = kfi_hash_reals(hash, h->slow, h->n_ranks);
  hash = kfi_hash_reals(hash, h->regression.target,
                        h->regression.n); /* every row that counts leaves its mark */
  return kfi_hash_reals(hash, h->regression.rank_target, h->n_ranks);
}
