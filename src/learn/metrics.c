/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler lets people see: the figures of a step, drift, and the log. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../numbers.h"
#include "../real.h"
#include "scheduler.h"

#define DRIFT 0.0953101798043249 /* log 1.1: what is called a move */
#define DRIFT_ERRORS 4           /* and more standard errors than these */

void kfi_note(const kf_scheduler *s, kf_log_level level, const char *format, ...) {
  char line[400];
  va_list args;
  if (!s->log || level > s->log_level) return;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  s->log(s->log_user, level, line);
}

/* --------------------------------------------------------------------- figures */

/* Of the cost that is planned with: 0 where it is of no model's shape. The width is that of what
** Ulysses moves: a program may route less than whole rows of the model, or more. */
static double gamma_of(const kf_cost *c) {
  double bytes = 4 * c->cluster.elem_bytes * c->layers,
         dim = bytes > 0 ? c->ulysses_bytes / bytes : 0;
  return c->linear_s > 0 ? 6 * dim * c->quadratic_s / c->linear_s : 0;
}

/* What the next plan is made with. */
void kfi_metrics_cost(kf_scheduler *s) {
  const kfi_history *h = &s->history;
  kf_metrics *m = &s->metrics;
  m->cost = s->options.cost;
  m->gamma = gamma_of(&m->cost);
  m->overhead_s = h->law.overhead_tokens * h->law.linear_s;
  m->comm_scale = h->law.comm_scale;
  m->n_corrections = 0;
  for (int32_t i = 0; i < h->n_slots; i++) {
    kf_correction *c = &s->correction_list[m->n_corrections];
    if (h->class_of[i] == 0) continue;
    kfi_class_name(h->class_of[i], &c->kind, &c->resolution);
    c->correction = s->correction[h->class_of[i]];
    m->n_corrections++;
  }
}

void kfi_metrics_learned(kf_scheduler *s) {
  s->metrics.noise = s->history.noise;
  s->metrics.outliers = s->history.n_outliers;
}

void kfi_metrics_start(kf_scheduler *s) {
  s->metrics = (kf_metrics){
    .version = KF_METRICS_VERSION,
    .n_ranks = s->history.n_ranks,
    .n_bags = s->metrics.n_bags,
    .step = -1,
    .max_over_mean = 1,
    .busy_s = s->busy_s,
    .predicted_s = s->predicted_s,
    .busy_share = s->busy_share,
    .memory_pressure = s->pressure,
    .speed = s->speed,
    .counters = s->counters,
    .bag_first = s->bag_first,
    .bag_busy_share = s->bag_busy,
    .bag_tokens_per_s = s->bag_tokens,
    .bag_samples_per_s = s->bag_samples,
    .correction = s->correction_list,
    .drift = s->drift,
  };
  kfi_metrics_learned(s);
  kfi_metrics_cost(s);
}

/* What a rank was expected to take when its step was planned: by the law, which plans follow from
** refit to refit, or, where nothing is learned, by the cost that they are made with. */
static double expected_s(const kf_scheduler *s, int32_t rank) {
  const kfi_history *h = &s->history;
  const kfi_load *load = h->load + (int64_t)rank * KFI_CLASSES;
  const kf_cost *cost = &s->options.cost;
  double sum = 0;
  if (s->cost_model == KF_COST_HISTORY) return h->predicted_s[rank];
  for (int32_t i = 0; i < h->n_slots; i++)
    sum += cost->linear_s * load[i].tokens + cost->quadratic_s * load[i].squares +
           cost->constant_s * load[i].count;
  return sum / s->speed[rank] + h->comm_s[rank];
}

/* Of each rank: what it reported, how it compares. */
static void rank_figures(kf_scheduler *s) {
  kf_metrics *m = &s->metrics;
  double sum = 0, most = 0, error = 0, n_predicted = 0;
  m->step_s = m->predicted_step_s = 0;
  m->n_measured = 0;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    const kfi_times *report = &s->report[r];
    const kf_counters *c = &report->counters;
    s->counters[r] = *c;
    s->busy_s[r] = report->seconds;
    s->predicted_s[r] = expected_s(s, r);
    s->pressure[r] = c->memory_limit_bytes > 0
                       ? (double)c->memory_bytes / (double)c->memory_limit_bytes
                       : s->planned_pressure[r];
    m->predicted_step_s = fmax(m->predicted_step_s, s->predicted_s[r]);
    if (!report->given) continue;
    m->n_measured++;
    sum += report->seconds;
    most = fmax(most, report->seconds);
    m->step_s = fmax(m->step_s, report->seconds + c->wait_s);
    if (!(report->seconds > 0 && s->predicted_s[r] > 0)) continue;
    error += fmin(fabs(s->predicted_s[r] / report->seconds - 1), 10); /* one time is not all */
    n_predicted++;
  }
  m->max_over_mean = sum > 0 ? most * (double)m->n_measured / sum : 1;
  /* history predicts nothing before it has seen times. */
  int64_t n = s->history.n_steps + (s->cost_model != KF_COST_HISTORY);
  if (n > 0 && n_predicted > 0)
    m->mape += fmax(1.0 / 32, 1.0 / (double)n) * (error / n_predicted - m->mape);
}

/* How idle the ranks were, and how unlike each other in that. */
static void idle_figures(kf_scheduler *s) {
  kf_metrics *m = &s->metrics;
  double mean = 0, square = 0;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    s->busy_share[r] = m->step_s > 0 ? s->busy_s[r] / m->step_s : 0;
    if (s->report[r].given) mean += (1 - s->busy_share[r]) / (double)m->n_measured;
  }
  for (int32_t r = 0; r < m->n_ranks; r++) {
    double off = 1 - s->busy_share[r] - mean;
    if (s->report[r].given) square += off * off / (double)m->n_measured;
  }
  m->idle_variance = sqrt(square);
}

/* Tokens and samples a second: as counted by the ranks, or else as planned. */
static void throughput(kf_scheduler *s) {
  kf_metrics *m = &s->metrics;
  bool tokens = false, samples = false;
  double all_tokens = 0, all_samples = 0, per_s = m->step_s > 0 ? 1 / m->step_s : 0;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    tokens |= s->counters[r].tokens > 0;
    samples |= s->counters[r].samples > 0;
  }
  for (int32_t b = 0; b < m->n_bags; b++) {
    int32_t first = s->bag_first[b], end = s->bag_first[b + 1], given = 0;
    double bag_tokens = 0, bag_samples = 0, busy = 0;
    for (int32_t r = first; r < end; r++) {
      bag_tokens += tokens ? (double)s->counters[r].tokens : s->planned_tokens[r];
      bag_samples += samples ? (double)s->counters[r].samples : s->planned_samples[r];
      busy += s->busy_share[r];
      given += s->report[r].given != 0;
    }
    s->bag_busy[b] = given ? busy / given : 0;
    s->bag_tokens[b] = bag_tokens * per_s;
    s->bag_samples[b] = bag_samples * per_s;
    all_tokens += bag_tokens;
    all_samples += bag_samples;
  }
  m->tokens_per_s = all_tokens * per_s;
  m->samples_per_s = all_samples * per_s;
}

void kfi_metrics_step(kf_scheduler *s) {
  kf_metrics *m = &s->metrics;
  if (s->planned_epoch != s->epoch) {
    s->last_epoch_s = s->epoch_s;
    s->epoch_s = 0;
    s->epoch = s->planned_epoch;
  }
  m->step = s->step - 1;
  m->epoch = s->epoch;
  m->begin_s = s->total_s;
  rank_figures(s);
  idle_figures(s);
  throughput(s);
  s->total_s += m->step_s;
  s->epoch_s += m->step_s;
  m->epoch_s = s->epoch_s;
  m->last_epoch_s = s->last_epoch_s;
  m->plan_hash = s->planned_hash;
  m->figures = s->planned;
  kfi_note(
    s, KF_LOG_DEBUG,
    "step %lld: took %.4g s, predicted %.4g s; max/mean %.3f, idle variance %.1f%%, %.4g tokens/s",
    (long long)m->step, m->step_s, m->predicted_step_s, m->max_over_mean, 100 * m->idle_variance,
    m->tokens_per_s);
  for (int32_t b = 0; s->options.bags && b < m->n_bags; b++)
    kfi_note(s, KF_LOG_DEBUG, "step %lld: bag %d (ranks %d-%d) busy %.1f%%, %.4g tokens/s",
             (long long)m->step, b, s->bag_first[b], s->bag_first[b + 1] - 1, 100 * s->bag_busy[b],
             s->bag_tokens[b]);
}

const kf_metrics *kf_scheduler_metrics(const kf_scheduler *s) {
  static const kf_metrics none = {.version = KF_METRICS_VERSION, .step = -1};
  return s ? &s->metrics : &none;
}

void kf_scheduler_new_epoch(kf_scheduler *s) {
  if (s) s->next_epoch++;
}

/* ----------------------------------------------------------------------- drift */

/* Has it moved by more than the limit and its error explain? */
static bool has_moved(double before, double now, double error) {
  double moved = fabs(kfi_log(now / before));
  return moved > DRIFT && moved > DRIFT_ERRORS * error;
}

/* Tell, and count from there. */
KFI_PRINTF(4, 5)
static void tell(kf_scheduler *s, double *before, double now, const char *format, ...) {
  kf_metrics *m = &s->metrics;
  kf_drift d = {.before = *before, .now = now, .step = s->step};
  va_list args;
  va_start(args, format);
  vsnprintf(d.what, sizeof d.what, format, args);
  va_end(args);
  kfi_note(s, KF_LOG_WARNING, "step %lld: %s has moved from %.4g to %.4g (%+.1f%%)",
           (long long)s->step, d.what, *before, now, 100 * (now / *before - 1));
  if (m->n_drifts < KFI_MAX_DRIFTS) s->drift[m->n_drifts++] = d;
  m->drifts++;
  *before = now;
}

static void class_drift(kf_scheduler *s, bool calibrated) {
  const kfi_history *h = &s->history;
  for (int32_t i = 0; i < h->n_slots; i++) {
    int32_t c = h->class_of[i], kind, resolution;
    double error = h->error.correction[i], now = h->factor[i];
    kfi_class_name(c, &kind, &resolution);
    if (!calibrated)
      s->drift_class[c] = now;
    else if (has_moved(s->drift_class[c], now, error))
      tell(s, &s->drift_class[c], now, "correction of %s, %d pixels", kfi_kind_word(kind),
           resolution);
  }
}

/* Count from the law as it is now, or, where it is counted from already, tell what has moved. C may
** begin at 0: below 100 tokens' worth it counts as that. */
static void law_drift(kf_scheduler *s, const double law[KFI_LAW_DRIFTS], bool calibrated) {
  static const char *const name[] = {"linear_s", "quadratic_s", "constant_s"};
  const kfi_law *error = &s->history.error;
  double least = 100 * law[0];
  const double errors[] = {error->linear_s, error->quadratic_s,
                           error->constant_tokens * law[0] / fmax(law[2], least)};
  for (int i = 0; i < KFI_LAW_DRIFTS; i++) {
    double before = s->drift_law[i], now = law[i], then = s->drift_error[i];
    if (i == 2) before = fmax(before, least), now = fmax(now, least);
    bool moved = calibrated && has_moved(before, now, sqrt(errors[i] * errors[i] + then * then));
    if (moved) tell(s, &before, now, "%s", name[i]);
    if (calibrated && !moved && errors[i] > then / 2) continue; /* else it is known better now */
    s->drift_law[i] = law[i];
    s->drift_error[i] = errors[i];
  }
}

/*
** A, B and C are compared with what the first KFI_CALIBRATION steps gave: before that it is
** learning and not drift. A rank's speed is compared from the start: who is slow from the first
** step on is worth knowing too.
*/
void kfi_metrics_refit(kf_scheduler *s) {
  const kfi_history *h = &s->history;
  kf_metrics *m = &s->metrics;
  bool calibrated = s->drift_law[0] > 0, calibrates = h->n_steps >= KFI_CALIBRATION;
  double law[KFI_LAW_DRIFTS] = {h->law.linear_s, h->law.quadratic_s,
                                h->law.constant_tokens * h->law.linear_s};
  m->n_drifts = 0;
  if (calibrated || calibrates) law_drift(s, law, calibrated);
  class_drift(s, calibrated);
  for (int32_t r = 0; r < h->n_ranks; r++) {
    double moved = h->slow[r] - h->slow_start[r], error = kfi_history_rank_error(h, r);
    double now = kfi_exp(-h->slow_start[r] - kfi_trust(moved, error));
    if (has_moved(s->drift_speed[r], now, error))
      tell(s, &s->drift_speed[r], now, "speed of rank %d", r);
  }
  kfi_metrics_cost(s);
  if (s->cost_model != KF_COST_HISTORY) return; /* the plans' cost stays what it is */
  m->refits++;
  kfi_note(
    s, KF_LOG_INFO,
    "step %lld: refit: %.4g s a token, %.4g s a token squared, %.4g s a sequence, gamma %.3g, "
    "noise %.1f%%, mean error %.1f%%",
    (long long)s->step, law[0], law[1], law[2],
    gamma_of(&(kf_cost){.linear_s = law[0],
                        .quadratic_s = law[1],
                        .ulysses_bytes = s->start.ulysses_bytes,
                        .layers = s->start.layers,
                        .cluster = s->start.cluster}),
    100 * h->noise, 100 * m->mape);
}

/* ------------------------------------------------------------------------ plans */

static int32_t bag_of(const kf_scheduler *s, int64_t rank) {
  int32_t b = 0;
  while (s->bag_first[b + 1] <= rank) b++;
  return b;
}

/* Fixed bags that are too small for the data are worth a warning: once, and for each longer
** sequence. */
static void tell_joined(kf_scheduler *s, const kf_batch *batch, const kf_plan *plan) {
  for (int64_t i = 0; plan->joined_seqs > 0 && i < plan->n_seqs; i++) {
    if (plan->seq_off[i + 1] - plan->seq_off[i] < 2 || batch->len[i] <= s->joined_len) continue;
    int32_t first = bag_of(s, plan->chunk[plan->seq_off[i]].destination);
    int32_t last = bag_of(s, plan->chunk[plan->seq_off[i + 1] - 1].destination);
    if (first == last) continue;
    s->joined_len = batch->len[i];
    kfi_note(
      s, KF_LOG_WARNING,
      "step %lld: sequence %lld of %lld tokens does not fit one bag: it takes %d adjacent ones",
      (long long)s->step, (long long)i, (long long)batch->len[i], last - first + 1);
  }
}

void kfi_metrics_plan(kf_scheduler *s, const kf_batch *batch, const kf_plan *plan) {
  int32_t n = s->history.n_ranks;
  memset(s->planned_samples, 0, (size_t)n * sizeof *s->planned_samples);
  for (int32_t r = 0; r < n; r++) {
    s->planned_tokens[r] = (double)plan->hold_rows[r];
    s->planned_pressure[r] =
      s->options.mem_tokens && s->cap[r] > 0 ? (double)plan->load_tokens[r] / (double)s->cap[r] : 0;
  }
  for (int64_t c = 0; c < plan->n_chunks; c++) {
    const kf_chunk *chunk = &plan->chunk[c];
    int64_t len = batch->len[chunk->seq];
    s->planned_samples[chunk->destination] += len > 0 ? (double)chunk->length / (double)len : 1;
  }
  s->planned_epoch = s->next_epoch;
  s->planned = plan->figures;
  s->planned_hash = plan->hash;
  tell_joined(s, batch, plan);
  kfi_note(s, KF_LOG_DEBUG,
           "step %lld: planned %lld sequences, %lld tokens: step %.4g s (unbalanced %.4g s, bound "
           "%.4g s), %lld split, %.1f%% of tokens moved, plan %016llx",
           (long long)s->step, (long long)plan->n_seqs, (long long)plan->figures.tokens,
           plan->figures.step_s, plan->figures.before_step_s, plan->figures.lower_bound_s,
           (long long)plan->figures.split_seqs, 100 * plan->figures.moved_fraction,
           (unsigned long long)plan->hash);
}
