/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "svg.h"

/* As much of a plan as a picture needs. Rank r takes r+1 seconds before, 2 + 0.1 after. */
typedef struct scene {
  kf_plan plan;
  double *numbers;
} scene;

static scene make(int32_t n_ranks) {
  double *x = malloc(3 * (size_t)n_ranks * sizeof *x);
  for (int32_t r = 0; r < n_ranks; r++) {
    x[r] = r + 1;
    x[n_ranks + r] = 2;
    x[2 * n_ranks + r] = 0.1;
  }
  kf_plan plan = {.version = KF_PLAN_VERSION,
                  .n_ranks = n_ranks,
                  .before_s = x,
                  .compute_s = x + n_ranks,
                  .comm_s = x + 2 * n_ranks,
                  .figures = {.ideal_s = 1.9,
                              .lower_bound_s = 2.05,
                              .before_step_s = n_ranks,
                              .step_s = 2.1,
                              .speedup = n_ranks / 2.1}};
  return (scene){plan, x};
}

static char *draw(int32_t n_ranks, const char *title) {
  scene s = make(n_ranks);
  char *text;
  if (kf_svg_plan(&s.plan, title, &text)) fail_msg("%s", kf_last_error());
  free(s.numbers);
  return text;
}

static void test_sizes(void **state) {
  (void)state;
  static const int32_t sizes[] = {1, 2, 32, 100, 880, 881, 4096, 100000};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    char *text = draw(sizes[i], "a plan");
    assert_sound(text);
    assert_true(strlen(text) < 200000); /* never more than a column a pixel */
    assert_int_equal(strstr(text, "slowest of") != NULL, sizes[i] > 880);
    free(text);
  }
}

static void test_content(void **state) {
  (void)state;
  char *text = draw(32, "joint");
  assert_has(text, ">joint</text>", "step 32.00 s \xe2\x86\x92 2.100 s, 15.24\xc3\x97",
             "lower bound 2.050 s", "prefers-color-scheme:dark");
  assert_int_equal(count(text, "h-22z"), 96); /* 32 bars of three kinds */
  free(text);
  text = draw(1, NULL);
  assert_non_null(strstr(text, "1 rank \xc2\xb7"));
  free(text);
}

static void test_escape(void **state) {
  (void)state;
  char *text = draw(2, "<script>&\"'\x01\xff\xc3\xa9\xed\xa0\x80");
  assert_sound(text);
  assert_null(strstr(text, "<script"));
  assert_int_equal(count(text, "&#60;script&#62;&#38;&#34;&#39;??\xc3\xa9???"), 2);
  free(text);
}

/* Zero work, zero sequences: a picture all the same. */
static void test_nothing(void **state) {
  (void)state;
  scene s = make(3);
  memset(s.numbers, 0, 9 * sizeof *s.numbers);
  s.plan.figures = (kf_figures){.speedup = 1, .max_over_mean = 1, .before_max_over_mean = 1};
  char *text;
  assert_int_equal(kf_svg_plan(&s.plan, "", &text), KF_OK);
  assert_sound(text);
  assert_null(strstr(text, "nan"));
  free(text);
  s.plan.version = 99;
  assert_int_equal(kf_svg_plan(&s.plan, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_plan(NULL, "", &text), KF_EINVAL);
  free(s.numbers);
}

static void test_locale(void **state) {
  (void)state;
  assert_same_in_german(draw(33, "x"));
}

static void test_memory(void **state) {
  (void)state;
  scene s = make(2000); /* large enough to grow the buffer */
  assert_starves(2, text, kf_svg_plan(&s.plan, "x", &text));
  free(s.numbers);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sizes),   cmocka_unit_test(test_content), cmocka_unit_test(test_escape),
    cmocka_unit_test(test_nothing), cmocka_unit_test(test_locale),  cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
