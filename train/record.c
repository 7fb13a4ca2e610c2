/* SPDX-License-Identifier: Apache-2.0 */
/*
** What was measured, step by step, and what it says. A record belongs to one variant of training;
** two records of the same samples are compared.
**
** Figures are medians over steps, so that a step in which the machine did something else does not
** count; doc/train.md defines each.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

static void *resized(void *old, int64_t n, size_t size) { return realloc(old, (size_t)n * size); }

/* Room for one more step; what there is stays, also if there is no room. */
static bool make_room(train_record *r) {
  if (r->n_steps < r->cap) return true;
  int64_t cap = r->cap ? 2 * r->cap : 64;
  int64_t *step = resized(r->step, cap, sizeof *step);
  if (step) r->step = step;
  int64_t *tokens = resized(r->tokens, cap, sizeof *tokens);
  if (tokens) r->tokens = tokens;
  double *step_s = resized(r->step_s, cap, sizeof *step_s);
  if (step_s) r->step_s = step_s;
  double *loss = resized(r->loss, cap, sizeof *loss);
  if (loss) r->loss = loss;
  double *busy_s = resized(r->busy_s, cap * r->n_ranks, sizeof *busy_s);
  if (busy_s) r->busy_s = busy_s;
  kf_counters *counters = resized(r->counters, cap * r->n_ranks, sizeof *counters);
  if (counters) r->counters = counters;
  if (!step || !tokens || !step_s || !loss || !busy_s || !counters) return false;
  r->cap = cap;
  return true;
}

kf_status train_record_add(train_record *r, const train_result *result) {
  int64_t i = r->n_steps, n = r->n_ranks;
  if (!make_room(r)) return kf_fail(KF_ENOMEM, "out of memory: the record of a step");
  r->step[i] = result->step;
  r->tokens[i] = result->n_tokens;
  r->step_s[i] = result->step_s;
  r->loss[i] = result->loss;
  memcpy(r->busy_s + i * n, result->busy_s, (size_t)n * sizeof *r->busy_s);
  memcpy(r->counters + i * n, result->counters, (size_t)n * sizeof *r->counters);
  r->n_steps++;
  return KF_OK;
}

void train_record_clear(train_record *r) {
  free(r->step), free(r->tokens), free(r->step_s), free(r->loss), free(r->busy_s);
  free(r->counters);
  *r = (train_record){.n_ranks = r->n_ranks};
}

/* ------------------------------------------------------------------------- figures */

double train_max_over_mean(const double *busy_s, int32_t n_ranks) {
  double most = 0, sum = 0;
  for (int32_t r = 0; r < n_ranks; r++) {
    sum += busy_s[r];
    most = fmax(most, busy_s[r]);
  }
  return sum > 0 ? most * n_ranks / sum : 1;
}

/* Deviation over ranks of the idle share of a step. */
static double idle_deviation(const double *busy_s, int32_t n, double step_s) {
  double mean = 0, square = 0;
  if (!(step_s > 0)) return 0;
  for (int32_t r = 0; r < n; r++) mean += busy_s[r] / step_s / n;
  for (int32_t r = 0; r < n; r++)
    square += (busy_s[r] / step_s - mean) * (busy_s[r] / step_s - mean);
  return sqrt(square / n);
}

kf_status train_summarise(const train_record *r, train_summary *out) {
  int64_t n = r->n_steps;
  double *values = malloc((size_t)(n + 1) * sizeof *values);
  train_summary s = {.n_steps = n};
  if (!values) return kf_fail(KF_ENOMEM, "out of memory: the figures of a run");
  for (int64_t i = 0; i < n; i++) values[i] = r->step_s[i];
  s.median_s = kf_quantile(values, n, 0.5);
  s.p95_s = kf_quantile(values, n, 0.95);
  for (int64_t i = 0; i < n; i++)
    values[i] = r->step_s[i] > 0 ? (double)r->tokens[i] / r->step_s[i] : 0;
  s.tokens_per_s = kf_quantile(values, n, 0.5);
  for (int64_t i = 0; i < n; i++)
    values[i] = train_max_over_mean(r->busy_s + i * r->n_ranks, r->n_ranks);
  s.max_over_mean = n ? kf_quantile(values, n, 0.5) : 1;
  for (int64_t i = 0; i < n; i++)
    values[i] = idle_deviation(r->busy_s + i * r->n_ranks, r->n_ranks, r->step_s[i]);
  s.idle_variance = kf_quantile(values, n, 0.5);
  free(values);
  *out = s;
  return KF_OK;
}

double train_busy_share(const train_record *r, int32_t rank) {
  double busy = 0, all = 0;
  for (int64_t i = 0; i < r->n_steps; i++) {
    busy += r->busy_s[i * r->n_ranks + rank];
    all += r->step_s[i];
  }
  return all > 0 ? busy / all : 0;
}

kf_status train_compare(const train_record *without, const train_record *with,
                        train_comparison *out) {
  train_summary a, b;
  kf_status status = train_summarise(without, &a);
  if (!status) status = train_summarise(with, &b);
  if (status) return status;
  train_comparison c = {.speedup = b.median_s > 0 ? a.median_s / b.median_s : 1,
                        .ideal = a.max_over_mean,
                        .max_over_mean_before = a.max_over_mean,
                        .max_over_mean_after = b.max_over_mean};
  c.realised = c.speedup / c.ideal;
  for (int64_t i = 0; i < without->n_steps && i < with->n_steps; i++) {
    double scale = fmax(fabs(without->loss[i]), 1e-30);
    double diff = fabs(with->loss[i] - without->loss[i]) / scale;
    if (diff > c.loss_max_rel_diff || isnan(diff)) c.loss_max_rel_diff = diff;
  }
  *out = c;
  return KF_OK;
}
