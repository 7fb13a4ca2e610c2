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
#define N_RANKS 5

static double work_of(const kfi_world *w, const kf_batch *b, int64_t i) {
  double l = (double)b->len[i];
  return (b->factor ? b->factor[i] : 1) *
         (w->linear_s * l + w->quadratic_s * l * l + w->constant_s);
}

/* Every sequence once, by falling work in single precision, ties by number; fields filled. */
static void check(const kfi_world *w, const kf_batch *b) {
  size_t n = (size_t)b->n_seqs;
  kfi_item *item = calloc(n + 1, sizeof *item);
  bool *seen = calloc(n + 1, sizeof *seen);
  kfi_sorter sorter = {calloc(n + 1, sizeof(uint64_t)), calloc(n + 1, sizeof(uint64_t)),
                       calloc(n + 1, sizeof(int32_t))};
  kfi_order(w, b, &sorter, item);
  for (size_t k = 0; k < n; k++) {
    const kfi_item *it = &item[k];
    assert_in_range(it->seq, 0, n - 1);
    assert_false(seen[it->seq]);
    seen[it->seq] = true;
    assert_true(it->work == work_of(w, b, it->seq));
    assert_true(it->factor == (b->factor ? b->factor[it->seq] : 1));
    assert_int_equal(it->len, b->len[it->seq]);
    assert_true(b->rank_off[it->home] <= it->seq && it->seq < b->rank_off[it->home + 1]);
    if (k == 0) continue;
    float before = (float)item[k - 1].work, now = (float)it->work;
    assert_true(before > now || (before == now && item[k - 1].seq < it->seq));
  }
  free(item);
  free(seen);
  free(sorter.key);
  free(sorter.spare);
  free(sorter.home);
}

/* `range` small: many ties. Sequences lie unevenly over the ranks, the second has none. */
static void run(int64_t n, int64_t range, bool with_factor, double constant_s) {
  dice d = {(uint64_t)(n * 31 + range)};
  kfi_world w = {.linear_s = 1.7e-4, .quadratic_s = 3.7e-9, .constant_s = constant_s};
  int64_t rank_off[N_RANKS + 1] = {0, n / 3, n / 3, n / 2, n / 2, n};
  int64_t *len = calloc((size_t)n + 1, sizeof *len);
  double *factor = calloc((size_t)n + 1, sizeof *factor);
  for (int64_t i = 0; i < n; i++) {
    len[i] = dice_int(&d, range);
    factor[i] = dice_one_in(&d, 2) ? 1 : dice_real(&d, 0.01, 100);
  }
  kf_batch batch = {N_RANKS, n, rank_off, len, with_factor ? factor : NULL, NULL};
  check(&w, &batch);
  free(len);
  free(factor);
}

static void test_sizes(void **state) {
  (void)state;
  static const int64_t sizes[] = {0, 1, 2, 7, 8, 9, 16, 17, 64, 2047, 2048, 2049, 5000};
  for (size_t i = 0; i < N(sizes); i++) {
    run(sizes[i], 100000, false, 0);
    run(sizes[i], 100000, true, 1e-3);
    run(sizes[i], 5, false, 0); /* ties, and works of exactly 0 */
    run(sizes[i], 1, true, 0);  /* all equal */
    run(sizes[i], KF_MAX_LEN, true, 0);
  }
}

/* Two works that differ in double precision only are a tie: the lower number comes first. */
static void test_single_precision(void **state) {
  (void)state;
  kfi_world w = {.linear_s = 1};
  int64_t rank_off[2] = {0, 3}, len[3] = {1 << 26, (1 << 26) + 1, 1 << 27};
  kf_batch batch = {1, 3, rank_off, len, NULL, NULL};
  kfi_item item[3];
  uint64_t key[3], spare[3];
  int32_t home[3];
  kfi_sorter sorter = {key, spare, home};
  kfi_order(&w, &batch, &sorter, item);
  assert_int_equal(item[0].seq, 2);
  assert_int_equal(item[1].seq, 0);
  assert_int_equal(item[2].seq, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sizes),
    cmocka_unit_test(test_single_precision),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
