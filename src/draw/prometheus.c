/* SPDX-License-Identifier: Apache-2.0 */
/*
** Metrics in Prometheus's text format 0.0.4, for node_exporter's textfile collector.
**
**     # HELP knapformer_rank_busy_seconds Computing and moving data in the last step.
**     # TYPE knapformer_rank_busy_seconds gauge
**     knapformer_rank_busy_seconds{rank="0"} 0.412
**
** All samples of a name stand together, under its two comment lines; a name without samples is not
** written at all. No timestamps: the textfile collector refuses files that have them. The hash of
** the plan is left out, since every new label value would be a new series for ever. doc/metrics.md
** defines the names, which `promtool check metrics` finds no fault with.
**
** Not a number is written as NaN, which Prometheus shows as a gap.
*/
#include <inttypes.h>
#include <math.h>

#include "../numbers.h"
#include "../writer.h"
#include "metrics_text.h"

static void put_family(kfi_writer *w, const char *name, const char *type, const char *help) {
  kfi_put(w, "# HELP knapformer_%s %s\n# TYPE knapformer_%s %s\n", name, help, name, type);
}

static void put_value(kfi_writer *w, double value) {
  kfi_put(w, " ");
  if (isnan(value))
    kfi_put(w, "NaN");
  else if (isinf(value))
    kfi_put(w, value > 0 ? "+Inf" : "-Inf");
  else
    kfi_put_real(w, value);
  kfi_put(w, "\n");
}

static void put_gauge(kfi_writer *w, const char *name, double value, const char *help) {
  put_family(w, name, "gauge", help);
  kfi_put(w, "knapformer_%s", name);
  put_value(w, value);
}

static void put_whole(kfi_writer *w, const char *name, const char *type, int64_t value,
                      const char *help) {
  put_family(w, name, type, help);
  kfi_put(w, "knapformer_%s %" PRId64 "\n", name, value);
}

/* One gauge for each rank, or each bag. */
static void put_each(kfi_writer *w, const char *name, const char *label, int32_t n, const double *x,
                     const char *help) {
  if (n < 1 || !x) return;
  put_family(w, name, "gauge", help);
  for (int32_t i = 0; i < n; i++) {
    kfi_put(w, "knapformer_%s{%s=\"%" PRId32 "\"}", name, label, i);
    put_value(w, x[i]);
  }
}

static void put_step(kfi_writer *w, const kf_metrics *m) {
  put_whole(w, "steps_total", "counter", m->step + 1, "Steps whose times are known.");
  put_family(w, "elapsed_seconds_total", "counter", "Sum of all steps.");
  kfi_put(w, "knapformer_elapsed_seconds_total ");
  /* More than nine digits: in a month they would be hundredths of a second. */
  double elapsed = m->begin_s + m->step_s;
  kfi_put_number(w, isfinite(elapsed) ? elapsed : 0, 9, true);
  kfi_put(w, "\n");
  put_whole(w, "epoch", "gauge", m->epoch, "Number of the epoch, from 0.");
  put_whole(w, "ranks", "gauge", m->n_ranks, "Ranks that plans are made for.");
  put_whole(w, "measured_ranks", "gauge", m->n_measured, "Ranks that reported the last step.");
  put_gauge(w, "step_seconds", m->step_s, "The last step: largest busy and wait of a rank.");
  put_gauge(w, "predicted_step_seconds", m->predicted_step_s,
            "The same step as predicted before it ran.");
  put_gauge(w, "max_over_mean_ratio", m->max_over_mean,
            "Busy time of the busiest rank over the mean rank's.");
  put_gauge(w, "idle_variance_ratio", m->idle_variance,
            "Standard deviation over ranks of the idle share of the step.");
  put_gauge(w, "tokens_per_second", m->tokens_per_s, "Tokens of the step over its time.");
  put_gauge(w, "samples_per_second", m->samples_per_s, "Samples of the step over its time.");
  put_gauge(w, "epoch_seconds", m->epoch_s, "Steps of this epoch so far.");
  put_gauge(w, "last_epoch_seconds", m->last_epoch_s, "The last whole epoch, 0 before its end.");
  put_gauge(w, "prediction_error_ratio", m->mape,
            "Mean of |predicted / measured - 1| over ranks, a running mean over steps.");
  put_gauge(w, "noise_ratio", m->noise, "What one time scatters about its prediction.");
}

/* ------------------------------------------------------------------------ ranks */

/* A counter that no rank reported is not written, nor is that of a rank that did not. */
static void put_counter(kfi_writer *w, const kf_metrics *m, int which, const char *name,
                        const char *help) {
  bool any = false;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    const kf_counters *c = &m->counters[r];
    int64_t value[] = {c->memory_bytes, c->memory_limit_bytes, c->tokens, c->samples};
    if (!value[which]) continue;
    if (!any) put_family(w, name, "gauge", help);
    any = true;
    kfi_put(w, "knapformer_%s{rank=\"%" PRId32 "\"} %" PRId64 "\n", name, r, value[which]);
  }
}

static void put_phases(kfi_writer *w, const kf_metrics *m) {
  static const char *const name[] = {"plan", "route", "compute", "wait"};
  bool any = false;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    const kf_counters *c = &m->counters[r];
    double seconds[] = {c->plan_s, c->route_s, c->compute_s, c->wait_s};
    for (int i = 0; i < 4; i++) {
      if (seconds[i] == 0) continue;
      if (!any) put_family(w, "rank_phase_seconds", "gauge", "Parts of the last step.");
      any = true;
      kfi_put(w, "knapformer_rank_phase_seconds{rank=\"%" PRId32 "\",phase=\"%s\"}", r, name[i]);
      put_value(w, seconds[i]);
    }
  }
}

static void put_ranks(kfi_writer *w, const kf_metrics *m) {
  put_each(w, "rank_busy_seconds", "rank", m->n_ranks, m->busy_s,
           "Computing and moving data in the last step, 0 if not reported.");
  put_each(w, "rank_predicted_seconds", "rank", m->n_ranks, m->predicted_s,
           "The same as predicted before the step ran.");
  put_each(w, "rank_busy_ratio", "rank", m->n_ranks, m->busy_share, "Busy time over the step's.");
  put_each(w, "rank_memory_pressure_ratio", "rank", m->n_ranks, m->memory_pressure,
           "Memory used over its limit, or tokens over their cap.");
  put_each(w, "rank_speed_ratio", "rank", m->n_ranks, m->speed, "Speed that plans are made with.");
  if (!m->counters) return;
  put_counter(w, m, 0, "rank_memory_bytes", "Most memory in use during the last step.");
  put_counter(w, m, 1, "rank_memory_limit_bytes", "Memory there is.");
  put_counter(w, m, 2, "rank_tokens", "Tokens computed in the last step.");
  put_counter(w, m, 3, "rank_samples", "Samples computed in the last step.");
  put_phases(w, m);
}

static void put_bags(kfi_writer *w, const kf_metrics *m) {
  if (!kfi_metrics_bagged(m) || m->n_bags < 1) return;
  put_family(w, "bag_ranks", "gauge", "Ranks of the bag.");
  for (int32_t b = 0; b < m->n_bags; b++)
    kfi_put(w, "knapformer_bag_ranks{bag=\"%" PRId32 "\"} %" PRId32 "\n", b,
            m->bag_first[b + 1] - m->bag_first[b]);
  put_each(w, "bag_busy_ratio", "bag", m->n_bags, m->bag_busy_share, "Mean over the bag's ranks.");
  put_each(w, "bag_tokens_per_second", "bag", m->n_bags, m->bag_tokens_per_s,
           "Tokens the bag computed over the step's time.");
  put_each(w, "bag_samples_per_second", "bag", m->n_bags, m->bag_samples_per_s,
           "Samples the bag computed over the step's time.");
}

/* ---------------------------------------------------------------------- learned */

static void put_cost(kfi_writer *w, const kf_metrics *m) {
  const struct {
    const char *name;
    double value;
  } coefficient[] = {{"linear_s", m->cost.linear_s},
                     {"quadratic_s", m->cost.quadratic_s},
                     {"constant_s", m->cost.constant_s},
                     {"overhead_s", m->overhead_s}};
  put_family(w, "cost_seconds", "gauge",
             "Cost that plans are made with: of a token, a token squared, a sequence, a step.");
  for (int i = 0; i < 4; i++) {
    kfi_put(w, "knapformer_cost_seconds{coefficient=\"%s\"}", coefficient[i].name);
    put_value(w, coefficient[i].value);
  }
  put_gauge(w, "gamma_ratio", m->gamma,
            "Price of a FLOP of attention over one of the other layers, 0 if not known.");
  put_gauge(w, "comm_scale_ratio", m->comm_scale, "Measured over predicted time of moving data.");
}

static void put_learned(kfi_writer *w, const kf_metrics *m) {
  for (int32_t i = 0; m->correction && i < m->n_corrections; i++) {
    const kf_correction *c = &m->correction[i];
    if (i == 0) put_family(w, "correction_ratio", "gauge", "Compute of a class over the cost's.");
    kfi_put(w, "knapformer_correction_ratio{kind=\"%s\",resolution=\"%" PRId32 "\"}",
            kfi_kind_word(c->kind), c->resolution);
    put_value(w, c->correction);
  }
  for (int32_t i = 0; m->drift && i < m->n_drifts; i++) {
    const kf_drift *d = &m->drift[i];
    if (i == 0)
      put_family(w, "drift_ratio", "gauge", "What moved at the last refit: now / before - 1.");
    kfi_put(w, "knapformer_drift_ratio{what=");
    kfi_put_label(w, d->what);
    kfi_put(w, "}");
    put_value(w, d->now / d->before - 1);
  }
  put_whole(w, "refits_total", "counter", m->refits, "Refits of cost, speeds and corrections.");
  put_whole(w, "drifts_total", "counter", m->drifts, "Coefficients found to have moved.");
  put_whole(w, "outliers_total", "counter", m->outliers, "Times that were not learned from.");
}

static void put_plan(kfi_writer *w, const kf_metrics *m) {
  const kf_figures *f = &m->figures;
  put_gauge(w, "plan_step_seconds", f->step_s, "Step of the plan, by the cost alone.");
  put_gauge(w, "plan_ideal_seconds", f->ideal_s, "All compute over all speeds.");
  put_gauge(w, "plan_lower_bound_seconds", f->lower_bound_s, "No plan can be shorter.");
  put_gauge(w, "plan_gap_ratio", f->gap, "Step over lower bound, minus 1.");
  put_gauge(w, "plan_speedup_ratio", f->speedup, "Step without balancing over the plan's.");
  put_whole(w, "plan_split_sequences", "gauge", f->split_seqs, "Sequences on more than one rank.");
  put_gauge(w, "plan_a2a_ratio", f->a2a_fraction, "Share of tokens that pass through Ulysses.");
  put_gauge(w, "plan_moved_ratio", f->moved_fraction, "Share of tokens held away from home.");
  put_whole(w, "plan_max_tokens", "gauge", f->max_tokens, "Largest load of a rank.");
}

kf_status kf_metrics_prometheus(const kf_metrics *metrics, char **out) {
  kf_status status = kfi_metrics_check("kf_metrics_prometheus", metrics, out);
  if (status) return status;
  kfi_writer w = {0};
  put_step(&w, metrics);
  put_ranks(&w, metrics);
  put_bags(&w, metrics);
  put_cost(&w, metrics);
  put_learned(&w, metrics);
  put_plan(&w, metrics);
  return kfi_writer_take(&w, "metrics for Prometheus", out);
}
