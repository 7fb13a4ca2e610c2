/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated clock: the cost of the header chunk by chunk, and what is drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dice.h"

enum { RANKS = 4 };

static const int64_t rank_off[] = {0, 2, 3, 3, 4}, len[] = {1000, 0, 7000, 300};
static const double factor[] = {1, 1, 2, 0.5};
static const kf_profile profile[] = {
  {0, 0, 0}, {KF_KIND_IMAGE, 256, 1}, {KF_KIND_VIDEO, 512, 9}, {0, 0, 0}};
static const kf_batch batch = {RANKS, 4, rank_off, len, factor, profile};

static kf_planner *planner;
static const kf_plan *plan;

static int make_plan(void **state) {
  (void)state;
  kf_planner_options o = {0};
  if (kf_cost_preset("flux", NULL, RANKS, 0.4, &o.cost) || kf_planner_create(&o, &planner))
    return 1;
  return kf_planner_plan(planner, &batch, &plan) || plan->figures.split_seqs == 0;
}

static int free_plan(void **state) {
  (void)state;
  kf_planner_free(planner);
  return 0;
}

static kf_sim_clock clock_of(double scale) {
  kf_sim_clock c = {.noise = 0};
  assert_int_equal(kf_cost_preset("flux", NULL, RANKS, 0.6, &c.cost), KF_OK);
  c.cost.linear_s *= scale;
  return c;
}

static void near(double got, double want) {
  if (fabs(got - want) > 1e-12 * fabs(want)) fail_msg("%.17g, expected %.17g", got, want);
}

static void test_true_times(void **state) {
  (void)state;
  static const double speed[RANKS] = {1, 0.5, 2, 1};
  const kf_sim_spell slow[] = {{0, 3, 5, 6}, {0, 2, 6, 9}, {3, 1.5, 0, INT64_MAX}};
  kf_sim_clock c = clock_of(1.3);
  kf_sim_times times[RANKS];
  c.kind_factor[KF_KIND_VIDEO] = 1.25;
  c.overhead_s = 0.01, c.comm_scale = 1.5, c.speed = speed, c.slow = slow, c.n_slow = 3;
  for (int64_t step = 4; step < 8; step++) {
    assert_int_equal(kf_sim_step(&c, step, &batch, plan, times), KF_OK);
    for (int32_t r = 0; r < RANKS; r++) {
      double work = 0, home = 0, slowness = 1 / speed[r];
      int64_t samples = 0;
      for (int64_t i = plan->hold_off[r]; i < plan->hold_off[r + 1]; i++) {
        const kf_chunk *k = &plan->chunk[plan->hold[i]];
        double l = (double)len[k->seq], f = factor[k->seq] * (k->seq == 2 ? 1.25 : 1);
        work += f * (c.cost.linear_s * (double)k->length +
                     c.cost.quadratic_s * l * l * (double)k->heads / 24);
        samples += k->length > 0 && k->offset == 0;
      }
      for (int64_t i = rank_off[r]; i < rank_off[r + 1]; i++)
        home += factor[i] * (i == 2 ? 1.25 : 1) * kf_cost_work(&c.cost, len[i]);
      if (r == 0 && (step == 5 || step == 6)) slowness *= 3;
      if (r == 0 && step >= 6) slowness *= 2;
      if (r == 3) slowness *= 1.5;
      near(kf_sim_slowness(&c, r, step), slowness);
      near(times[r].comm_s, 1.5 * plan->comm_s[r]);
      near(times[r].true_s, (work > 0 ? (work + 0.01) * slowness : 0) + times[r].comm_s);
      near(times[r].home_s, home > 0 ? (home + 0.01) * slowness : 0);
      near(times[r].measured_s, times[r].true_s);
      assert_int_equal(times[r].samples, samples);
    }
  }
}

/* What is measured scatters by the noise, anew for every seed, step and rank, and the same when
** asked again; a pause is of its step and rank alone. */
static void test_measured_times(void **state) {
  (void)state;
  enum { STEPS = 5000 };
  const kf_sim_spell pause = {1, 100, 70, 70};
  kf_sim_clock c = clock_of(1);
  kf_sim_times times[RANKS], again[RANKS];
  double sum = 0, square = 0, beside = 0, last = 0;
  c.noise = 0.05, c.seed = 3;
  for (int64_t step = 0; step < STEPS; step++) {
    assert_int_equal(kf_sim_step(&c, step, &batch, plan, times), KF_OK);
    double z = (times[1].measured_s / times[1].true_s - 1) / 0.05;
    sum += z, square += z * z, beside += z * last, last = z;
  }
  assert_true(fabs(sum / STEPS) < 5 / sqrt(STEPS) && fabs(square / STEPS - 1) < 7 / sqrt(STEPS));
  assert_true(fabs(beside / STEPS) < 5 / sqrt(STEPS));
  for (int64_t step = 69; step < 72; step++) {
    c.pause = &pause, c.n_pauses = 0;
    assert_int_equal(kf_sim_step(&c, step, &batch, plan, times), KF_OK);
    c.n_pauses = 1;
    assert_int_equal(kf_sim_step(&c, step, &batch, plan, again), KF_OK);
    for (int32_t r = 0; r < RANKS; r++) {
      assert_true(times[r].true_s == again[r].true_s);
      near(again[r].measured_s, times[r].measured_s * (r == 1 && step == 70 ? 100 : 1));
    }
    c.seed++;
    assert_int_equal(kf_sim_step(&c, step, &batch, plan, again), KF_OK);
    assert_true(again[0].measured_s != times[0].measured_s);
  }
}

static void test_refuses(void **state) {
  (void)state;
  kf_sim_clock c = clock_of(1);
  kf_sim_times times[RANKS];
  kf_batch other = batch;
  other.n_seqs = 3;
  assert_int_equal(kf_sim_step(&c, 0, &other, plan, times), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_sim_step: a batch of 4 ranks and 3 sequences, expected "
                                       "the plan's 4 and 4");
  assert_int_equal(kf_sim_step(NULL, 0, &batch, plan, times), KF_EINVAL);
  assert_int_equal(kf_sim_step(&c, 0, &batch, plan, NULL), KF_EINVAL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_true_times),
    cmocka_unit_test(test_measured_times),
    cmocka_unit_test(test_refuses),
  };
  return cmocka_run_group_tests(tests, make_plan, free_plan);
}
