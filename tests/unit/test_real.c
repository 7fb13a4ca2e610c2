/* SPDX-License-Identifier: Apache-2.0 */
/* kfi_log and kfi_exp against libm's in long double, over all that a double can be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dice.h"
#include "real.h"

#include <float.h>

/* How far `got` lies from what it should be, in units of the last place of a double. */
static double ulps(double got, long double want) {
  double nearest = (double)want;
  double unit = nextafter(fabs(nearest), INFINITY) - fabs(nearest);
  return (double)(fabsl((long double)got - want) / (long double)unit);
}

static double worst_log, worst_exp;

static void check_log(double x) {
  double off = ulps(kfi_log(x), logl((long double)x));
  if (!(off <= 2)) fail_msg("log %.17g is %.17g, off by %.2f ulp", x, kfi_log(x), off);
  if (off > worst_log) worst_log = off;
}

static void check_exp(double x) {
  double off = ulps(kfi_exp(x), expl((long double)x));
  if (!(off <= 2)) fail_msg("exp %.17g is %.17g, off by %.2f ulp", x, kfi_exp(x), off);
  if (off > worst_exp) worst_exp = off;
}

static double from_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Every exponent, subnormals among them, with mantissas of all kinds. */
static void test_log(void **state) {
  (void)state;
  dice d = {1};
  for (uint64_t e = 0; e < 2047; e++) {
    const uint64_t mantissa[] = {
      0, 1, (1ull << 52) - 1, 1ull << 51, 0x6a09e667f3bcc, 0x6a09e667f3bcd};
    for (int i = 0; i < 60; i++) {
      uint64_t m = i < 6 ? mantissa[i] : dice_next(&d) >> 12;
      if (e > 0 || m > 0) check_log(from_bits(e << 52 | m));
    }
  }
  check_log(DBL_TRUE_MIN);
  check_log(DBL_MAX);
  assert_true(kfi_log(1) == 0);
}

/* Where a logarithm is near 0, its relative error is what counts. */
static void test_log_near_one(void **state) {
  (void)state;
  dice d = {2};
  for (int i = 0; i < 20000; i++) {
    double off = ldexp(dice_real(&d, 0.5, 1), -(int)dice_int(&d, 53));
    check_log(1 + off);
    if (off < 1) check_log(1 - off);
  }
  for (double x = 1, y = 1; x < 1 + 1e-13; x = nextafter(x, 2), y = nextafter(y, 0)) {
    check_log(x);
    check_log(y);
  }
}

static void test_exp(void **state) {
  (void)state;
  dice d = {3};
  for (int i = 0; i < 100000; i++) {
    double x = dice_real(&d, -700, 700);
    check_exp(x);
    check_exp(x * 1e-3);
    check_exp(ldexp(x, -(int)dice_int(&d, 1000)));
  }
  for (int k = -1009; k <= 1009; k++) { /* halfway between two powers of 2, on both sides */
    double x = (k + 0.5) * 0.6931471805599453;
    if (fabs(x) >= 700) continue;
    for (int i = 0; i < 4; i++) check_exp(x), x = nextafter(x, 1000);
  }
  check_exp(700);
  check_exp(-700);
  assert_true(kfi_exp(0) == 1 && kfi_exp(-0.0) == 1);
}

/* Beyond 700 it stays where it is; a NaN becomes a number. */
static void test_exp_is_cut(void **state) {
  (void)state;
  const double beyond[] = {700.0001, 709, 1e4, 1e300, INFINITY};
  for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
    assert_true(kfi_exp(beyond[i]) == kfi_exp(700));
    assert_true(kfi_exp(-beyond[i]) == kfi_exp(-700));
  }
  assert_true(kfi_exp(NAN) == kfi_exp(-700));
  assert_true(isfinite(kfi_exp(700)) && kfi_exp(-700) >= DBL_MIN);
}

static void test_inverse(void **state) {
  (void)state;
  dice d = {4};
  for (int i = 0; i < 50000; i++) {
    double x = from_bits((uint64_t)(1023 + dice_int(&d, 2000) - 1000) << 52 | dice_next(&d) >> 12);
    double y = kfi_log(x), back = kfi_exp(y);
    /* half a unit of y is a relative error of |y| units of x */
    if (!(fabs(back / x - 1) <= (4 + 2 * fabs(y)) * DBL_EPSILON))
      fail_msg("exp(log %.17g) is %.17g", x, back);
    double z = dice_real(&d, -699, 699);
    if (!(fabs(kfi_log(kfi_exp(z)) - z) <= (4 + 2 * fabs(z)) * DBL_EPSILON))
      fail_msg("log(exp %.17g) is %.17g", z, kfi_log(kfi_exp(z)));
  }
}

/* Neither ever falls where its argument rises by more than its error. */
static void test_rising(void **state) {
  (void)state;
  dice d = {5};
  for (int i = 0; i < 20000; i++) {
    double x = dice_real(&d, -600, 600), step = fmax(fabs(x), 1) * 1e-14;
    assert_true(kfi_exp(x + step) > kfi_exp(x));
    double y = kfi_exp(x);
    assert_true(kfi_log(y * (1 + 1e-12 * fmax(1, fabs(x)))) > kfi_log(y));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_log),     cmocka_unit_test(test_log_near_one),
    cmocka_unit_test(test_exp),     cmocka_unit_test(test_exp_is_cut),
    cmocka_unit_test(test_inverse), cmocka_unit_test(test_rising),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  print_message("worst: log %.2f ulp, exp %.2f ulp\n", worst_log, worst_exp);
  return failed;
}
