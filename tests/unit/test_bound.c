/* SPDX-License-Identifier: Apache-2.0 */
/*
** The lower bound against the true optimum of tiny instances, found by trying everything: all
** splits of tokens and heads (auto), all bags (fixed). Costs are such that Ulysses, routing and
** messages matter as much as compute. kfi_bound itself is asked, because kf_planner_plan never
** reports a bound above its own step.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "plan/knapsack.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))
#define RANKS 4
#define SEQS 4
#define MAX_WAYS 4000

/* What one way of computing one sequence costs each rank, messages apart. */
typedef struct way {
  double seconds[RANKS];
  int64_t load[RANKS];
  unsigned ulysses[RANKS], route[RANKS]; /* peers, a bit each */
} way;

typedef struct brute {
  const world *w;
  const kfi_world *k;   /* how bags deal, */
  const kfi_item *item; /* and in which order */
  way *ways[SEQS];
  int64_t n_ways[SEQS];
  double best_s;
} brute;

/* ------------------------------------------------------------ one sequence's ways */

/* The cost of one sequence, term by term. False: a chunk is too long. */
static bool price(const world *w, int64_t seq, int32_t home, const kfi_share *share, way *y) {
  const kf_planner_options *o = &w->options;
  const kf_cost *c = &o->cost;
  int32_t n = w->batch.n_ranks;
  double l = (double)w->len[seq], f = w->batch.factor ? w->factor[seq] : 1, H = c->heads;
  *y = (way){0};
  for (int32_t r = 0; r < n; r++) {
    int64_t t = share[r].tokens, h = share[r].heads,
            rows = (w->len[seq] * h + c->heads - 1) / c->heads;
    if (o->max_chunk_size && t > o->max_chunk_size) return false;
    y->load[r] = t > rows ? t : rows;
    if (t || h)
      y->seconds[r] =
        f / (o->speed ? o->speed[r] : 1) *
        (c->linear_s * (double)t + c->quadratic_s * l * l * (double)h / H + c->constant_s);
  }
  for (int32_t r = 0; r < n; r++)
    for (int32_t q = 0; q < n; q++) {
      bool near = r / c->cluster.ranks_per_node == q / c->cluster.ranks_per_node;
      double Bps = near ? c->cluster.intra_Bps : c->cluster.inter_Bps;
      double pairs = (double)(share[r].tokens * share[q].heads + share[q].tokens * share[r].heads);
      if (q == r) continue;
      y->seconds[r] += c->ulysses_bytes * pairs / H / Bps;
      if (pairs > 0) y->ulysses[r] |= 1u << q;
      double rows = (double)(r == home ? share[q].tokens : q == home ? share[r].tokens : 0);
      y->seconds[r] += c->route_bytes * rows / Bps;
      if (rows > 0) y->route[r] |= 1u << q;
    }
  return true;
}

/* All ways to give `tokens` tokens and `heads` heads to ranks r, r+1, ... */
static void split_all(brute *u, int64_t seq, int32_t home, int32_t r, kfi_share *share,
                      int64_t tokens, int32_t heads) {
  if (r == RANKS - 1 || r == u->w->batch.n_ranks - 1) {
    share[r] = (kfi_share){r, heads, tokens};
    u->n_ways[seq] += price(u->w, seq, home, share, &u->ways[seq][u->n_ways[seq]]);
    assert_true(u->n_ways[seq] < MAX_WAYS);
    return;
  }
  for (int64_t t = 0; t <= tokens; t++)
    for (int32_t h = 0; h <= heads; h++) {
      share[r] = (kfi_share){r, h, t};
      split_all(u, seq, home, r + 1, share, tokens - t, heads - h);
    }
}

/* -------------------------------------------------------- all sequences together */

/* The step so far; INFINITY: a cap is broken. */
static double step_of(const world *w, const way *sum) {
  const kf_cost *c = &w->options.cost;
  double step = 0;
  for (int32_t r = 0; r < w->batch.n_ranks; r++) {
    int n_messages =
      c->layers * __builtin_popcount(sum->ulysses[r]) + __builtin_popcount(sum->route[r]);
    double s = sum->seconds[r] + c->cluster.latency_s * 4 * n_messages;
    if (w->options.mem_tokens && sum->load[r] > w->cap[r]) return INFINITY;
    if (s > step) step = s;
  }
  return step;
}

static way add(const way *a, const way *b) {
  way sum = *a;
  for (int32_t r = 0; r < RANKS; r++) {
    sum.seconds[r] += b->seconds[r];
    sum.load[r] += b->load[r];
    sum.ulysses[r] |= b->ulysses[r];
    sum.route[r] |= b->route[r];
  }
  return sum;
}

/* Auto: every way of every sequence from `seq` on. */
static void combine(brute *u, int64_t seq, const way *sum) {
  double step = step_of(u->w, sum);
  if (step >= u->best_s) return; /* seconds and loads only grow */
  if (seq == u->w->batch.n_seqs) {
    u->best_s = step;
    return;
  }
  for (int64_t i = 0; i < u->n_ways[seq]; i++) {
    way next = add(sum, &u->ways[seq][i]);
    combine(u, seq + 1, &next);
  }
}

/* Fixed bags: every bag of every item from j on, dealt in the planner's order. */
static void deal_all(brute *u, int64_t j, const double *load, const way *sum) {
  const kfi_world *k = u->k;
  const kfi_item *it = &u->item[j];
  double step = step_of(u->w, sum);
  if (step >= u->best_s) return;
  if (j == u->w->batch.n_seqs) {
    u->best_s = step;
    return;
  }
  int32_t group = k->bag_of[it->home] / k->bags_per_group * k->bags_per_group;
  for (int32_t b = group; b < group + k->bags_per_group; b++) {
    kfi_share share[RANKS] = {{0}}, set[RANKS];
    double after[RANKS];
    int32_t first = k->bag_first[b], g = k->bag_first[b + 1] - first;
    way y;
    memcpy(after, load, sizeof after);
    if (it->len == 0) { /* stays at home */
      share[it->home] = (kfi_share){it->home, k->heads, 0};
      after[it->home] += it->work / k->speed[it->home];
    } else {
      kfi_deal(k, it, first, g, after, set);
      for (int32_t i = 0; i < g; i++) share[set[i].rank] = set[i];
    }
    if (!price(u->w, it->seq, it->home, share, &y)) continue;
    way next = add(sum, &y);
    deal_all(u, j + 1, after, &next);
  }
}

/* The shortest step there is; INFINITY: none fits. */
static double optimum(const world *w, const kfi_world *k, const kfi_item *item) {
  static way ways[SEQS][MAX_WAYS];
  brute u = {.w = w, .k = k, .item = item, .best_s = INFINITY};
  kfi_share share[RANKS];
  double load[RANKS] = {0};
  way nothing = {0};
  if (w->bags) {
    deal_all(&u, 0, load, &nothing);
    return u.best_s;
  }
  for (int64_t j = 0; j < w->batch.n_seqs; j++) {
    int64_t seq = item[j].seq;
    int32_t home = item[j].home, heads = w->options.cost.heads;
    u.ways[seq] = ways[j];
    if (item[j].len) {
      split_all(&u, seq, home, 0, share, item[j].len, heads);
    } else { /* stays at home */
      for (int32_t r = 0; r < RANKS; r++) share[r] = (kfi_share){r, r == home ? heads : 0, 0};
      u.n_ways[seq] = price(w, seq, home, share, u.ways[seq]);
    }
  }
  combine(&u, 0, &nothing);
  return u.best_s;
}

/* ------------------------------------------------------------------ instances */

/* Few and short sequences; every cost is of the order of 1. */
static void tiny_world(dice *d, world *w, int32_t n_ranks, int64_t n, int64_t longest) {
  w->options = (kf_planner_options){0};
  w->bags = NULL;
  w->spec[0] = 0;
  kf_cost *c = &w->options.cost;
  c->linear_s = dice_one_in(d, 10) ? 0 : dice_real(d, 0.1, 2);
  c->quadratic_s = dice_one_in(d, 10) ? 0 : dice_real(d, 0, 1);
  c->constant_s = dice_one_in(d, 3) ? dice_real(d, 0, 2) : 0;
  c->ulysses_bytes = dice_one_in(d, 4) ? 0 : dice_real(d, 0, 3);
  c->route_bytes = dice_one_in(d, 3) ? 0 : dice_real(d, 0, 1);
  c->layers = 1 + (int32_t)dice_int(d, 2);
  c->heads = 1 + (int32_t)dice_int(d, 4);
  c->cluster.n_ranks = n_ranks;
  c->cluster.ranks_per_node = 1 + (int32_t)dice_int(d, n_ranks);
  c->cluster.intra_Bps = dice_one_in(d, 5) ? INFINITY : dice_real(d, 1, 10);
  c->cluster.inter_Bps = dice_one_in(d, 5) ? INFINITY : dice_real(d, 1, 10);
  c->cluster.latency_s = dice_one_in(d, 2) ? 0 : dice_real(d, 0, 0.1);
  w->rank_off[0] = 0;
  for (int32_t r = 1; r < n_ranks; r++)
    w->rank_off[r] = w->rank_off[r - 1] + dice_int(d, n - w->rank_off[r - 1] + 1);
  w->rank_off[n_ranks] = n;
  for (int64_t i = 0; i < n; i++) {
    w->len[i] = dice_int(d, longest + 1);
    w->factor[i] = dice_real(d, 0.5, 2);
  }
  w->batch =
    (kf_batch){n_ranks, n, w->rank_off, w->len, dice_one_in(d, 4) ? w->factor : NULL, NULL};
  for (int32_t r = 0; r < n_ranks; r++) {
    w->speed[r] = dice_real(d, 0.5, 3);
    w->cap[r] = longest / 2 + dice_int(d, 2 * longest);
  }
  if (dice_one_in(d, 3)) w->options.speed = w->speed;
  if (dice_one_in(d, 4)) w->options.mem_tokens = w->cap;
  if (dice_one_in(d, 4)) w->options.max_chunk_size = 1 + dice_int(d, longest);
}

/* Returns the planner's step over the optimum; 0: no plan. */
static double check(const char *what, uint64_t seed, const world *w) {
  kfi_world k;
  kfi_buffer buffer = {0};
  kf_planner *planner;
  const kf_plan *plan;
  kfi_item item[SEQS];
  uint64_t key[SEQS], spare[SEQS];
  int32_t home[SEQS];
  double ratio = 0, scratch[3 * RANKS];
  assert_int_equal(kfi_world_create(&w->options, &k, &buffer), KF_OK);
  kfi_order(&k, &w->batch, &(kfi_sorter){key, spare, home}, item);
  double best = optimum(w, &k, item), bound = kfi_bound(&k, item, w->batch.n_seqs, scratch);
  if (!(bound <= best * (1 + 1e-9)))
    fail_msg("%s, seed %d (%d ranks, %d sequences, %s%s%s%s%s): bound %.12g, optimum %.12g", what,
             (int)seed, (int)w->batch.n_ranks, (int)w->batch.n_seqs, w->bags ? w->spec : "auto",
             w->options.speed ? ", speeds" : "", w->options.mem_tokens ? ", caps" : "",
             w->options.max_chunk_size ? ", max_chunk_size" : "",
             w->options.cost.constant_s > 0 ? ", constant_s" : "", bound, best);
  assert_int_equal(kf_planner_create(&w->options, &planner), KF_OK);
  kf_status status = kf_planner_plan(planner, &w->batch, &plan);
  if (status == KF_OK) {
    const kf_figures *f = &plan->figures;
    assert_true(f->lower_bound_s >= f->ideal_s * (1 - 1e-12));
    if (!(f->step_s >= best * (1 - 1e-9)))
      fail_msg("%s, seed %d: step %.12g, optimum %.12g", what, (int)seed, f->step_s, best);
    ratio = best > 0 ? f->step_s / best : 1;
  } else {
    assert_int_equal(status, KF_EINFEASIBLE);
    if (!w->options.mem_tokens && best < INFINITY)
      fail_msg("%s, seed %d: refused, optimum %.12g", what, (int)seed, best);
  }
  kf_planner_free(planner);
  kf_bags_free(w->bags);
  kfi_buffer_free(&buffer);
  return ratio;
}

/* Half of the plans are optimal: the brute force is not asking the impossible. */
static void run_auto(const char *what, int n_seeds, int32_t n_ranks, int64_t n, int64_t longest) {
  static world w;
  int n_best = 0;
  for (int seed = 0; seed < n_seeds; seed++) {
    dice d = {(uint64_t)seed};
    tiny_world(&d, &w, n_ranks, n, longest);
    n_best += check(what, (uint64_t)seed, &w) < 1 + 1e-9;
  }
  assert_true(2 * n_best > n_seeds);
}

static void test_auto_1(void **state) {
  (void)state;
  run_auto("2 ranks, 1 sequence", 20000, 2, 1, 6);
  run_auto("3 ranks, 1 sequence", 20000, 3, 1, 6);
}

static void test_auto_2(void **state) {
  (void)state;
  run_auto("2 ranks, 2 sequences", 4000, 2, 2, 6);
  run_auto("3 ranks, 2 sequences", 1000, 3, 2, 5);
}

static void test_auto_3(void **state) {
  (void)state;
  run_auto("2 ranks, 3 sequences", 1000, 2, 3, 5);
  run_auto("3 ranks, 3 sequences", 1000, 3, 3, 2);
}

static void test_fixed(void **state) {
  (void)state;
  static world w;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    dice d = {seed};
    int32_t n_ranks = 1 + (int32_t)dice_int(&d, RANKS);
    int64_t n = dice_int(&d, SEQS + 1);
    tiny_world(&d, &w, n_ranks, n, dice_one_in(&d, 2) ? 6 : 200);
    w.options.max_chunk_size = 0; /* a sequence stays in one bag */
    w.options.mem_tokens = NULL;
    world_bags(&d, &w, w.batch.n_ranks);
    check("fixed", seed, &w);
  }
}

/* A bag across two nodes, and fewer heads than ranks: then Ulysses is far from evenly spread. */
static void test_fixed_few_heads(void **state) {
  (void)state;
  static world w;
  for (uint64_t seed = 0; seed < 500; seed++) {
    dice d = {seed};
    tiny_world(&d, &w, 3, 1, 400);
    w.options.max_chunk_size = 0;
    w.options.mem_tokens = NULL;
    w.options.cost.heads = 1;
    w.options.cost.ulysses_bytes = dice_real(&d, 1, 60);
    w.options.cost.cluster.ranks_per_node = 2;
    w.options.cost.cluster.intra_Bps = INFINITY;
    assert_int_equal(kf_bags_parse("3", 3, &w.bags), KF_OK);
    w.options.bags = w.bags;
    check("few heads", seed, &w);
  }
}

/* The bound with a small budget is not above the step with a hundred times the default one. */
static void test_large_budget(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
  static const char *const specs[] = {"auto", "g2n16", "g1n8+g2n4+g4n4"};
  static const char *const clusters[] = {"h100x32", "free"};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (size_t c = 0; c < N(clusters); c++) {
        kf_planner_options o = {0};
        kf_batch *b;
        kf_bags *bags;
        double bound = 0;
        assert_int_equal(kf_mix_create(mixes[m], 32, m, &b), KF_OK);
        assert_int_equal(kf_bags_parse(specs[s], 32, &bags), KF_OK);
        assert_int_equal(kf_cost_preset("flux", clusters[c], 32, 0.4, &o.cost), KF_OK);
        o.bags = bags;
        for (int k = 0; k < 2; k++) {
          kf_planner *planner;
          const kf_plan *plan;
          assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
          if (kf_planner_plan(planner, b, &plan)) fail_msg("%s", kf_last_error());
          assert_true(plan->figures.lower_bound_s >= plan->figures.ideal_s);
          if (k == 0)
            bound = plan->figures.lower_bound_s;
          else if (bound > plan->figures.step_s * (1 + 1e-12))
            fail_msg("%s, %s, %s: bound %.12g, step %.12g", mixes[m], specs[s], clusters[c], bound,
                     plan->figures.step_s);
          o.budget = 100 * (100 + 10 * 32 + b->n_seqs / 2);
          kf_planner_free(planner);
        }
        kf_bags_free(bags);
        kf_batch_free(b);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_auto_1),          cmocka_unit_test(test_auto_2),
    cmocka_unit_test(test_auto_3),          cmocka_unit_test(test_fixed),
    cmocka_unit_test(test_fixed_few_heads), cmocka_unit_test(test_large_budget),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
