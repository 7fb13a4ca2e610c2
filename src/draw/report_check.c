/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a report can be drawn: the first thing that is wrong, where it stands and what it is. */
#include <inttypes.h>
#include <math.h>

#include "report.h"

#define BAD(...) kfi_fail(KF_EINVAL, "kf_report_html: " __VA_ARGS__)

#define MOST_STEP KF_MAX_TOKENS /* half a step more is still a double */

static bool is_time(double s) { return s >= 0 && s <= KFI_MOST_SECONDS; }

static kf_status check_step(const kf_report *in, int32_t k, int64_t i) {
  const kf_report_variant *variant = &in->variant[k];
  int64_t number = kfi_variant_step(variant, i),
          last = i > 0 ? kfi_variant_step(variant, i - 1) : -1;
  if (number <= last || number > MOST_STEP)
    return BAD("variant %" PRId32 ", step number %" PRId64 " after %" PRId64
               ", expected rising numbers from 0 to %" PRId64,
               k, number, last, MOST_STEP);
  if (!is_time(variant->step_s[i]))
    return BAD("variant %" PRId32 ", step %" PRId64 ": step_s is %g, expected 0 to %g seconds", k,
               number, variant->step_s[i], KFI_MOST_SECONDS);
  for (int32_t r = 0; r < in->n_ranks; r++) {
    const kf_counters *c = &variant->counters[i * in->n_ranks + r];
    if (!is_time(c->plan_s) || !is_time(c->route_s) || !is_time(c->compute_s) ||
        !is_time(c->wait_s))
      return BAD("variant %" PRId32 ", step %" PRId64 ", rank %" PRId32
                 ": plan_s %g, route_s %g, compute_s %g, wait_s %g, expected 0 to %g seconds",
                 k, number, r, c->plan_s, c->route_s, c->compute_s, c->wait_s, KFI_MOST_SECONDS);
  }
  return KF_OK;
}

static kf_status check_variants(const kf_report *in) {
  if (in->n_ranks < 1 || in->n_ranks > KF_MAX_RANKS)
    return BAD("%" PRId32 " ranks, expected 1 to %d", in->n_ranks, KF_MAX_RANKS);
  if (in->n_variants < 1 || in->n_variants > 2 || !in->variant)
    return BAD("%" PRId32 " variants%s, expected 1 or 2", in->n_variants,
               in->variant ? "" : " at NULL");
  for (int32_t k = 0; k < in->n_variants; k++) {
    const kf_report_variant *variant = &in->variant[k];
    if (!variant->name) return BAD("variant %" PRId32 ": name is NULL", k);
    if (variant->n_steps < 0 || variant->n_steps > KF_MAX_SEQS)
      return BAD("variant %" PRId32 ": %" PRId64 " steps, expected 0 to %" PRId64, k,
                 variant->n_steps, KF_MAX_SEQS);
    if (variant->n_steps > 0 && (!variant->step_s || !variant->counters))
      return BAD("variant %" PRId32 ": %" PRId64 " steps, but %s is NULL", k, variant->n_steps,
                 variant->step_s ? "counters" : "step_s");
    for (int64_t i = 0; i < variant->n_steps; i++) {
      kf_status status = check_step(in, k, i);
      if (status) return status;
    }
  }
  return KF_OK;
}

static kf_status check_points(const kf_report *in) {
  if (in->n_points < 0 || in->n_points > KF_MAX_SEQS)
    return BAD("%" PRId64 " points, expected 0 to %" PRId64, in->n_points, KF_MAX_SEQS);
  if (in->n_points > 0 && (!in->predicted_s || !in->measured_s))
    return BAD("%" PRId64 " points, but %s is NULL", in->n_points,
               in->predicted_s ? "measured_s" : "predicted_s");
  for (int64_t i = 0; i < in->n_points; i++)
    if (!is_time(in->predicted_s[i]) || !is_time(in->measured_s[i]))
      return BAD("point %" PRId64 ": predicted_s %g, measured_s %g, expected 0 to %g seconds", i,
                 in->predicted_s[i], in->measured_s[i], KFI_MOST_SECONDS);
  return KF_OK;
}

static kf_status check_facts(const kf_report *in) {
  if (in->n_facts < 0 || (in->n_facts > 0 && !in->fact))
    return BAD("%" PRId32 " facts%s, expected 0 or more", in->n_facts, in->fact ? "" : " at NULL");
  for (int32_t i = 0; i < in->n_facts; i++)
    if (!in->fact[i].name || !in->fact[i].value)
      return BAD("fact %" PRId32 ": %s is NULL", i, in->fact[i].name ? "value" : "name");
  return KF_OK;
}

static kf_status check_plan(const kf_report *in) {
  if (!in->plan) return KF_OK;
  if (!in->batch) return BAD("there is a plan, but batch is NULL");
  if (in->plan->n_ranks != in->n_ranks)
    return BAD("a plan for %" PRId32 " ranks, expected %" PRId32 " as in the report",
               in->plan->n_ranks, in->n_ranks);
  return kf_plan_check(in->plan, in->batch);
}

kf_status kfi_report_check(const kf_report *in) {
  kf_status status;
  if ((status = check_variants(in)) || (status = check_facts(in)) || (status = check_points(in)))
    return status;
  return check_plan(in);
}
