/* SPDX-License-Identifier: Apache-2.0 */
/*
** plan SEED: random worlds through the planner. What must hold for every one of them:
** the plan is one; memory caps and the chunk limit are kept; the lower bound is below the step;
** auto is never worse than no balancing; planning again gives the same plan without allocating;
** what fits at home is never refused.
*/
#include <inttypes.h>
#include <stdlib.h>

#include "dice.h"
#include "fail_alloc.h"

#define N_CASES 1000

static uint64_t seed;
static int which;
static const world *now;

#define REQUIRE(condition, ...)                                                                    \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      complain();                                                                                  \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static void complain(void) {
  const kf_cost *c = &now->options.cost;
  printf(
    "seed %" PRIu64 ", case %d: %d ranks (%d a node), %d sequences, %d heads, bags %s%s%s%s%s, "
    "budget %d\n",
    seed, which, (int)now->batch.n_ranks, (int)c->cluster.ranks_per_node, (int)now->batch.n_seqs,
    (int)c->heads, *now->spec ? now->spec : "auto", now->options.speed ? ", speeds" : "",
    now->options.mem_tokens ? ", caps" : "", now->options.max_chunk_size ? ", max_chunk_size" : "",
    now->options.affinity ? ", spread" : "", (int)now->options.budget);
}

static void check_limits(const world *w, const kf_plan *p) {
  for (int32_t r = 0; w->options.mem_tokens && r < p->n_ranks; r++)
    REQUIRE(p->load_tokens[r] <= w->cap[r], "rank %d loads %" PRId64 " tokens, its cap is %" PRId64,
            (int)r, p->load_tokens[r], w->cap[r]);
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    REQUIRE(!w->options.max_chunk_size || k->length <= w->options.max_chunk_size,
            "chunk %" PRId64 " has %" PRId64 " tokens, max_chunk_size is %" PRId64, c, k->length,
            w->options.max_chunk_size);
    REQUIRE(w->len[k->seq] > 0 || k->destination == k->source,
            "sequence %" PRId64 " of no tokens leaves home", k->seq);
    if (!w->bags) continue;
    int64_t group = w->batch.n_ranks / w->bags->n_groups;
    REQUIRE(k->source / group == k->destination / group, "chunk %" PRId64 " leaves its group", c);
  }
}

static void check_figures(const world *w, const kf_plan *p) {
  const kf_figures *f = &p->figures;
  const kf_planner_options *o = &w->options;
  REQUIRE(f->step_s >= 0 && f->step_s < 1e9, "the step is %g", f->step_s);
  REQUIRE(f->lower_bound_s <= f->step_s * (1 + 1e-12), "bound %.17g, step %.17g", f->lower_bound_s,
          f->step_s);
  REQUIRE(f->lower_bound_s >= f->ideal_s * (1 - 1e-12), "bound %.17g, ideal %.17g",
          f->lower_bound_s, f->ideal_s);
  if (!w->bags && !o->mem_tokens && !o->max_chunk_size && o->affinity == KF_AFFINITY_FILL)
    REQUIRE(f->step_s <= f->before_step_s * (1 + 1e-9), "step %.17g, without balancing %.17g",
            f->step_s, f->before_step_s);
}

/* Whether every sequence whole at home keeps to caps and chunk limit (bags of one, or auto). */
static bool fits_at_home(const world *w) {
  for (int32_t r = 0; r < w->batch.n_ranks; r++) {
    int64_t tokens = 0;
    for (int64_t i = w->rank_off[r]; i < w->rank_off[r + 1]; i++) {
      if (w->options.max_chunk_size && w->len[i] > w->options.max_chunk_size) return false;
      tokens += w->len[i];
    }
    if (w->options.mem_tokens && tokens > w->cap[r]) return false;
  }
  return true;
}

/* Returns whether there was a plan. */
static bool run(const world *w) {
  kf_planner *planner;
  const kf_plan *plan;
  REQUIRE(kf_planner_create(&w->options, &planner) == KF_OK, "%s", kf_last_error());
  kf_status status = kf_planner_plan(planner, &w->batch, &plan);
  if (status == KF_EINFEASIBLE) {
    REQUIRE(w->options.mem_tokens || w->options.max_chunk_size, "%s", kf_last_error());
    REQUIRE(strstr(kf_last_error(), "fits nowhere"), "%s", kf_last_error());
    REQUIRE(w->bags || !fits_at_home(w), "all fits at home, but: %s", kf_last_error());
  } else {
    REQUIRE(status == KF_OK, "%s", kf_last_error());
    REQUIRE(kf_plan_check(plan, &w->batch) == KF_OK, "%s", kf_last_error());
    check_limits(w, plan);
    check_figures(w, plan);
    uint64_t hash = plan->hash;
    fail_alloc(0);
    REQUIRE(kf_planner_plan(planner, &w->batch, &plan) == KF_OK, "%s", kf_last_error());
    REQUIRE(fail_alloc(0) == 0, "planning again allocates");
    REQUIRE(plan->hash == hash, "planning again gives another plan");
  }
  kf_planner_free(planner);
  return status == KF_OK;
}

int main(int argc, char **argv) {
  static world w;
  int n_feasible = 0;
  seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  now = &w;
  for (which = 0; which < N_CASES; which++) {
    dice d = {seed << 32 ^ (uint64_t)which};
    world_random(&d, &w, WORLD_RANKS);
    n_feasible += run(&w);
    kf_bags_free(w.bags);
  }
  REQUIRE(n_feasible > N_CASES / 2, "only %d plans of %d", n_feasible, N_CASES);
  return 0;
}
