/* SPDX-License-Identifier: Apache-2.0 */
/*
** The figures that the rules promise on `wan`: 16 ranks, wan1.3b, gamma 0.4, 160000 tokens of
** memory, matched at the longest sample; means over the seeds. Sanitizers take two of them.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <knapformer.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define N_SEEDS 2
#endif
#endif
#ifndef N_SEEDS
#define N_SEEDS 10
#endif

enum { RANKS = 16, MEM_TOKENS = 160000, MATCH_LEN = 75600, BUDGET_US = 2000 };

static kf_cost wan_cost(void) {
  kf_cost cost;
  if (kf_cost_preset("wan1.3b", "free", RANKS, 0.4, &cost)) fail_msg("%s", kf_last_error());
  return cost;
}

static kf_sampler_options options_of(kf_rule rule, kf_power power, kf_step_mode mode,
                                     uint64_t seed) {
  return (kf_sampler_options){.bucket = {.rule = rule,
                                         .cost = wan_cost(),
                                         .mem_tokens = MEM_TOKENS,
                                         .match_len = MATCH_LEN,
                                         .power = power,
                                         .n_ranks = RANKS},
                              .mode = mode,
                              .seed = seed};
}

/* Free it. */
static kf_sampler *sampler_of(const kf_sampler_options *o) {
  kf_batch *batch;
  kf_sampler *s = NULL;
  if (kf_mix_create("wan", RANKS, o->seed, &batch) ||
      kf_sampler_create(o, batch->len, batch->n_seqs, &s))
    fail_msg("%s", kf_last_error());
  kf_batch_free(batch);
  return s;
}

/* What is asked of a rule: means over the seeds. */
typedef struct means {
  double imbalance, memory_use, compute_use, tokens_per_s, p;
} means;

static means means_of(kf_rule rule, kf_power power, kf_step_mode mode) {
  means m = {0};
  for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
    kf_sampler_options o = options_of(rule, power, mode, seed);
    kf_sampler *s = sampler_of(&o);
    kf_epoch e;
    if (kf_sampler_figures(s, &e)) fail_msg("%s", kf_last_error());
    assert_true(e.max_memory_use <= 1);
    if (rule != KF_RULE_EQUAL_TOKEN && power != KF_POWER_FITTED)
      assert_true(e.max_compute_use <= 1 + 1e-9);
    m.imbalance += e.imbalance_rate / N_SEEDS;
    m.memory_use += e.mean_memory_use / N_SEEDS;
    m.compute_use += e.mean_compute_use / N_SEEDS;
    m.tokens_per_s += e.predicted_tokens_per_s / N_SEEDS;
    m.p += kf_sampler_buckets(s)->p / N_SEEDS;
    kf_sampler_free(s);
  }
  print_message("%-11s mode %d: imbalance %.4f, memory %.4f, compute %.4f, %.0f tokens/s, p %.3f\n",
                kf_rule_name(rule), (int)mode, m.imbalance, m.memory_use, m.compute_use,
                m.tokens_per_s, m.p);
  return m;
}

static void expect_at_most(const char *what, double got, double most) {
  if (!(got <= most)) fail_msg("%s is %.4f, promised at most %g", what, got, most);
}

static void expect_at_least(const char *what, double got, double least) {
  if (!(got >= least)) fail_msg("%s is %.4f, promised at least %g", what, got, least);
}

static void test_random(void **state) {
  (void)state;
  means habit = means_of(KF_RULE_EQUAL_TOKEN, 0, KF_STEPS_RANDOM);
  means best = means_of(KF_RULE_POWER, KF_POWER_BEST, KF_STEPS_RANDOM);
  means fitted = means_of(KF_RULE_POWER, KF_POWER_FITTED, KF_STEPS_RANDOM);
  means two_term = means_of(KF_RULE_TWO_TERM, 0, KF_STEPS_RANDOM);
  means packed = means_of(KF_RULE_PACKED, 0, KF_STEPS_RANDOM);
  expect_at_least("equal_token", habit.imbalance, 0.39);
  expect_at_most("equal_token", habit.imbalance, 0.43);
  expect_at_most("power at its best", best.imbalance, 0.24);
  expect_at_most("two_term", two_term.imbalance, 0.21);
  expect_at_least("tokens/s of two_term over equal_token",
                  two_term.tokens_per_s / habit.tokens_per_s, 1.33);
  expect_at_least("memory use of two_term over power", two_term.memory_use / fitted.memory_use,
                  1.2);
  expect_at_most("packed", packed.imbalance, 0.03);
  expect_at_least("use of packed", fmax(packed.memory_use, packed.compute_use), 0.95);
}

static void test_similar(void **state) {
  (void)state;
  expect_at_most("two_term, similar", means_of(KF_RULE_TWO_TERM, 0, KF_STEPS_SIMILAR).imbalance,
                 0.02);
}

/* two_term_balanced: the planner levels each step of two_term by routing. */
static void test_balanced(void **state) {
  (void)state;
  double sum = 0;
  for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
    kf_sampler_options o = options_of(KF_RULE_TWO_TERM, 0, KF_STEPS_RANDOM, seed);
    int64_t cap[RANKS], n_steps = 0;
    for (int r = 0; r < RANKS; r++) cap[r] = MEM_TOKENS;
    kf_planner_options p = {
      .cost = o.bucket.cost, .mem_tokens = cap, .budget = kf_planner_budget(BUDGET_US)};
    kf_sampler *s = sampler_of(&o);
    kf_planner *planner;
    const kf_sampled *k;
    const kf_plan *plan;
    double imbalance = 0;
    if (kf_planner_create(&p, &planner)) fail_msg("%s", kf_last_error());
    for (; !kf_sampler_next(s, &k) && k; n_steps++) {
      if (kf_planner_plan(planner, &k->batch, &plan) || kf_plan_check(plan, &k->batch))
        fail_msg("%s", kf_last_error());
      imbalance += 1 - 1 / plan->figures.max_over_mean;
    }
    assert_true(n_steps > 20);
    sum += imbalance / (double)n_steps / N_SEEDS;
    kf_planner_free(planner);
    kf_sampler_free(s);
  }
  print_message("two_term_balanced: imbalance %.5f\n", sum);
  expect_at_most("two_term_balanced", sum, 0.01);
}

/* The best p truly is: no other of a coarse grid that keeps to both limits has less imbalance over
** the same epochs. */
static void test_best_p(void **state) {
  (void)state;
  enum { EPOCHS = 5 };
  double best = 0, least = 1, at = 0;
  for (int i = -1; i <= 25; i++) {
    kf_sampler_options o = options_of(KF_RULE_POWER, KF_POWER_BEST, KF_STEPS_RANDOM, 1);
    double sum = 0, use = 0;
    if (i >= 0) o.bucket.power = KF_POWER_GIVEN;
    o.bucket.p = 0.5 + 0.1 * i;
    kf_sampler *s = sampler_of(&o);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
      kf_epoch e;
      if (kf_sampler_set_epoch(s, epoch) || kf_sampler_figures(s, &e))
        fail_msg("%s", kf_last_error());
      sum += e.imbalance_rate / EPOCHS;
      use = fmax(use, e.max_compute_use);
    }
    kf_sampler_free(s);
    if (i < 0)
      best = sum;
    else if (sum < least && use <= 1 + 1e-9)
      least = sum, at = o.bucket.p;
  }
  print_message("best p: %.4f; of the others p %.1f: %.4f\n", best, at, least);
  expect_at_most("imbalance of the best p", best, least + 0.01); /* five epochs scatter by 0.005 */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_random),
    cmocka_unit_test(test_similar),
    cmocka_unit_test(test_balanced),
    cmocka_unit_test(test_best_p),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
