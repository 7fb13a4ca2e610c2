/* SPDX-License-Identifier: Apache-2.0 */
/*
** How long a planned step takes on ranks that are not there; see knapformer.h, section 22.
**
** No libm: logarithms and cosines differ in their last bit from one processor to the next, and then
** the plans would.
*/
#include <math.h>
#include <string.h>

#include "../numbers.h"
#include "../status.h"

/* Nearly normal, mean 0, deviation 1: the sum of twelve uniform numbers, less 6. Exact. */
static double draw(uint64_t seed, int64_t step, int32_t rank) {
  uint64_t key = kfi_mix64(kfi_mix64(kfi_mix64(seed) ^ (uint64_t)step) ^ (uint64_t)rank);
  int64_t sum = 0;
  for (uint64_t i = 0; i < 6; i++) {
    uint64_t bits = kfi_mix64(key + i);
    sum += (int64_t)(bits >> 32) + (int64_t)(bits & 0xffffffffu);
  }
  return (double)(sum - ((int64_t)6 << 32)) * 0x1p-32;
}

static double factor_of(const kf_sim_spell *spell, int32_t n, int32_t rank, int64_t step) {
  double factor = 1;
  for (int32_t i = 0; i < n; i++)
    if (spell[i].rank == rank && spell[i].first <= step && step <= spell[i].last)
      factor *= spell[i].factor;
  return factor;
}

double kf_sim_slowness(const kf_sim_clock *clock, int32_t rank, int64_t step) {
  double speed = clock->speed ? clock->speed[rank] : 1;
  return factor_of(clock->slow, clock->n_slow, rank, step) / speed;
}

/* What a sequence computes over what the cost says. */
static double sequence_factor(const kf_sim_clock *clock, const kf_batch *batch, int64_t seq) {
  uint32_t kind = batch->profile ? (uint32_t)batch->profile[seq].kind : 0;
  double factor = kind <= KF_KIND_VIDEO ? clock->kind_factor[kind] : 0;
  return (batch->factor ? batch->factor[seq] : 1) * (factor > 0 ? factor : 1);
}

kf_status kf_sim_step(const kf_sim_clock *clock, int64_t step, const kf_batch *batch,
                      const kf_plan *plan, kf_sim_times *out) {
  if (!clock || !batch || !plan || !out)
    return kfi_fail(KF_EINVAL, "kf_sim_step: a pointer is NULL");
  if (batch->n_ranks != plan->n_ranks || batch->n_seqs != plan->n_seqs)
    return kfi_fail(KF_EINVAL,
                    "kf_sim_step: a batch of %d ranks and %lld sequences, expected the plan's %d "
                    "and %lld",
                    batch->n_ranks, (long long)batch->n_seqs, plan->n_ranks,
                    (long long)plan->n_seqs);
  const kf_cost *cost = &clock->cost;
  memset(out, 0, (size_t)plan->n_ranks * sizeof *out);
  for (int64_t i = 0; i < plan->n_chunks; i++) {
    const kf_chunk *c = &plan->chunk[i];
    double len = (double)batch->len[c->seq];
    out[c->destination].true_s +=
      sequence_factor(clock, batch, c->seq) *
      (cost->linear_s * (double)c->length +
       cost->quadratic_s * len * len * (double)c->heads / plan->heads + cost->constant_s);
    out[c->destination].samples += c->offset == 0 && c->length > 0;
  }
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    kf_sim_times *t = &out[r];
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++)
      t->home_s += sequence_factor(clock, batch, i) * kf_cost_work(cost, batch->len[i]);
    double slowness = kf_sim_slowness(clock, r, step);
    double noise = fmax(1 + clock->noise * draw(clock->seed, step, r), 0.1);
    if (t->true_s > 0) t->true_s = (t->true_s + clock->overhead_s) * slowness;
    if (t->home_s > 0) t->home_s = (t->home_s + clock->overhead_s) * slowness;
    t->comm_s = (clock->comm_scale > 0 ? clock->comm_scale : 1) * plan->comm_s[r];
    t->true_s += t->comm_s;
    t->measured_s = t->true_s * noise * factor_of(clock->pause, clock->n_pauses, r, step);
  }
  return KF_OK;
}
