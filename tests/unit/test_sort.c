/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "sort.h"

/* Against insertion: sorted by the high halves, equal ones in their old order, none lost. */
static void check(int64_t n, uint64_t kinds, int shift) {
  uint64_t *key = calloc((size_t)n + 1, sizeof *key), *spare = calloc((size_t)n + 1, sizeof *key);
  uint64_t *high = calloc((size_t)n + 1, sizeof *key);
  char *seen = calloc((size_t)n + 1, 1);
  dice d = {(uint64_t)n * 31 + kinds};
  for (int64_t i = 0; i < n; i++) {
    high[i] = (dice_next(&d) % kinds << shift) & 0xffffffffu;
    key[i] = high[i] << 32 | (uint64_t)i;
  }
  const uint64_t *sorted = kfi_sort_high(key, spare, n);
  for (int64_t k = 0; k < n; k++) {
    uint32_t i = (uint32_t)sorted[k];
    assert_true(i < n && !seen[i] && sorted[k] >> 32 == high[i]);
    seen[i] = 1;
    if (k > 0) assert_true(sorted[k - 1] < sorted[k]); /* the low half settles ties */
  }
  free(key), free(spare), free(high), free(seen);
}

static void sorts_small_and_large(void **state) {
  (void)state;
  const int64_t sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 2047, 2048, 2049, 10000};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    check(sizes[i], 1, 0);
    check(sizes[i], 7, 0);
    check(sizes[i], 50, 24); /* differ in the top digit alone */
    check(sizes[i], 1000, 11);
    check(sizes[i], UINT32_MAX, 0);
  }
}

/* Stable where the low half is no number that rises: it must not be looked at. */
static void keeps_the_order_of_equals(void **state) {
  (void)state;
  enum { N = 3000 };
  static uint64_t key[N], spare[N];
  for (int n = 10; n <= N; n += N - 10) {
    for (int i = 0; i < n; i++) key[i] = (uint64_t)(i % 3) << 32 | (uint64_t)(n - i);
    const uint64_t *sorted = kfi_sort_high(key, spare, n);
    for (int k = 1; k < n; k++)
      assert_true(sorted[k - 1] >> 32 < sorted[k] >> 32 ||
                  (sorted[k - 1] >> 32 == sorted[k] >> 32 && sorted[k - 1] > sorted[k]));
  }
}

static void reals_rise(void **state) {
  (void)state;
  const double x[] = {0, 1e-44, 1e-30, 0.5, 1, 1.001, 3, 1e10, 1e38};
  for (size_t i = 1; i < sizeof x / sizeof *x; i++)
    assert_true(kfi_sort_real(x[i - 1]) < kfi_sort_real(x[i]));
  assert_true((kfi_sort_real(1.5) & 0xffffffffu) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(sorts_small_and_large),
    cmocka_unit_test(keeps_the_order_of_equals),
    cmocka_unit_test(reals_rise),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
