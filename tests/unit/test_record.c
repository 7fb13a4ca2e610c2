/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a training run and its figures, on numbers made by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "train/train.h"

#define N(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void assert_near(double got, double want) {
  if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
    fail_msg("%.17g, expected %.17g", got, want);
}

/* A step of two ranks. */
typedef struct step {
  double step_s, busy_s[2], loss;
  int64_t tokens;
} step;

/* Step i has number 10 i, and counters that say which step and rank they are of. */
static kf_status add(train_record *r, const step *s) {
  kf_counters counters[2];
  memset(counters, 0, sizeof counters);
  for (int k = 0; k < 2; k++) counters[k].tokens = 100 * r->n_steps + k;
  train_result result = {.step = 10 * r->n_steps,
                         .loss = s->loss,
                         .step_s = s->step_s,
                         .n_tokens = s->tokens,
                         .counters = counters,
                         .busy_s = s->busy_s};
  return train_record_add(r, &result);
}

static train_record record_of(int n, const step *steps) {
  train_record r = {.n_ranks = 2};
  for (int i = 0; i < n; i++) assert_int_equal(add(&r, &steps[i]), KF_OK);
  return r;
}

static train_summary summary_of(const train_record *r) {
  train_summary s = {0};
  assert_int_equal(train_summarise(r, &s), KF_OK);
  return s;
}

/* ------------------------------------------------------------------------ a record */

static void assert_step(const train_record *r, int64_t i, const step *s) {
  assert_int_equal(r->step[i], 10 * i);
  assert_int_equal(r->tokens[i], s->tokens);
  assert_true(r->step_s[i] == s->step_s && r->loss[i] == s->loss);
  assert_memory_equal(r->busy_s + 2 * i, s->busy_s, sizeof s->busy_s);
  for (int k = 0; k < 2; k++) assert_int_equal(r->counters[2 * i + k].tokens, 100 * i + k);
}

static step numbered(int64_t i) {
  double x = (double)i;
  return (step){2 + x, {1 + x, 2 + x / 2}, 1 / (1 + x), 1000 + i};
}

/* Room is for 64 steps, then twice as many. */
static void test_growth(void **state) {
  (void)state;
  train_record r = {.n_ranks = 2};
  for (int64_t i = 0; i < 300; i++) {
    step s = numbered(i);
    assert_int_equal(add(&r, &s), KF_OK);
    assert_int_equal(r.n_steps, i + 1);
    assert_true(r.cap > i);
  }
  for (int64_t i = 0; i < 300; i++) {
    step s = numbered(i);
    assert_step(&r, i, &s);
  }
  train_record_clear(&r);
  assert_int_equal(r.n_ranks, 2);
  assert_int_equal(r.n_steps, 0);
  step s = numbered(0); /* may be used again */
  assert_int_equal(add(&r, &s), KF_OK);
  assert_step(&r, 0, &s);
  train_record_clear(&r);
  train_record_clear(&r);
}

/* Fail the k-th allocation of the step after `n` ones: the record is as it was, and the step can be
** added later. False: there are not so many. */
static bool fail_one(int64_t n, long k) {
  train_record r = {.n_ranks = 2};
  for (int64_t i = 0; i < n; i++) {
    step s = numbered(i);
    assert_int_equal(add(&r, &s), KF_OK);
  }
  step next = numbered(n);
  fail_alloc(k);
  kf_status status = add(&r, &next);
  bool failed = fail_alloc(0) >= k;
  assert_int_equal(status, failed ? KF_ENOMEM : KF_OK);
  if (failed) {
    assert_string_equal(kf_last_error(), "out of memory: the record of a step");
    assert_int_equal(r.n_steps, n);
    assert_int_equal(summary_of(&r).n_steps, n);
    assert_int_equal(add(&r, &next), KF_OK);
  }
  for (int64_t i = 0; i <= n; i++) {
    step s = numbered(i);
    assert_step(&r, i, &s);
  }
  train_record_clear(&r);
  return failed;
}

static void test_memory(void **state) {
  (void)state;
  for (int64_t n = 0; n <= 128; n += 64) { /* the steps that need room */
    long k = 1;
    while (fail_one(n, k)) k++;
    assert_int_equal(k, 6 + 1); /* an array each */
  }
  assert_false(fail_one(63, 1));
}

/* ------------------------------------------------------------------------- figures */

static void test_max_over_mean(void **state) {
  (void)state;
  assert_near(train_max_over_mean((double[]){3}, 1), 1);
  assert_near(train_max_over_mean((double[]){1, 3}, 2), 1.5);
  assert_near(train_max_over_mean((double[]){0, 0, 0, 8}, 4), 4);
  assert_near(train_max_over_mean((double[]){2, 2, 2}, 3), 1);
  assert_near(train_max_over_mean((double[]){0, 0}, 2), 1); /* nobody was busy: all as much */
}

static void test_one_step(void **state) {
  (void)state;
  static const step steps[] = {{4, {1, 3}, 0.5, 600}};
  train_record r = record_of(N(steps), steps);
  train_summary s = summary_of(&r);
  assert_int_equal(s.n_steps, 1);
  assert_near(s.median_s, 4);
  assert_near(s.p95_s, 4);
  assert_near(s.tokens_per_s, 150);
  assert_near(s.max_over_mean, 1.5);
  assert_near(s.idle_variance, 0.25); /* idle for 0.75 and 0.25: each 0.25 from their mean */
  assert_near(train_busy_share(&r, 0), 0.25);
  assert_near(train_busy_share(&r, 1), 0.75);
  train_record_clear(&r);
}

/* The median of an even number is the mean of the two in the middle; of tokens a second it is taken
** over steps, not of the medians. In no order: the record stays as it is. */
static void test_summary(void **state) {
  (void)state;
  static const step steps[] = {
    {8, {8, 4}, 0.3, 800},  /* 100 tokens a second, 4/3, deviation 0.25 */
    {2, {1, 1}, 0.4, 600},  /* 300, 1, 0 */
    {10, {2, 8}, 0.2, 500}, /* 50, 1.6, 0.3 */
    {4, {3, 1}, 0.1, 900},  /* 225, 1.5, 0.25 */
  };
  train_record r = record_of(N(steps), steps);
  train_summary s = summary_of(&r);
  assert_int_equal(s.n_steps, 4);
  assert_near(s.median_s, 6);
  assert_near(s.p95_s, 8 + 0.85 * 2); /* 95% of the way from the least to the most: 2.85 steps */
  assert_near(s.tokens_per_s, (100 + 225) / 2.);
  assert_near(s.max_over_mean, (4 / 3. + 1.5) / 2);
  assert_near(s.idle_variance, 0.25);
  assert_near(train_busy_share(&r, 0), 14 / 24.);
  assert_near(train_busy_share(&r, 1), 14 / 24.);
  for (int i = 0; i < N(steps); i++) assert_step(&r, i, &steps[i]);
  train_record_clear(&r);
  r = record_of(3, steps); /* of an odd number, the one in the middle */
  s = summary_of(&r);
  assert_near(s.median_s, 8);
  assert_near(s.p95_s, 8 + 0.9 * 2);
  assert_near(s.tokens_per_s, 100);
  assert_near(s.max_over_mean, 4 / 3.);
  train_record_clear(&r);
}

/* 21 steps of 1 to 21 seconds: the twentieth is the one below which 95% are. */
static void test_percentile(void **state) {
  (void)state;
  train_record r = {.n_ranks = 2};
  for (int64_t i = 0; i < 21; i++) {
    step s = numbered(0);
    s.step_s = (double)(1 + i * 13 % 21);
    assert_int_equal(add(&r, &s), KF_OK);
  }
  train_summary s = summary_of(&r);
  assert_near(s.median_s, 11);
  assert_near(s.p95_s, 20);
  train_record_clear(&r);
}

/* Nothing was measured, or nothing that took time: no number is NaN or infinite. */
static void test_nothing(void **state) {
  (void)state;
  train_record empty = {.n_ranks = 2};
  static const step still[] = {{0, {0, 0}, 0, 0}};
  train_summary s = summary_of(&empty);
  assert_int_equal(s.n_steps, 0);
  assert_true(s.median_s == 0 && s.p95_s == 0 && s.tokens_per_s == 0 && s.idle_variance == 0);
  assert_near(s.max_over_mean, 1);
  assert_near(train_busy_share(&empty, 1), 0);
  train_record r = record_of(1, still);
  s = summary_of(&r);
  assert_true(s.median_s == 0 && s.p95_s == 0 && s.tokens_per_s == 0 && s.idle_variance == 0);
  assert_near(s.max_over_mean, 1);
  assert_near(train_busy_share(&r, 0), 0);
  train_comparison c;
  const train_record *records[] = {&empty, &r};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(train_compare(records[i / 2], records[i % 2], &c), KF_OK);
    assert_near(c.speedup, 1);
    assert_near(c.ideal, 1);
    assert_near(c.realised, 1);
    assert_near(c.loss_max_rel_diff, 0);
  }
  train_record_clear(&r);
  train_record_clear(&empty);
}

static void test_compare(void **state) {
  (void)state;
  static const step before[] = {{9, {9, 3}, 2, 900}, {12, {11, 1}, 1, 900}, {6, {5, 3}, 0.5, 900}};
  static const step after[] = {
    {6, {6, 5}, 2.002, 900}, {5, {4, 4}, 0.99, 900}, {7, {7, 5}, 0.5, 900}, {99, {9, 9}, 9, 9}};
  train_record without = record_of(N(before), before), with = record_of(3, after);
  train_comparison c;
  assert_int_equal(train_compare(&without, &with, &c), KF_OK);
  assert_near(c.speedup, 9 / 6.);
  assert_near(c.ideal, 1.5); /* median of 1.5, 11/6 and 1.25 */
  assert_near(c.realised, 1);
  assert_near(c.max_over_mean_before, 1.5);
  assert_near(c.max_over_mean_after, 12 / 11.);
  assert_near(c.loss_max_rel_diff, 0.01);
  assert_int_equal(add(&with, &after[3]), KF_OK); /* a step that the other does not have */
  assert_int_equal(train_compare(&without, &with, &c), KF_OK);
  assert_near(c.speedup, 9 / 6.5);
  assert_near(c.realised, 9 / 6.5 / 1.5);
  assert_near(c.loss_max_rel_diff, 0.01);
  train_comparison untouched = {.speedup = 5};
  for (long k = 1; k <= 2; k++) {
    fail_alloc(k);
    assert_int_equal(train_compare(&without, &with, &untouched), KF_ENOMEM);
    fail_alloc(0);
    assert_true(untouched.speedup == 5); /* written only on success */
  }
  train_record_clear(&without);
  train_record_clear(&with);
}

/* A run that is broken must not look like one that is not. */
static void test_not_a_number(void **state) {
  (void)state;
  static const step good[] = {{1, {1, 1}, 2, 10}, {1, {1, 1}, 2, 10}};
  static const step bad[] = {{1, {1, 1}, NAN, 10}, {1, {1, 1}, 2, 10}};
  train_record a = record_of(2, good), b = record_of(2, bad);
  train_comparison c;
  assert_int_equal(train_compare(&a, &b, &c), KF_OK);
  assert_false(c.loss_max_rel_diff < 1);
  assert_int_equal(train_compare(&b, &a, &c), KF_OK);
  assert_false(c.loss_max_rel_diff < 1);
  train_record_clear(&a);
  train_record_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_growth),        cmocka_unit_test(test_memory),
    cmocka_unit_test(test_max_over_mean), cmocka_unit_test(test_one_step),
    cmocka_unit_test(test_summary),       cmocka_unit_test(test_percentile),
    cmocka_unit_test(test_nothing),       cmocka_unit_test(test_compare),
    cmocka_unit_test(test_not_a_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
