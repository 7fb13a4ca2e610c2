/* SPDX-License-Identifier: Apache-2.0 */
/*
** The figures that the planner promises: flux, gamma 0.4, every seed. What depends on the clock is
** left to `knapformer bench plan`. Sanitizers take a tenth of the seeds.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <knapformer.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define N_SEEDS 20
#endif
#endif
#ifndef N_SEEDS
#define N_SEEDS 200
#endif

#define BUDGET_US 1000

static const char *const bag_specs[] = {"g1n32", "g2n16", "g4n8", "g8n4", "g1n8+g2n4+g4n4"};

/* budget_us 0 is the default budget. */
static kf_figures figures(const kf_batch *batch, const char *cluster, const char *spec,
                          double budget_us) {
  kf_planner_options o = {0};
  kf_planner *planner;
  kf_bags *bags = NULL;
  const kf_plan *plan = NULL;
  if (kf_cost_preset("flux", cluster, batch->n_ranks, 0.4, &o.cost) ||
      kf_bags_parse(spec, batch->n_ranks, &bags))
    fail_msg("%s", kf_last_error());
  o.bags = bags;
  o.budget = kf_planner_budget(budget_us);
  if (kf_planner_create(&o, &planner) || kf_planner_plan(planner, batch, &plan) ||
      kf_plan_check(plan, batch))
    fail_msg("%s", kf_last_error());
  kf_figures f = plan->figures;
  kf_planner_free(planner);
  kf_bags_free(bags);
  return f;
}

static kf_figures figures_of(const char *mix, uint64_t seed, const char *cluster, const char *spec,
                             double budget_us) {
  kf_batch *batch;
  if (kf_mix_create(mix, 0, seed, &batch)) fail_msg("%s", kf_last_error());
  kf_figures f = figures(batch, cluster, spec, budget_us);
  kf_batch_free(batch);
  return f;
}

static void assert_at_most(const char *what, const char *mix, uint64_t seed, double got,
                           double most) {
  if (!(got <= most))
    fail_msg("%s, seed %d: %s is %.6f, promised %g", mix, (int)seed, what, got, most);
}

/* Balance with free links, default budget: level, and little through Ulysses. */
static void test_balance(void **state) {
  (void)state;
  static const struct {
    const char *mix;
    double a2a;
  } want[] = {{"joint", 0.27}, {"mixres", 0.285}};
  for (size_t m = 0; m < N(want); m++)
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_figures f = figures_of(want[m].mix, seed, "free", "auto", 0);
      assert_at_most("max_over_mean", want[m].mix, seed, f.max_over_mean, 1.002);
      assert_at_most("a2a_fraction", want[m].mix, seed, f.a2a_fraction, want[m].a2a);
    }
}

static const struct {
  const char *mix;
  double step, gap;
} steps[] = {{"joint", 1.045, 0.012}, {"mixres", 1.053, 0.018}, {"lowres", 1.002, 0.002}};

static void test_step(void **state) {
  (void)state;
  for (size_t m = 0; m < N(steps); m++)
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_figures f = figures_of(steps[m].mix, seed, "h100x32", "auto", BUDGET_US);
      assert_at_most("step_s/ideal_s", steps[m].mix, seed, f.step_s / f.ideal_s, steps[m].step);
      assert_at_most("gap", steps[m].mix, seed, f.gap, steps[m].gap);
    }
}

static int rising(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void test_step_default_budget(void **state) {
  (void)state;
  for (size_t m = 0; m < N(steps); m++) {
    double step[N_SEEDS], gap[N_SEEDS];
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_figures f = figures_of(steps[m].mix, seed, "h100x32", "auto", 0);
      step[seed] = f.step_s / f.ideal_s;
      gap[seed] = f.gap;
      assert_at_most("step_s/ideal_s", steps[m].mix, seed, step[seed], 1.06);
    }
    qsort(step, N_SEEDS, sizeof *step, rising);
    qsort(gap, N_SEEDS, sizeof *gap, rising);
    assert_at_most("median step_s/ideal_s", steps[m].mix, 0, step[N_SEEDS / 2], steps[m].step);
    assert_at_most("median gap", steps[m].mix, 0, gap[N_SEEDS / 2], steps[m].gap);
  }
}

/* auto against the best of five fixed bags, and against no balancing. */
static void test_auto_against_fixed(void **state) {
  (void)state;
  static const struct {
    const char *mix;
    double ratio, speedup;
  } want[] = {{"joint", 0.98, 1},
              {"mixres", 0.95, 1},
              {"lowres", 1, 1},
              {"lowres4k", 1, 2.7},
              {"clips", 1, 2.9}};
  for (size_t m = 0; m < N(want); m++)
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_batch *batch;
      double best = INFINITY;
      if (kf_mix_create(want[m].mix, 0, seed, &batch)) fail_msg("%s", kf_last_error());
      for (size_t s = 0; s < N(bag_specs); s++) {
        double step = figures(batch, "h100x32", bag_specs[s], BUDGET_US).step_s;
        if (step < best) best = step;
      }
      kf_figures f = figures(batch, "h100x32", "auto", BUDGET_US);
      assert_at_most("auto/fixed", want[m].mix, seed, f.step_s / best, want[m].ratio);
      if (!(f.speedup >= want[m].speedup))
        fail_msg("%s, seed %d: speedup %.4f", want[m].mix, (int)seed, f.speedup);
      kf_batch_free(batch);
    }
}

static void test_fixed(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
    kf_figures f = figures_of("mixres", seed, "free", "g1n16+g2n4+g4n2", 0);
    assert_at_most("max_over_mean", "mixres", seed, f.max_over_mean, 1.12);
    f = figures_of("joint", seed, "free", "g4n8", 0);
    assert_at_most("max_over_mean", "joint", seed, f.max_over_mean, 1.0005);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_balance),
    cmocka_unit_test(test_step),
    cmocka_unit_test(test_step_default_budget),
    cmocka_unit_test(test_auto_against_fixed),
    cmocka_unit_test(test_fixed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
