/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "plan/knapsack.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};

typedef struct problem {
  kf_planner_options o;
  kf_batch *batch;
  kf_bags *bags;
  kf_planner *planner;
  const kf_plan *plan;
} problem;

static problem solve(const char *mix, uint64_t seed, const char *spec, const char *cluster,
                     const double *speed) {
  problem p = {0};
  if (kf_mix_create(mix, 0, seed, &p.batch)) fail_msg("%s", kf_last_error());
  if (kf_bags_parse(spec, p.batch->n_ranks, &p.bags)) fail_msg("%s", kf_last_error());
  if (kf_cost_preset("flux", cluster, p.batch->n_ranks, 0.4, &p.o.cost))
    fail_msg("%s", kf_last_error());
  p.o.bags = p.bags;
  p.o.speed = speed;
  assert_int_equal(kf_planner_create(&p.o, &p.planner), KF_OK);
  if (kf_planner_plan(p.planner, p.batch, &p.plan)) fail_msg("%s", kf_last_error());
  if (kf_plan_check(p.plan, p.batch)) fail_msg("%s", kf_last_error());
  assert_int_equal(p.plan->auto_bags, 0);
  return p;
}

static void dispose(problem *p) {
  kf_planner_free(p->planner);
  kf_bags_free(p->bags);
  kf_batch_free(p->batch);
}

static int32_t bag_of(const kf_bags *b, int64_t rank) {
  int32_t k = 0;
  while (b->first[k + 1] <= rank) k++;
  return k;
}

/* -------------------------------------------------------------------- shares */

/* All chunks of a sequence lie in one bag; its ranks' tokens and heads differ by at most 1. */
static void check_equal(const problem *p) {
  for (int64_t i = 0; i < p->plan->n_seqs; i++) {
    const kf_chunk *c = &p->plan->chunk[p->plan->seq_off[i]];
    int64_t n = p->plan->seq_off[i + 1] - p->plan->seq_off[i];
    int32_t bag = bag_of(p->bags, c->destination);
    int64_t g = p->bags->first[bag + 1] - p->bags->first[bag], l = p->batch->len[i];
    int64_t H = p->plan->heads;
    assert_true(n <= g);
    if (n < g) assert_true(l < g && H < g + l); /* a rank with nothing has no chunk */
    for (int64_t k = 0; k < n; k++) {
      assert_int_equal(bag_of(p->bags, c[k].destination), bag);
      assert_in_range(c[k].length, l / g, (l + g - 1) / g);
      assert_in_range(c[k].heads, H / g, (H + g - 1) / g);
    }
  }
}

static void test_equal_shares(void **state) {
  (void)state;
  static const char *const specs[] = {
    "1", "g2n16", "g4n8", "32", "g1n3+g3n4+g5n1+g12n1", "[5,11]", "g1n8+g2n4+g4n4"};
  static const char *const clusters[] = {"h100x32", "free"};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (size_t c = 0; c < N(clusters); c++) {
        problem p = solve(mixes[m], s, specs[s], clusters[c], NULL);
        check_equal(&p);
        dispose(&p);
      }
}

/* No chunk leaves its group. */
static void test_groups(void **state) {
  (void)state;
  static const char *const specs[] = {"[1,1,2]", "g2n4", "g8n1", "[3,5]"};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++) {
      problem p = solve(mixes[m], 1, specs[s], "free", NULL);
      int64_t size = 32 / p.bags->n_groups;
      assert_true(size < 32);
      for (int64_t c = 0; c < p.plan->n_chunks; c++)
        assert_int_equal(p.plan->chunk[c].source / size, p.plan->chunk[c].destination / size);
      dispose(&p);
    }
}

/* Where speeds differ, the ranks of a bag finish a sequence together, as near as tokens allow. */
static void test_shares_by_speed(void **state) {
  (void)state;
  double speed[32];
  for (int r = 0; r < 32; r++) speed[r] = 0.5 + 0.5 * (r % 4);
  problem p = solve("mixres", 0, "g4n8", "free", speed);
  int n_checked = 0;
  for (int64_t i = 0; i < p.plan->n_seqs; i++) {
    const kf_chunk *c = &p.plan->chunk[p.plan->seq_off[i]];
    const kf_cost *k = &p.o.cost;
    double l = (double)p.batch->len[i], want = kf_cost_work(k, p.batch->len[i]) / 5;
    if (l < 5000) continue; /* one head weighs more than a rank's tokens */
    assert_int_equal(p.plan->seq_off[i + 1] - p.plan->seq_off[i], 4);
    for (int j = 0; j < 4; j++) {
      double s =
        k->linear_s * (double)c[j].length + k->quadratic_s * l * l * (double)c[j].heads / 24;
      double fair = 24 * speed[c[j].destination] / 5;
      assert_true(fabs((double)c[j].heads - fair) < 1);
      if (fabs(s / speed[c[j].destination] - want) > 4 * k->linear_s / speed[c[j].destination])
        fail_msg("sequence %d: rank %d takes %g s, expected %g", (int)i, (int)c[j].destination,
                 s / speed[c[j].destination], want);
      n_checked++;
    }
  }
  assert_true(n_checked >= 32);
  dispose(&p);
}

/* --------------------------------------------------------------- brute force */

#define TINY_SEQS 10
#define TINY_RANKS 4

typedef struct brute {
  kfi_world w;
  kfi_item item[TINY_SEQS];
  int64_t n;
  double best_s;
} brute;

/* Every assignment of the items from j on, dealt to bags just as the planner deals. */
static void brute_force(brute *u, int64_t j, const double *load) {
  double most = 0;
  for (int32_t r = 0; r < u->w.n_ranks; r++) most = load[r] > most ? load[r] : most;
  if (most >= u->best_s) return; /* loads only grow */
  if (j == u->n) {
    u->best_s = most;
    return;
  }
  const kfi_item *it = &u->item[j];
  int32_t group = u->w.bag_of[it->home] / u->w.bags_per_group;
  if (it->len == 0) { /* stays at home */
    double next[TINY_RANKS];
    memcpy(next, load, sizeof next);
    next[it->home] += it->work / u->w.speed[it->home];
    brute_force(u, j + 1, next);
    return;
  }
  for (int32_t k = 0; k < u->w.bags_per_group; k++) {
    int32_t b = group * u->w.bags_per_group + k, first = u->w.bag_first[b];
    double next[TINY_RANKS];
    kfi_share set[TINY_RANKS];
    memcpy(next, load, sizeof next);
    kfi_deal(&u->w, it, first, u->w.bag_first[b + 1] - first, next, set);
    brute_force(u, j + 1, next);
  }
}

static void tiny_world(dice *d, world *w) {
  int32_t n_ranks = 1 + (int32_t)dice_int(d, TINY_RANKS);
  int64_t n = dice_int(d, TINY_SEQS + 1), range = dice_one_in(d, 3) ? 40 : 20000;
  char model[64];
  w->options = (kf_planner_options){0};
  w->rank_off[0] = 0;
  for (int32_t r = 1; r < n_ranks; r++)
    w->rank_off[r] = w->rank_off[r - 1] + dice_int(d, n - w->rank_off[r - 1] + 1);
  w->rank_off[n_ranks] = n;
  for (int64_t i = 0; i < n; i++) {
    w->len[i] = dice_int(d, range);
    w->factor[i] = dice_real(d, 0.5, 2);
  }
  w->batch =
    (kf_batch){n_ranks, n, w->rank_off, w->len, dice_one_in(d, 4) ? w->factor : NULL, NULL};
  int dim = dice_one_in(d, 2) ? 3072 : 64, heads = 1 + (int)dice_int(d, 30);
  snprintf(model, sizeof model, "d=%d,layers=2,heads=%d", dim, heads);
  assert_int_equal(kf_cost_preset(model, "free", n_ranks, 0.4, &w->options.cost), KF_OK);
  if (dice_one_in(d, 4)) w->options.cost.constant_s = 1e-4;
  for (int32_t r = 0; r < n_ranks; r++) w->speed[r] = dice_real(d, 0.5, 2);
  if (dice_one_in(d, 4)) w->options.speed = w->speed;
  world_bags(d, w, n_ranks);
}

static void test_brute_force(void **state) {
  (void)state;
  static world w;
  for (int i = 0; i <= 1000; i++) {
    uint64_t seed = i < 1000 ? (uint64_t)i : 7615; /* the last: a constant and no tokens */
    dice d = {seed};
    brute u = {.best_s = INFINITY};
    kfi_buffer buffer = {0};
    uint64_t key[TINY_SEQS], spare[TINY_SEQS];
    int32_t home[TINY_SEQS];
    kfi_sorter sorter = {key, spare, home};
    double load[TINY_RANKS] = {0};
    kf_planner *planner;
    const kf_plan *plan;
    tiny_world(&d, &w);
    assert_int_equal(kfi_world_create(&w.options, &u.w, &buffer), KF_OK);
    kfi_order(&u.w, &w.batch, &sorter, u.item);
    u.n = w.batch.n_seqs;
    brute_force(&u, 0, load);
    assert_int_equal(kf_planner_create(&w.options, &planner), KF_OK);
    if (kf_planner_plan(planner, &w.batch, &plan)) fail_msg("%s", kf_last_error());
    double step = plan->figures.step_s;
    if (!(fabs(step - u.best_s) <= 1e-9 * u.best_s))
      fail_msg("seed %d (%d ranks, %d sequences, bags %s): step %.12g, by force %.12g", (int)seed,
               (int)w.batch.n_ranks, (int)u.n, w.spec, step, u.best_s);
    kf_planner_free(planner);
    kf_bags_free(w.bags);
    kfi_buffer_free(&buffer);
  }
}

/* ---------------------------------------------------------- the published greedy */

typedef struct job {
  double work;
  int64_t len, seq;
} job;

static int by_falling_work(const void *a, const void *b) {
  const job *x = a, *y = b;
  if (x->work != y->work) return x->work > y->work ? -1 : 1;
  return x->seq < y->seq ? -1 : 1;
}

/* The published greedy for one group: which bag every job goes to. */
static void greedy(const kf_bags *b, int32_t group, const job *jobs, int64_t n, int32_t *bag) {
  int32_t first = group * b->bags_per_group, end = first + b->bags_per_group, largest = 0;
  double *assigned = calloc((size_t)b->n_bags, sizeof *assigned), total = 0;
  double n_ranks = b->n_ranks / b->n_groups;
  for (int64_t i = 0; i < n; i++) total += jobs[i].work;
  for (int32_t k = first; k < end; k++)
    if (b->first[k + 1] - b->first[k] > largest) largest = b->first[k + 1] - b->first[k];
  for (int64_t i = 0; i < n; i++) {
    int32_t best = -1;
    double least = INFINITY;
    for (int any = 0; any < 2 && best < 0; any++)
      for (int32_t k = first; k < end; k++) {
        int32_t size = b->first[k + 1] - b->first[k];
        double capacity = size * total / n_ranks;
        if (any ? size != largest : capacity < jobs[i].work || size > jobs[i].len) continue;
        if (assigned[k] / capacity < least) least = assigned[k] / capacity, best = k;
      }
    bag[i] = best;
    assigned[best] += jobs[i].work;
  }
  free(assigned);
}

/*
** What the published greedy reaches, max over mean: with shares of any size, and with whole
** tokens and heads, remainders to the first ranks of the bag.
*/
static void greedy_figures(const problem *p, double *any_size, double *whole) {
  const kf_bags *b = p->bags;
  const kf_cost *cost = &p->o.cost;
  int32_t group_size = b->n_ranks / b->n_groups, H = cost->heads;
  double *load = calloc((size_t)b->n_ranks, sizeof *load);
  double *dealt = calloc((size_t)b->n_ranks, sizeof *dealt), all = 0;
  for (int32_t g = 0; g < b->n_groups; g++) {
    int64_t from = p->batch->rank_off[g * group_size];
    int64_t n = p->batch->rank_off[(g + 1) * group_size] - from;
    job *jobs = calloc((size_t)n + 1, sizeof *jobs);
    int32_t *bag = calloc((size_t)n + 1, sizeof *bag);
    for (int64_t i = 0; i < n; i++) {
      int64_t len = p->batch->len[from + i];
      jobs[i] = (job){kf_cost_work(cost, len), len, i};
    }
    qsort(jobs, (size_t)n, sizeof *jobs, by_falling_work);
    greedy(b, g, jobs, n, bag);
    for (int64_t i = 0; i < n; i++) {
      int32_t first = b->first[bag[i]], size = b->first[bag[i] + 1] - first;
      double l = (double)jobs[i].len, head_s = cost->quadratic_s * l * l / H;
      for (int32_t k = 0; k < size; k++) {
        int64_t tokens = jobs[i].len / size + (k < jobs[i].len % size);
        load[first + k] += jobs[i].work / size;
        dealt[first + k] += cost->linear_s * (double)tokens + head_s * (H / size + (k < H % size));
      }
      all += jobs[i].work;
    }
    free(jobs);
    free(bag);
  }
  *any_size = *whole = 0;
  for (int32_t r = 0; r < b->n_ranks; r++) {
    if (load[r] * b->n_ranks / all > *any_size) *any_size = load[r] * b->n_ranks / all;
    if (dealt[r] * b->n_ranks / all > *whole) *whole = dealt[r] * b->n_ranks / all;
  }
  free(load);
  free(dealt);
}

#define TOKEN_SLACK 1e-4 /* whole tokens and heads against shares of any size */

static void test_never_above_greedy(void **state) {
  (void)state;
  static const char *const specs[] = {
    "g1n32", "g2n16", "g4n8", "g8n4", "g32n1", "g1n8+g2n4+g4n4", "g1n16+g2n4+g4n2", "[1,1,2]"};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (uint64_t seed = 0; seed < 20; seed++) {
        problem p = solve(mixes[m], seed, specs[s], "free", NULL);
        double ours = p.plan->figures.max_over_mean, any_size, whole;
        greedy_figures(&p, &any_size, &whole);
        if (!(ours <= any_size * (1 + TOKEN_SLACK)) || !(ours <= whole * (1 + 1e-12)))
          fail_msg("%s, seed %d, %s: %.9f, the published greedy has %.9f, in whole tokens %.9f",
                   mixes[m], (int)seed, specs[s], ours, any_size, whole);
        dispose(&p);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_equal_shares),       cmocka_unit_test(test_groups),
    cmocka_unit_test(test_shares_by_speed),    cmocka_unit_test(test_brute_force),
    cmocka_unit_test(test_never_above_greedy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
