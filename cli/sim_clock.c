/* SPDX-License-Identifier: Apache-2.0 */
/*
** How long a planned step takes on a cluster that is not there.
**
**     plan, true cost, slowness --> true times --noise, pauses--> measured times
**
** A number is drawn for each (seed, step, rank) by itself: no generator state runs through the
** steps, so that every rank of a job can compute the clock of all others, and a run that is resumed
** goes on with the numbers it would have had. No libm: logarithms and cosines differ in their last
** bit from one processor to the next, and then the plans would.
*/
#include <math.h>
#include <string.h>

#include "sim.h"

/* ---------------------------------------------------------------------- reading */

int sim_read_spell(const char *command, const char *option, const char *text, int32_t n_ranks,
                   bool one_step, sim_spell *out) {
  char copy[64], what[48];
  int64_t rank, first = 0, last = INT64_MAX;
  snprintf(copy, sizeof copy, "%s", text);
  char *factor = strchr(copy, ':'), *from = factor ? strchr(factor, '@') : NULL;
  char *to = from ? strchr(from, '-') : NULL;
  if (!factor || strlen(text) >= sizeof copy || (one_step && (!from || to)))
    return cli_fail(EXIT_MISUSE, command, "%s: found \"%s\", expected %s", option, text,
                    one_step ? "RANK:FACTOR@STEP, as in 3:100@70"
                             : "RANK:FACTOR@FROM-TO, as in 3:2@50-120");
  *factor++ = 0;
  if (from) *from++ = 0;
  if (to) *to++ = 0;
  snprintf(what, sizeof what, "%s, rank", option);
  if (!cli_int(command, what, copy, 0, n_ranks - 1, &rank)) return EXIT_MISUSE;
  snprintf(what, sizeof what, "%s, factor", option);
  if (!cli_real(command, what, factor, 0.001, 1000, &out->factor)) return EXIT_MISUSE;
  snprintf(what, sizeof what, "%s, step", option);
  if (from && !cli_int(command, what, from, 0, INT64_MAX, &first)) return EXIT_MISUSE;
  if (to && *to && !cli_int(command, what, to, first, INT64_MAX, &last)) return EXIT_MISUSE;
  out->rank = (int32_t)rank;
  out->first = first;
  out->last = one_step ? first : last;
  return 0;
}

/* ------------------------------------------------------------------------ chance */

static uint64_t splitmix64(uint64_t state) {
  uint64_t z = state + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Nearly normal, mean 0, deviation 1: the sum of twelve uniform numbers, less 6. Exact. */
static double draw(uint64_t seed, int64_t step, int32_t rank) {
  uint64_t key = splitmix64(splitmix64(splitmix64(seed) ^ (uint64_t)step) ^ (uint64_t)rank);
  int64_t sum = 0;
  for (uint64_t i = 0; i < 6; i++) {
    uint64_t bits = splitmix64(key + i);
    sum += (int64_t)(bits >> 32) + (int64_t)(bits & 0xffffffffu);
  }
  return (double)(sum - ((int64_t)6 << 32)) * 0x1p-32;
}

/* ------------------------------------------------------------------------- times */

static double factor_of(const sim_spell *spell, int n, int32_t rank, int64_t step) {
  double factor = 1;
  for (int i = 0; i < n; i++)
    if (spell[i].rank == rank && spell[i].first <= step && step <= spell[i].last)
      factor *= spell[i].factor;
  return factor;
}

double sim_slowness(const sim_clock *clock, int32_t rank, int64_t step) {
  return factor_of(clock->slow, clock->n_slow, rank, step);
}

void sim_run(const sim_clock *clock, int64_t step, const kf_batch *batch, const kf_plan *plan,
             sim_times *out) {
  const kf_cost *cost = &clock->cost;
  memset(out, 0, (size_t)plan->n_ranks * sizeof *out);
  for (int64_t i = 0; i < plan->n_chunks; i++) {
    const kf_chunk *c = &plan->chunk[i];
    double len = (double)batch->len[c->seq];
    out[c->destination].true_s += cost->linear_s * (double)c->length +
                                  cost->quadratic_s * len * len * (double)c->heads / plan->heads +
                                  cost->constant_s;
    out[c->destination].samples += c->offset == 0 && c->length > 0;
  }
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++)
      out[r].home_s += kf_cost_work(cost, batch->len[i]);
    double slowness = sim_slowness(clock, r, step);
    double pause = factor_of(clock->pause, clock->n_pauses, r, step);
    double noise = fmax(1 + clock->noise * draw(clock->seed, step, r), 0.1);
    out[r].comm_s = plan->comm_s[r];
    out[r].true_s = out[r].true_s * slowness + out[r].comm_s;
    out[r].home_s *= slowness;
    out[r].measured_s = out[r].true_s * noise * pause;
  }
}
