/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training run as one HTML page; report.h has the plan of it.
**
**     title
**     The median step takes 1.43 s instead of 2.61 s: 1.83 times as fast.
**     [ Median step ] [ Speed-up ] [ Busiest rank ] [ Loss ]
**     facts
**     timeline, imbalance, loss, fit, routing: a heading, words, a picture
**
** There is no script. The page says so to the browser too (Content-Security-Policy): should a text
** ever get past the escaping, it still cannot run, nor fetch anything.
**
** Time is linear in steps times ranks, and n log n in steps and points, for the medians.
*/
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------- the sums */

double kfi_busy_s(const kf_counters *c) { return c->plan_s + c->route_s + c->compute_s; }

bool kfi_variant_common(const kf_report_variant *a, const kf_report_variant *b, int64_t *i,
                        int64_t *j) {
  while (*i < a->n_steps && *j < b->n_steps) {
    int64_t left = kfi_variant_step(a, *i), right = kfi_variant_step(b, *j);
    if (left == right) return true;
    if (left < right)
      ++*i;
    else
      ++*j;
  }
  return false;
}

static double median(const kfi_report *r, const double *value, int64_t n) {
  if (n > 0) memcpy(r->spare, value, (size_t)n * sizeof *value);
  return kf_quantile(r->spare, n, 0.5);
}

static double max_over_mean(const kf_counters *c, int32_t n_ranks) {
  double sum = 0, most = 0;
  for (int32_t k = 0; k < n_ranks; k++) {
    sum += kfi_busy_s(&c[k]);
    most = fmax(most, kfi_busy_s(&c[k]));
  }
  return sum > 0 ? most * n_ranks / sum : 1;
}

static void sum_up_common(kfi_report *r) {
  const kf_report_variant *a = &r->in->variant[0], *b = &r->in->variant[r->in->n_variants - 1];
  kfi_common *c = &r->common;
  for (int64_t i = 0, j = 0; kfi_variant_common(a, b, &i, &j); i++, j++) {
    c->n_steps++;
    c->sum_s[0] += a->step_s[i];
    c->sum_s[1] += b->step_s[j];
    if (!a->loss || !b->loss || !kfi_is_loss(a->loss[i]) || !kfi_is_loss(b->loss[j])) continue;
    double apart = fabs(b->loss[j] - a->loss[i]);
    c->n_losses++;
    c->last_loss[0] = a->loss[i];
    c->last_loss[1] = b->loss[j];
    if (apart > 0) c->apart = fmax(c->apart, apart / fmax(fabs(a->loss[i]), fabs(b->loss[j])));
  }
}

/* One block for all arrays: a variant's imbalances, the other's, and the spare one. */
static kf_status sum_up(const kf_report *in, kfi_report *r) {
  int64_t n_all = 0, n_spare = in->n_points;
  for (int32_t k = 0; k < in->n_variants; k++) {
    n_all += in->variant[k].n_steps;
    if (n_spare < in->variant[k].n_steps) n_spare = in->variant[k].n_steps;
  }
  size_t n_bytes = (size_t)(n_spare + n_all + 1) * sizeof(double);
  *r = (kfi_report){.in = in, .spare = malloc(n_bytes)};
  if (!r->spare) return kfi_fail_memory(n_bytes, "the figures of a report");
  double *next = r->spare + n_spare;
  for (int32_t k = 0; k < in->n_variants; k++) {
    const kf_report_variant *variant = &in->variant[k];
    kfi_variant_sums *sums = &r->sums[k];
    sums->imbalance = next;
    next += variant->n_steps;
    for (int64_t i = 0; i < variant->n_steps; i++)
      sums->imbalance[i] = max_over_mean(&variant->counters[i * in->n_ranks], in->n_ranks);
    sums->step_s = median(r, variant->step_s, variant->n_steps);
    sums->max_over_mean = median(r, sums->imbalance, variant->n_steps);
  }
  sum_up_common(r);
  return KF_OK;
}

/* ---------------------------------------------------------------------- the headline */

static bool comparable(const kfi_report *r) {
  return r->in->n_variants == 2 && r->sums[0].step_s > 0 && r->sums[1].step_s > 0;
}

static void put_lead(const kfi_report *r, kfi_writer *w) {
  const kfi_variant_sums *first = &r->sums[0], *last = &r->sums[r->in->n_variants - 1];
  kfi_put(w, "<p class=\"lead\">");
  if (comparable(r)) {
    kfi_put(w, "The median step takes <b>");
    kfi_put_seconds(w, last->step_s, false);
    kfi_put(w, "</b> instead of <b>");
    kfi_put_seconds(w, first->step_s, false);
    kfi_put(w, "</b>: <b>");
    kfi_put_fixed(w, first->step_s / last->step_s, 2);
    kfi_put(w, " times</b> as fast.");
  } else if (r->in->n_variants == 1 && r->in->variant[0].n_steps > 0) {
    kfi_put(w, "The median step takes <b>");
    kfi_put_seconds(w, first->step_s, false);
    kfi_put(w, "</b>; its busiest rank works <b>");
    kfi_put_fixed(w, first->max_over_mean, 2);
    kfi_put(w, " times</b> as long as the mean.");
  } else {
    kfi_put(w, "There are no steps to compare.");
  }
  kfi_put(w, "</p>\n");
}

static void begin_tile(kfi_writer *w, const char *name) {
  kfi_put(w, "<div class=\"tile\"><dt>%s</dt><dd class=\"big\">", name);
}

static void put_note(kfi_writer *w) { kfi_put(w, "</dd><dd class=\"note\">"); }

static void end_tile(kfi_writer *w) { kfi_put(w, "</dd></div>\n"); }

/* "before -> after", or the one there is. */
static void put_both(const kfi_report *r, kfi_writer *w, bool seconds) {
  for (int32_t k = 0; k < r->in->n_variants; k++) {
    if (k > 0) kfi_put(w, " <span class=\"to\">\xe2\x86\x92</span> ");
    if (r->in->variant[k].n_steps == 0)
      kfi_put(w, "\xe2\x80\x93");
    else if (seconds)
      kfi_put_seconds(w, r->sums[k].step_s, false);
    else
      kfi_put_fixed(w, r->sums[k].max_over_mean, 2);
  }
}

static void put_steps(kfi_writer *w, int64_t n) {
  kfi_put(w, "%" PRId64 " step%s", n, n == 1 ? "" : "s");
}

static void put_loss_tile(const kfi_report *r, kfi_writer *w) {
  const kfi_common *c = &r->common;
  if (c->n_losses == 0) return;
  begin_tile(w, r->in->n_variants == 2 ? "Loss" : "Last loss");
  if (r->in->n_variants == 1)
    kfi_put_loss(w, c->last_loss[0]), put_note(w), kfi_put(w, "after "), put_steps(w, c->n_steps);
  else if (c->apart == 0)
    kfi_put(w, "the same"), put_note(w), kfi_put(w, "to the bit, in "), put_steps(w, c->n_losses);
  else
    kfi_put_fraction(w, c->apart), put_note(w), kfi_put(w, "largest relative difference in "),
      put_steps(w, c->n_losses);
  end_tile(w);
}

static void put_tiles(const kfi_report *r, kfi_writer *w) {
  const kfi_common *c = &r->common;
  if (r->in->variant[0].n_steps + r->in->variant[r->in->n_variants - 1].n_steps == 0) return;
  kfi_put(w, "<dl class=\"tiles\">\n");
  begin_tile(w, "Median step");
  put_both(r, w, true);
  put_note(w);
  put_steps(w, r->in->variant[0].n_steps);
  if (r->in->n_variants == 2 && r->in->variant[1].n_steps != r->in->variant[0].n_steps) {
    kfi_put(w, " and ");
    put_steps(w, r->in->variant[1].n_steps);
  }
  end_tile(w);
  if (comparable(r)) {
    begin_tile(w, "Speed-up");
    kfi_put_fixed(w, r->sums[0].step_s / r->sums[1].step_s, 2);
    kfi_put(w, "\xc3\x97");
    put_note(w);
    if (c->n_steps > 0 && c->sum_s[1] > 0) {
      kfi_put_fixed(w, c->sum_s[0] / c->sum_s[1], 2);
      kfi_put(w, "\xc3\x97 by the sum of ");
      put_steps(w, c->n_steps);
    }
    end_tile(w);
  }
  begin_tile(w, "Busiest rank / mean");
  put_both(r, w, false);
  put_note(w);
  kfi_put(w, "of busy time, median over steps");
  end_tile(w);
  put_loss_tile(r, w);
  kfi_put(w, "</dl>\n");
}

static void put_facts(const kf_report *in, kfi_writer *w) {
  if (in->n_facts == 0) return;
  kfi_put(w, "<dl class=\"facts\">\n");
  for (int32_t i = 0; i < in->n_facts; i++) {
    kfi_put(w, "<div><dt>");
    kfi_put_xml(w, in->fact[i].name);
    kfi_put(w, "</dt><dd>");
    kfi_put_xml(w, in->fact[i].value);
    kfi_put(w, "</dd></div>\n");
  }
  kfi_put(w, "</dl>\n");
}

/* -------------------------------------------------------------------------- the page */

static void put_page(const kfi_report *r, kfi_writer *w) {
  static const struct {
    const char *id, *heading;
    void (*put)(const kfi_report *, kfi_writer *);
  } section[] = {{"timeline", "Where the time goes", kfi_report_timeline},
                 {"imbalance", "Imbalance", kfi_report_imbalance},
                 {"loss", "Loss", kfi_report_loss},
                 {"fit", "How well the cost model predicts", kfi_report_fit},
                 {"routing", "One step, routed", kfi_report_routing}};
  const char *title = r->in->title ? r->in->title : "Training run";
  kfi_put(w, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
             "<meta http-equiv=\"Content-Security-Policy\" "
             "content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
             "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>");
  kfi_put_xml(w, title);
  kfi_put(w, "</title>\n");
  kfi_put_report_style(w);
  kfi_put(w, "</head>\n<body>\n<main>\n<header>\n<h1>");
  kfi_put_xml(w, title);
  kfi_put(w, "</h1>\n");
  put_lead(r, w);
  put_tiles(r, w);
  put_facts(r->in, w);
  kfi_put(w, "</header>\n");
  for (size_t k = 0; k < sizeof section / sizeof *section; k++) {
    kfi_put(w, "<section id=\"%s\">\n<h2>%s</h2>\n", section[k].id, section[k].heading);
    section[k].put(r, w);
    kfi_put(w, "</section>\n");
  }
  kfi_put(w, "<footer>knapformer %s</footer>\n</main>\n</body>\n</html>\n", kf_version());
}

kf_status kf_report_html(const kf_report *report, char **out) {
  kfi_report r;
  kfi_writer w = {0};
  if (!report || !out) return kfi_fail(KF_EINVAL, "kf_report_html: report or out is NULL");
  kf_status status = kfi_report_check(report);
  if (!status) status = sum_up(report, &r);
  if (status) return status;
  put_page(&r, &w);
  free(r.spare);
  return kfi_writer_take(&w, "a report", out);
}
