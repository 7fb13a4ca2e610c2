/* SPDX-License-Identifier: Apache-2.0 */
/*
** Metrics as one line of JSON; a file of them is read by pandas (lines=True) and by jq.
**
**     {"step":7, ..., "ranks":[{"rank":0, ...}, ...], "bags":[...], "cost":{...},
**      "corrections":[...], "drift":[...], ..., "plan":{...}}
**
** Ranks and bags are lists of records, not one list per figure: a line is a third longer for it,
** but json_normalize(lines, "ranks", ["step"]) and jq's ".ranks[]" then give one row a rank. All
** keys are there in every line, but for the counters that a rank did not report. The names are
** those of kf_metrics, and doc/metrics.md defines them. What is not finite is null. 16384 ranks
** take 4 MB.
*/
#include <inttypes.h>
#include <math.h>

#include "../numbers.h"
#include "../writer.h"
#include "metrics_text.h"

kf_status kfi_metrics_check(const char *who, const kf_metrics *metrics, char **out) {
  if (!metrics || !out) return kfi_fail(KF_EINVAL, "%s: metrics or out is NULL", who);
  if (metrics->version != KF_METRICS_VERSION)
    return kfi_fail(KF_EINVAL, "%s: metrics of version %" PRId32 ", expected version %d", who,
                    metrics->version, KF_METRICS_VERSION);
  return KF_OK;
}

bool kfi_metrics_bagged(const kf_metrics *metrics) {
  return metrics->n_bags != metrics->n_ranks && metrics->bag_first;
}

/* ------------------------------------------------------------------- the pieces */

/* What came before tells whether a comma is due. */
static void put_comma(kfi_writer *w) {
  char last = w->n ? w->data[w->n - 1] : '{';
  if (last != '{' && last != '[') kfi_put(w, ",");
}

static void put_key(kfi_writer *w, const char *key) {
  put_comma(w);
  kfi_put(w, "\"%s\":", key);
}

static void put_real(kfi_writer *w, const char *key, double value) {
  put_key(w, key);
  if (isfinite(value))
    kfi_put_real(w, value);
  else
    kfi_put(w, "null");
}

/* Sums of many steps: nine digits of a month would be hundredths of a second. */
static void put_clock(kfi_writer *w, const char *key, double seconds) {
  put_key(w, key);
  if (isfinite(seconds))
    kfi_put_number(w, seconds, 9, true);
  else
    kfi_put(w, "null");
}

static void put_int(kfi_writer *w, const char *key, int64_t value) {
  put_key(w, key);
  kfi_put(w, "%" PRId64, value);
}

static void begin_list(kfi_writer *w, const char *key) {
  put_key(w, key);
  kfi_put(w, "[");
}

static void begin_record(kfi_writer *w) {
  put_comma(w);
  kfi_put(w, "{");
}

/* ------------------------------------------------------------------- the figures */

static void put_step(kfi_writer *w, const kf_metrics *m) {
  put_int(w, "step", m->step);
  put_int(w, "epoch", m->epoch);
  put_int(w, "n_ranks", m->n_ranks);
  put_int(w, "n_measured", m->n_measured);
  put_clock(w, "begin_s", m->begin_s);
  put_real(w, "step_s", m->step_s);
  put_real(w, "predicted_step_s", m->predicted_step_s);
  put_real(w, "max_over_mean", m->max_over_mean);
  put_real(w, "idle_variance", m->idle_variance);
  put_real(w, "tokens_per_s", m->tokens_per_s);
  put_real(w, "samples_per_s", m->samples_per_s);
  put_clock(w, "epoch_s", m->epoch_s);
  put_clock(w, "last_epoch_s", m->last_epoch_s);
  put_real(w, "mape", m->mape);
  put_real(w, "noise", m->noise);
}

static void put_counters(kfi_writer *w, const kf_counters *c) {
  if (c->memory_bytes) put_int(w, "memory_bytes", c->memory_bytes);
  if (c->memory_limit_bytes) put_int(w, "memory_limit_bytes", c->memory_limit_bytes);
  if (c->tokens) put_int(w, "tokens", c->tokens);
  if (c->samples) put_int(w, "samples", c->samples);
  if (c->plan_s != 0) put_real(w, "plan_s", c->plan_s);
  if (c->route_s != 0) put_real(w, "route_s", c->route_s);
  if (c->compute_s != 0) put_real(w, "compute_s", c->compute_s);
  if (c->wait_s != 0) put_real(w, "wait_s", c->wait_s);
}

static void put_ranks(kfi_writer *w, const kf_metrics *m) {
  begin_list(w, "ranks");
  for (int32_t r = 0; r < m->n_ranks; r++) {
    begin_record(w);
    put_int(w, "rank", r);
    put_real(w, "busy_s", kfi_at(m->busy_s, r));
    put_real(w, "predicted_s", kfi_at(m->predicted_s, r));
    put_real(w, "busy_share", kfi_at(m->busy_share, r));
    put_real(w, "memory_pressure", kfi_at(m->memory_pressure, r));
    put_real(w, "speed", kfi_at(m->speed, r));
    if (m->counters) put_counters(w, &m->counters[r]);
    kfi_put(w, "}");
  }
  kfi_put(w, "]");
}

static void put_bags(kfi_writer *w, const kf_metrics *m) {
  begin_list(w, "bags");
  for (int32_t b = 0; kfi_metrics_bagged(m) && b < m->n_bags; b++) {
    begin_record(w);
    put_int(w, "bag", b);
    put_int(w, "first", m->bag_first[b]);
    put_int(w, "ranks", m->bag_first[b + 1] - m->bag_first[b]);
    put_real(w, "busy_share", kfi_at(m->bag_busy_share, b));
    put_real(w, "tokens_per_s", kfi_at(m->bag_tokens_per_s, b));
    put_real(w, "samples_per_s", kfi_at(m->bag_samples_per_s, b));
    kfi_put(w, "}");
  }
  kfi_put(w, "]");
}

static void put_cost(kfi_writer *w, const kf_metrics *m) {
  put_key(w, "cost");
  kfi_put(w, "{");
  put_real(w, "linear_s", m->cost.linear_s);
  put_real(w, "quadratic_s", m->cost.quadratic_s);
  put_real(w, "constant_s", m->cost.constant_s);
  put_real(w, "gamma", m->gamma);
  put_real(w, "overhead_s", m->overhead_s);
  put_real(w, "comm_scale", m->comm_scale);
  kfi_put(w, "}");
}

static void put_learned(kfi_writer *w, const kf_metrics *m) {
  begin_list(w, "corrections");
  for (int32_t i = 0; m->correction && i < m->n_corrections; i++) {
    const kf_correction *c = &m->correction[i];
    begin_record(w);
    put_key(w, "kind");
    kfi_put_json(w, kfi_kind_word(c->kind));
    put_int(w, "resolution", c->resolution);
    put_real(w, "correction", c->correction);
    kfi_put(w, "}");
  }
  kfi_put(w, "]");
  begin_list(w, "drift");
  for (int32_t i = 0; m->drift && i < m->n_drifts; i++) {
    const kf_drift *d = &m->drift[i];
    begin_record(w);
    put_key(w, "what");
    kfi_put_json(w, d->what);
    put_real(w, "before", d->before);
    put_real(w, "now", d->now);
    put_int(w, "step", d->step);
    kfi_put(w, "}");
  }
  kfi_put(w, "]");
  put_int(w, "refits", m->refits);
  put_int(w, "drifts", m->drifts);
  put_int(w, "outliers", m->outliers);
}

/* The hash is a text: a number of 64 bits would lose its last ones where numbers are doubles. */
static void put_plan(kfi_writer *w, const kf_metrics *m) {
  const kf_figures *f = &m->figures;
  put_key(w, "plan");
  kfi_put(w, "{\"hash\":\"%016" PRIx64 "\"", m->plan_hash);
  put_real(w, "step_s", f->step_s);
  put_real(w, "ideal_s", f->ideal_s);
  put_real(w, "lower_bound_s", f->lower_bound_s);
  put_real(w, "gap", f->gap);
  put_real(w, "speedup", f->speedup);
  put_int(w, "split_seqs", f->split_seqs);
  put_real(w, "a2a_fraction", f->a2a_fraction);
  put_real(w, "moved_fraction", f->moved_fraction);
  put_int(w, "max_tokens", f->max_tokens);
  kfi_put(w, "}");
}

kf_status kf_metrics_json(const kf_metrics *metrics, char **out) {
  kf_status status = kfi_metrics_check("kf_metrics_json", metrics, out);
  if (status) return status;
  kfi_writer w = {0};
  kfi_put(&w, "{");
  put_step(&w, metrics);
  put_ranks(&w, metrics);
  put_bags(&w, metrics);
  put_cost(&w, metrics);
  put_learned(&w, metrics);
  put_plan(&w, metrics);
  kfi_put(&w, "}\n");
  return kfi_writer_take(&w, "a line of metrics", out);
}
