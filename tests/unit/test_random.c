/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/random.h"

/* Within 5 standard deviations on n numbers: mean, variance, fourth moment, neighbours. */
typedef struct moments {
  double mean, variance, fourth, neighbours;
} moments;

enum { N = 200000 };

static moments moments_of(double (*draw)(uint64_t, uint64_t), uint64_t key, double centre) {
  moments m = {0};
  double last = 0;
  for (uint64_t i = 0; i < N; i++) {
    double x = draw(key, i) - centre;
    m.mean += x / N;
    m.variance += x * x / N;
    m.fourth += x * x * x * x / N;
    m.neighbours += x * last / N;
    last = x;
  }
  return m;
}

static void near(double found, double want, double deviation) {
  if (fabs(found - want) > 5 * deviation / sqrt(N)) fail_msg("found %g, expected %g", found, want);
}

static void test_uniform(void **state) {
  (void)state;
  for (uint64_t key = 0; key < 4; key++) {
    moments m = moments_of(train_uniform, key, 0.5);
    near(m.mean, 0, sqrt(1. / 12));
    near(m.variance, 1. / 12, sqrt(1. / 180));
    near(m.fourth, 1. / 80, sqrt(1. / 2304 - 1. / 6400));
    near(m.neighbours, 0, 1. / 12);
  }
  double least = 1, most = 0;
  for (uint64_t i = 0; i < N; i++) {
    double u = train_uniform(9, i);
    least = fmin(least, u);
    most = fmax(most, u);
  }
  assert_true(least > 0 && least < 1e-3 && most < 1 && most > 0.999);
}

static void test_normal(void **state) {
  (void)state;
  for (uint64_t key = 0; key < 4; key++) {
    moments m = moments_of(train_normal, key, 0);
    near(m.mean, 0, 1);
    near(m.variance, 1, sqrt(2));
    near(m.fourth, 3, sqrt(96));
    near(m.neighbours, 0, 1);
  }
}

static void test_pair(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 1000; i++) {
    double pair[2];
    train_normal_pair(7, i, pair);
    assert_true(pair[0] == train_normal(7, 2 * i) && pair[1] == train_normal(7, 2 * i + 1));
  }
}

/* Keys that are close, or that are a step of the generator apart, have nothing in common. */
static void test_keys(void **state) {
  (void)state;
  static const uint64_t apart[] = {1, 2, 0x9e3779b97f4a7c15u, (uint64_t)1 << 63};
  for (int k = 0; k < 4; k++) {
    double product = 0;
    for (uint64_t i = 0; i < N; i++) {
      assert_true(train_bits(5, i) != train_bits(5 + apart[k], i));
      assert_true(train_bits(5, i + 1) != train_bits(5 + apart[k], i));
      product += (train_uniform(5, i) - 0.5) * (train_uniform(5 + apart[k], i) - 0.5) / N;
    }
    near(product, 0, 1. / 12);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_uniform),
    cmocka_unit_test(test_normal),
    cmocka_unit_test(test_pair),
    cmocka_unit_test(test_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
