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

#include "svg.h"

enum { MOST = 100000 };
static kf_fit_row row[MOST];
static uint8_t outlier[MOST];

/* Rows a little off 1e-4 l + 1e-8 l^2, every tenth an outlier; lengths from 100. */
static kf_fit make(int64_t n, double step) {
  kf_fit fit = {.linear_s = 1e-4,
                .quadratic_s = 1e-8,
                .r2 = 0.99,
                .mape = 0.039,
                .holdout_mape = 0.041,
                .power_s = 3e-5,
                .power_p = 1.25,
                .power_mape = 0.113,
                .n_rows = n,
                .n_ranks = 1};
  for (int64_t i = 0; i < n; i++) {
    double l = floor(100 + step * (double)i);
    outlier[i] = i % 10 == 5;
    fit.n_outliers += outlier[i];
    row[i] = (kf_fit_row){
      (int64_t)l,
      (1e-4 * l + 1e-8 * l * l) * (1 + 0.01 * (double)(i % 7 - 3)) * (outlier[i] ? 10 : 1), 0};
  }
  return fit;
}

static char *draw(int64_t n, double step, const char *title) {
  char *text = NULL;
  kf_fit fit = make(n, step);
  if (kf_svg_fit(row, n, outlier, &fit, title, &text)) fail_msg("%s", kf_last_error());
  return text;
}

/* A point a row, hollow for an outlier, in both plots. */
static void test_content(void **state) {
  (void)state;
  char *text = draw(200, 300, "rows of a test");
  assert_sound(text);
  assert_int_equal(count(text, "h0"), 2 * 180 + 1); /* and one in the legend */
  assert_int_equal(count(text, "a3.5 3.5 0 1 0 7 0"), 2 * 20 + 1);
  assert_has(text, ">rows of a test</text>",
             "3.9% mean error, 4.1% on rows not seen; power law 11.3%",
             "200 rows \xc2\xb7 20 outliers \xc2\xb7 100.0 ms per 1000 tokens", "power law l^1.25",
             "prefers-color-scheme:dark", ">10000</text>", ">1 s</text>", ">0%</text>");
  free(text);
}

static void test_sizes(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 2, 3, 2000, 2001, MOST};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int wide = 0; wide < 3; wide++) {
      char *text = draw(sizes[i], wide == 0 ? 0 : wide == 1 ? 0.5 : 40000, "x");
      assert_sound(text);
      assert_true(strlen(text) < 1000000); /* no more than a point a spot */
      free(text);
    }
  }
}

static void test_escape(void **state) {
  (void)state;
  char *text = draw(3, 100, "<script>&\"'\x01");
  assert_sound(text);
  assert_null(strstr(text, "<script"));
  assert_int_equal(count(text, "&#60;script&#62;&#38;&#34;&#39;?"), 2);
  free(text);
  text = draw(3, 100, NULL);
  assert_non_null(strstr(text, "<title>A fit</title>"));
  free(text);
}

/* Seconds and power laws from one end of double to the other, and no outliers given. */
static void test_extremes(void **state) {
  (void)state;
  static const double seconds[] = {5e-324, 1e-300, 1, 86400};
  static const double powers[] = {-1e5, -1, 0, 3, 1e5};
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < 5; k++) {
      char *text;
      kf_fit fit = make(50, 8e7);
      for (int j = 0; j < 50; j++) row[j].seconds = j % 2 ? seconds[i] : 1e-3;
      fit.linear_s = fit.quadratic_s = 0;
      fit.constant_s = seconds[i];
      fit.power_p = powers[k];
      fit.power_s = k % 2 ? 1e300 : 0;
      fit.mape = fit.power_mape = 1e200;
      assert_int_equal(kf_svg_fit(row, 50, NULL, &fit, "x", &text), KF_OK);
      assert_sound(text);
      free(text);
    }
  }
}

static void test_bad(void **state) {
  (void)state;
  char *text = (char *)&state;
  kf_fit fit = make(10, 100), nothing = {0};
  assert_int_equal(kf_svg_fit(NULL, 10, NULL, &fit, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_fit(row, 10, NULL, NULL, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_fit(row, 10, NULL, &fit, "", NULL), KF_EINVAL);
  assert_int_equal(kf_svg_fit(row, 0, NULL, &fit, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_fit(row, 10, NULL, &nothing, "", &text), KF_EINVAL);
  row[3].seconds = NAN;
  assert_int_equal(kf_svg_fit(row, 10, NULL, &fit, "", &text), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "row 3: 400 tokens, measured nan s"));
  assert_ptr_equal(text, &state); /* written only on success */
}

static void test_locale(void **state) {
  (void)state;
  assert_same_in_german(draw(33, 100, "x"));
}

static void test_memory(void **state) {
  (void)state;
  kf_fit fit = make(2000, 30); /* large enough to grow the buffer */
  assert_starves(2, text, kf_svg_fit(row, 2000, outlier, &fit, "x", &text));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_content),  cmocka_unit_test(test_sizes), cmocka_unit_test(test_escape),
    cmocka_unit_test(test_extremes), cmocka_unit_test(test_bad),   cmocka_unit_test(test_locale),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
