/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "dice.h"
#include "fail_alloc.h"

static kf_status load(const char *text, kf_cost *cost) {
  return kf_fit_load("fit.yaml", text, strlen(text), cost);
}

static void test_text(void **state) {
  (void)state;
  kf_fit fit = {.linear_s = 1.25e-5,
                .quadratic_s = 3e-10,
                .constant_s = -0.0,
                .mape = 0.0213,
                .n_rows = 1234,
                .n_outliers = 3};
  char *text = NULL;
  assert_int_equal(kf_fit_text(&fit, &text), KF_OK);
  assert_string_equal(text, "# The cost that `knapformer fit` found in 1234 rows, mean error 2.1%; "
                            "for cost_file of `cost_model: modelled`.\n"
                            "cost:\n"
                            "  linear_s: 1.25e-05  # seconds a token\n"
                            "  quadratic_s: 3e-10  # seconds a token squared, all heads\n"
                            "  constant_s: 0  # seconds a sequence\n");
  free(text);
}

/* To the bit, and nothing else of the cost is touched. */
static void test_back(void **state) {
  (void)state;
  dice d = {1};
  for (int i = 0; i < 5000; i++) {
    kf_fit fit = {.n_rows = i};
    fit.linear_s = dice_real(&d, 0, 1e-4);
    fit.quadratic_s = dice_real(&d, 0, 1) * pow(10, -(double)dice_int(&d, 40));
    fit.constant_s = dice_int(&d, 2) ? dice_real(&d, 0, 1e-2) : 0;
    fit.mape = dice_real(&d, 0, 2);
    kf_cost cost = {.layers = 57, .heads = 24, .route_bytes = 7}, want = cost;
    char *text = NULL;
    if (kf_fit_text(&fit, &text) || load(text, &cost)) fail_msg("%s", kf_last_error());
    want.linear_s = fit.linear_s;
    want.quadratic_s = fit.quadratic_s;
    want.constant_s = fit.constant_s;
    assert_memory_equal(&cost, &want, sizeof cost);
    free(text);
  }
}

static void test_bad(void **state) {
  (void)state;
  static const char *const bad[][2] = {
    {"", "fit.yaml: found nothing, expected the mapping \"cost:\""},
    {"knapformer: {}", "fit.yaml, line 1, column 1: unknown top-level key \"knapformer\", expected "
                       "only \"cost:\" with all keys indented below it"},
    {"cost: {}", "fit.yaml, line 1, column 1: found no linear_s in cost, expected all of linear_s, "
                 "quadratic_s and constant_s"},
    {"cost: {linear_s: 1, constant_s: 1}",
     "fit.yaml, line 1, column 1: found no quadratic_s in cost, expected all of linear_s, "
     "quadratic_s and constant_s"},
    {"cost: {linear_s: 0, quadratic_s: 0, constant_s: 1}",
     "fit.yaml, line 1, column 1: linear_s and quadratic_s are 0, expected one above 0"},
    {"cost: {linear_s: 1, quadratic_s: 1, constant_s: 1, gamma: 1}",
     "fit.yaml, line 1, column 52: unknown key \"gamma\", expected linear_s, quadratic_s or "
     "constant_s"},
    {"cost:\n  linear_s: -1", "fit.yaml, line 2, column 13: linear_s is \"-1\", expected a number "
                              "from 0 to 1e30"},
    {"cost:\n  linear_s: .nan", "fit.yaml, line 2, column 13: linear_s is \".nan\", expected a "
                                "number from 0 to 1e30"},
    {"cost:\n  linear_s: 1e31", "fit.yaml, line 2, column 13: linear_s is \"1e31\", expected a "
                                "number from 0 to 1e30"},
    {"cost:\n  linear_s: '1'",
     "fit.yaml, line 2, column 13: linear_s is \"1\" in quotes, expected a "
     "number from 0 to 1e30"},
    {"cost:\n  linear_s: [1]",
     "fit.yaml, line 2, column 13: linear_s is a list or mapping, expected "
     "a number from 0 to 1e30"},
    {"cost:\n  linear_s:",
     "fit.yaml, line 2, column 12: linear_s is \"\", expected a number from 0 "
     "to 1e30"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_cost cost = {.linear_s = 5, .heads = 3}, before = cost;
    if (load(bad[i][0], &cost) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i][0]);
    assert_string_equal(kf_last_error(), bad[i][1]);
    assert_memory_equal(&cost, &before, sizeof cost);
  }
  kf_cost cost;
  assert_int_equal(kf_fit_load(NULL, "", 0, &cost), KF_EINVAL);
  assert_int_equal(kf_fit_load("a", NULL, 1, &cost), KF_EINVAL);
  assert_int_equal(kf_fit_load("a", "", 0, NULL), KF_EINVAL);
}

static void test_bad_fit(void **state) {
  (void)state;
  const kf_fit bad[] = {{.linear_s = NAN},
                        {.linear_s = -1},
                        {.linear_s = INFINITY},
                        {.linear_s = 1, .constant_s = -1e-9},
                        {.constant_s = 1},
                        {.linear_s = 1, .mape = NAN},
                        {.linear_s = 1, .n_rows = -1}};
  char *text = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(kf_fit_text(&bad[i], &text), KF_EINVAL);
    assert_non_null(strstr(kf_last_error(), "expected"));
    assert_null(text);
  }
  assert_int_equal(kf_fit_text(NULL, &text), KF_EINVAL);
  assert_int_equal(kf_fit_text(&bad[0], NULL), KF_EINVAL);
}

static void test_memory(void **state) {
  (void)state;
  kf_fit fit = {.linear_s = 1e-5, .quadratic_s = 1e-10};
  for (long k = 1;; k++) {
    kf_cost cost = {0};
    char *text = NULL;
    fail_alloc(k);
    kf_status status = kf_fit_text(&fit, &text);
    if (!status) status = load(text, &cost);
    free(text);
    if (fail_alloc(0) < k) {
      assert_int_equal(status, KF_OK);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_true(cost.linear_s == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_text),    cmocka_unit_test(test_back),   cmocka_unit_test(test_bad),
    cmocka_unit_test(test_bad_fit), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
