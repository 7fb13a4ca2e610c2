/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "learn/curve.h"

static int by_value(const void *left, const void *right) {
  const kfi_weighted *a = left, *b = right;
  return (a->value > b->value) - (a->value < b->value);
}

/* The obvious way: sort all and add up. Weights are whole numbers, so that sums are exact. */
static double sorted_quantile(const kfi_weighted *v, int64_t n, double part) {
  kfi_weighted copy[400];
  double want = 0, below = 0;
  memcpy(copy, v, (size_t)n * sizeof *v);
  qsort(copy, (size_t)n, sizeof *copy, by_value);
  for (int64_t i = 0; i < n; i++) want += part * copy[i].weight;
  for (int64_t i = 0; i < n; i++) {
    below += copy[i].weight;
    if (below >= want) return copy[i].value;
  }
  return copy[n - 1].value;
}

static void compare_quantiles(kfi_weighted *v, int64_t n) {
  static const double parts[] = {0, 0.25, 0.5, 0.75, 1};
  for (int k = 0; k < 5; k++) {
    kfi_weighted copy[400];
    memcpy(copy, v, (size_t)n * sizeof *v);
    double want = sorted_quantile(v, n, parts[k]);
    assert_true(kfi_weighted_quantile(copy, n, parts[k]) == want);
  }
}

static void test_quantile(void **state) {
  (void)state;
  dice d = {1};
  kfi_weighted v[400];
  for (int round = 0; round < 2000; round++) {
    int64_t n = 1 + dice_int(&d, round % 2 ? 400 : 9), most = dice_one_in(&d, 2) ? 5 : 1000000;
    for (int64_t i = 0; i < n; i++) {
      double value = (double)dice_int(&d, most);
      v[i] = (kfi_weighted){value, (double)(4 * (1 + dice_int(&d, 3)))};
    }
    compare_quantiles(v, n);
  }
}

/* Orders that are bad for a pivot of three: every split takes two off, and what is left is
** sorted. */
static void test_quantile_bad_order(void **state) {
  (void)state;
  kfi_weighted v[400];
  for (int kind = 0; kind < 4; kind++) {
    for (int i = 0; i < 400; i++) {
      double value = kind == 0   ? i
                     : kind == 1 ? 400 - i
                     : kind == 2 ? (i < 200 ? i : 400 - i)
                                 : (i % 2 ? i : 400 + i);
      v[i] = (kfi_weighted){value, 4};
    }
    compare_quantiles(v, 400);
  }
}

/* Memory for up to 400 rows of 8 ranks. */
typedef struct room {
  kfi_curve_rows rows;
  kfi_curve_work work;
  kfi_curve curve;
  kfi_buffer buffer;
  double x[400], y[400];
  int64_t off[9];
} room;

static room *make_room(void) {
  room *r = calloc(1, sizeof *r);
  kfi_layout layout = {0};
  kfi_curve_lay(&layout, 400, 8, &r->work, &r->curve);
  layout.base = kfi_buffer_reserve(&r->buffer, layout.n_bytes);
  layout.n_bytes = 0;
  kfi_curve_lay(&layout, 400, 8, &r->work, &r->curve);
  r->rows = (kfi_curve_rows){.x = r->x, .y = r->y, .off = r->off};
  return r;
}

static void free_room(room *r) {
  kfi_buffer_free(&r->buffer);
  free(r);
}

/* Any exact curve is found, whatever its terms and wherever they cross, with a rank for each part
** of the lengths: slowness and curve must be told apart by the bend alone. */
static void test_exact(void **state) {
  (void)state;
  dice d = {7};
  room *r = make_room();
  for (int round = 0; round < 60; round++) {
    double a[3], slow[8], range = dice_real(&d, 2, 12);
    for (int k = 0; k < 3; k++)
      a[k] = dice_one_in(&d, 4) ? 0 : exp(dice_real(&d, -range / 2, range / 2));
    if (!(a[0] + a[1] + a[2] > 0)) a[0] = 1;
    bool flat = !(a[0] + a[1] > 0); /* then slowness and height are the same thing */
    int32_t n_ranks = round % 2 || flat ? 1 : 2;
    r->rows.n = 200;
    r->rows.n_ranks = n_ranks;
    for (int32_t g = 0; g <= n_ranks; g++) r->off[g] = 200 * g / n_ranks;
    for (int32_t g = 0; g < n_ranks; g++) slow[g] = g == 0 ? 1 : dice_real(&d, 0.3, 3);
    for (int i = 0; i < 200; i++) {
      r->x[i] = exp(-range * (199 - i) / 199.0);
      r->y[i] = kfi_curve_at(a, r->x[i]) * slow[i * n_ranks / 200];
    }
    kfi_curve_fit(&r->rows, &r->work, &r->curve);
    for (int i = 0; i < 200; i++) {
      double found = kfi_curve_at(r->curve.a, r->x[i]) * r->curve.slow[i * n_ranks / 200];
      if (fabs(found / r->y[i] - 1) > 1e-3)
        fail_msg("round %d: %g %g %g x %g: found %g %g %g", round, a[0], a[1], a[2],
                 slow[n_ranks - 1], r->curve.a[0], r->curve.a[1], r->curve.a[2]);
    }
  }
  free_room(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantile),
                                     cmocka_unit_test(test_quantile_bad_order),
                                     cmocka_unit_test(test_exact)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
