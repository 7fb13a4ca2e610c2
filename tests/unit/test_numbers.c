/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "numbers.h"

/* The published first outputs of splitmix64 from state 0, and from 1234567. */
static void test_splitmix64(void **state) {
  (void)state;
  assert_true(kf_splitmix64(0) == 0xe220a8397b1dcdafu);
  assert_true(kf_splitmix64(KF_SPLITMIX64_STEP) == 0x6e789e6aa1b965f4u);
  assert_true(kf_splitmix64(1234567) == 6457827717110365317u);
}

/* The published values of FNV-1a 64; and integers are their eight bytes. */
static void test_hash(void **state) {
  (void)state;
  const int64_t value[] = {0, 1, 255, 256, -1, INT64_MIN, INT64_MAX, 0x0100000000000000, 1 << 24};
  assert_true(kf_hash_bytes(KF_HASH_START, "", 0) == 0xcbf29ce484222325u);
  assert_true(kf_hash_bytes(KF_HASH_START, "a", 1) == 0xaf63dc4c8601ec8cu);
  assert_true(kf_hash_bytes(KF_HASH_START, "foobar", 6) == 0x85944171f73967e8u);
  uint64_t half = kf_hash_bytes(KF_HASH_START, "foo", 3);
  assert_true(kf_hash_bytes(half, "bar", 3) == 0x85944171f73967e8u);
  for (size_t n = 0; n <= sizeof value / sizeof *value; n++)
    assert_true(kfi_hash(7, value, (int64_t)n) == kf_hash_bytes(7, value, n * sizeof *value));
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Against sorting: the value at share * (n - 1), on the line between its two neighbours. */
static void test_quantile(void **state) {
  (void)state;
  static const double shares[] = {0, 0.01, 0.25, 0.5, 0.75, 0.95, 0.99, 1};
  enum { MOST = 300 };
  double value[MOST], sorted[MOST];
  for (int n = 1; n <= MOST; n += 1 + n / 8) {
    for (int kinds = 1; kinds <= 1000; kinds *= 10) {
      dice d = {(uint64_t)(n * 1001 + kinds)};
      for (int i = 0; i < n; i++) sorted[i] = value[i] = (double)dice_int(&d, kinds) - 3;
      qsort(sorted, (size_t)n, sizeof *sorted, by_value);
      for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        double at = shares[k] * (n - 1), low = sorted[(int)at], high = sorted[(int)ceil(at)];
        double want = low + (at - floor(at)) * (high - low);
        assert_true(fabs(kf_quantile(value, n, shares[k]) - want) < 1e-9);
      }
      qsort(value, (size_t)n, sizeof *value, by_value);
      for (int i = 0; i < n; i++) assert_true(value[i] == sorted[i]); /* none is lost */
    }
  }
}

static void test_quantile_of_few(void **state) {
  (void)state;
  double value[] = {4, 1}, vast[] = {1, INFINITY, 2};
  assert_true(kf_quantile(NULL, 0, 0.5) == 0);
  assert_true(kf_quantile(value, 1, 0.3) == 4);
  assert_true(kf_quantile(value, 2, 0.5) == 2.5);
  assert_true(kf_quantile(value, 2, -1) == 1 && kf_quantile(value, 2, 7) == 4);
  assert_true(kf_quantile(vast, 3, 0.5) == 2 && kf_quantile(vast, 3, 1) == INFINITY);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_splitmix64),
    cmocka_unit_test(test_hash),
    cmocka_unit_test(test_quantile),
    cmocka_unit_test(test_quantile_of_few),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
