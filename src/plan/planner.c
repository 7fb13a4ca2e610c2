/* SPDX-License-Identifier: Apache-2.0 */
/* The planner object: checks a batch, runs the stages, keeps their memory. */
#include <math.h>
#include <stdlib.h>

#include "planning.h"

/*
** Moves a microsecond of search: what one core of a 2023 server evaluates, measured once and
** then fixed for ever, because the plan depends on it.
*/
#define MOVES_PER_US 8

struct kf_planner {
  kfi_world world;
  kfi_buffer world_buffer;
  kfi_search search;
  kfi_plan_store store;
};

kf_status kf_planner_create(const kf_planner_options *options, kf_planner **out) {
  kf_status status;
  if (!options || !out) return kfi_fail(KF_EINVAL, "kf_planner_create: options or out is NULL");
  kf_planner *p = calloc(1, sizeof *p);
  if (!p) return kfi_fail_memory(sizeof *p, "a planner");
  if ((status = kfi_world_create(options, &p->world, &p->world_buffer))) {
    kf_planner_free(p);
    return status;
  }
  *out = p;
  return KF_OK;
}

kf_status kfi_planner_reset(kf_planner *p, const kf_planner_options *options) {
  return kfi_world_create(options, &p->world, &p->world_buffer);
}

void kf_planner_free(kf_planner *p) {
  if (!p) return;
  kfi_buffer_free(&p->world_buffer);
  kfi_search_free(&p->search);
  kfi_plan_free(&p->store);
  free(p);
}

uint64_t kf_planner_hash(const kf_planner *p) { return p ? kfi_world_hash(&p->world) : 0; }

int64_t kf_planner_budget(double us) {
  if (!(us > 0)) return 0;
  if (us > 1e12) us = 1e12;
  int64_t moves = (int64_t)(us * MOVES_PER_US);
  return moves > 1 ? moves : 1;
}

static bool is_len(int64_t len) { return len >= 0 && len <= KF_MAX_LEN; }
static bool is_factor(double factor) { return factor > 0 && factor <= 1e6; }
static bool is_profile(const kf_profile *p) {
  return p->kind >= KF_KIND_UNKNOWN && p->kind <= KF_KIND_VIDEO && p->resolution >= 0 &&
         p->frames >= 0;
}

kf_status kfi_batch_check(const kf_batch *b) {
  int64_t i = 0, r = 0;
  while (i < b->n_seqs && is_len(b->len[i]) && (!b->factor || is_factor(b->factor[i])) &&
         (!b->profile || is_profile(&b->profile[i])))
    i++;
  if (i == b->n_seqs) return KF_OK;
  while (b->rank_off[r + 1] <= i) r++;
  long long rank = r, j = i - b->rank_off[r];
  if (!is_len(b->len[i]))
    return kfi_fail(KF_EINVAL, "rank %lld: its sequence %lld has %lld tokens, expected 0 to %lld",
                    rank, j, (long long)b->len[i], (long long)KF_MAX_LEN);
  if (b->factor && !is_factor(b->factor[i]))
    return kfi_fail(KF_EINVAL,
                    "rank %lld: its sequence %lld has factor %g, expected above 0 and at most 1e6",
                    rank, j, b->factor[i]);
  return kfi_fail(KF_EINVAL,
                  "rank %lld: its sequence %lld is of kind %d, %d pixels and %d frames, expected a "
                  "kf_kind and 0 or more",
                  rank, j, b->profile[i].kind, b->profile[i].resolution, b->profile[i].frames);
}

kf_status kfi_planner_check(const kf_planner *p, const kf_batch *b) {
  const kfi_world *w = &p->world;
  int64_t tokens = 0;
  if (b->n_ranks != w->n_ranks) {
    return kfi_fail(KF_EINVAL, "batch of %d ranks, expected the cluster's %d", b->n_ranks,
                    w->n_ranks);
  }
  if (b->n_seqs < 0 || b->n_seqs > KF_MAX_SEQS || !b->rank_off || (b->n_seqs && !b->len)) {
    return kfi_fail(KF_EINVAL, "batch of %lld sequences, expected 0 to %lld with their arrays",
                    (long long)b->n_seqs, (long long)KF_MAX_SEQS);
  }
  if (b->rank_off[0] != 0 || b->rank_off[b->n_ranks] != b->n_seqs) {
    return kfi_fail(KF_EINVAL, "batch: rank_off runs from %lld to %lld, expected 0 to %lld",
                    (long long)b->rank_off[0], (long long)b->rank_off[b->n_ranks],
                    (long long)b->n_seqs);
  }
  for (int32_t r = 0; r < b->n_ranks; r++) {
    if (b->rank_off[r + 1] < b->rank_off[r]) {
      return kfi_fail(KF_EINVAL, "batch: rank_off falls after rank %d, expected rising", r);
    }
  }
  kf_status status = kfi_batch_check(b);
  if (status) return status;
  for (int64_t i = 0; i < b->n_seqs; i++) tokens += b->len[i];
  if (tokens > KF_MAX_TOKENS) {
    return kfi_fail(KF_EINVAL, "batch of %lld tokens, expected at most %lld", (long long)tokens,
                    (long long)KF_MAX_TOKENS);
  }
  return KF_OK;
}

kf_status kf_planner_plan(kf_planner *p, const kf_batch *batch, const kf_plan **out) {
  kf_status status;
  double bound;
  if (!p || !batch || !out) return kfi_fail(KF_EINVAL, "kf_planner_plan: a pointer is NULL");
  if ((status = kfi_planner_check(p, batch))) return status;
  if ((status = kfi_search_run(&p->search, &p->world, batch, &p->store, &bound))) return status;

  kf_figures *f = &p->store.plan.figures;
  f->lower_bound_s = bound > f->ideal_s ? bound : f->ideal_s;
  if (f->lower_bound_s > f->step_s && f->lower_bound_s < f->step_s * (1 + 1e-9)) {
    f->lower_bound_s = f->step_s; /* the same sum in another order */
  }
  f->gap = f->lower_bound_s > 0 ? f->step_s / f->lower_bound_s - 1 : 0;
  *out = &p->store.plan;
  return KF_OK;
}
