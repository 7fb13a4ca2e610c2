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
#include "report_scene.h"

static void test_headline(void **state) {
  (void)state;
  make(4, 60);
  all.step_s[1][59] = 10; /* moves the sum, not the median */
  char *page = draw();
  expect(page, "<title>A test</title>");
  expect(page, "<h1>A test</h1>");
  expect(page, "The median step takes <b>2.500 s</b> instead of <b>4.000 s</b>: <b>1.60 times</b>");
  expect(page,
         "4.000 s <span class=\"to\">\xe2\x86\x92</span> 2.500 s</dd><dd class=\"note\">60 steps<");
  expect(page, "1.60\xc3\x97</dd><dd class=\"note\">1.52\xc3\x97 by the sum of 60 steps<");
  expect(page, "1.60 <span class=\"to\">\xe2\x86\x92</span> 1.00<");
  expect(page, "1.0 \xc3\x97 10<sup>\xe2\x88\x92"
               "5</sup></dd>");
  expect(page, "<dt>model</dt><dd>DiT-S</dd>");
  expect(page, "<dt>seed</dt><dd>7</dd>");
  assert_int_equal(count(page, "<b>plain</b>"), 1);
  assert_int_equal(count(page, "plain</li>"), 2);
  assert_int_equal(count(page, "balanced</li>"), 2);
  expect(page, "prefers-color-scheme:dark");
  expect(page, "default-src 'none'");
  free(page);

  all.report.n_variants = 1;
  all.report.title = NULL;
  page = draw();
  expect(page, "<title>Training run</title>");
  expect(page, "The median step takes <b>4.000 s</b>; its busiest rank works <b>1.60 times</b>");
  expect(page, "<dt>Last loss</dt><dd class=\"big\">0.1449</dd>");
  assert_null(strstr(page, "Speed-up"));
  assert_null(strstr(page, "balanced"));
  assert_int_equal(count(page, "<svg "), 4);
  free(page);
}

/* Of an odd and of an even number of steps, in any order. */
static void test_median(void **state) {
  (void)state;
  static const double step_s[] = {4, 2, 16, 6, 100};
  make(1, 5);
  all.report.n_variants = 1;
  memcpy(all.step_s[0], step_s, sizeof step_s);
  char *page = draw();
  expect(page, "The median step takes <b>6.000 s</b>");
  free(page);
  all.variant[0].n_steps = 4;
  page = draw();
  expect(page, "The median step takes <b>5.000 s</b>");
  free(page);
}

/* Everything that can be missing is, and said to be. */
static void test_nothing(void **state) {
  (void)state;
  make(4, 0);
  char *page = draw();
  expect(page, "There are no steps to compare.");
  assert_int_equal(count(page, "No steps were measured."), 2);
  expect(page, "No loss was recorded.");
  expect(page, "No predictions were recorded.");
  expect(page, "No plan was recorded.");
  assert_int_equal(count(page, "<svg "), 0);
  free(page);

  make(1, 1);
  all.report.n_variants = 1;
  all.report.n_facts = 0;
  all.variant[0].loss = NULL;
  all.step[0] = 7;
  add_plan("g1b3i256f1s0");
  page = draw();
  expect(page, "<p>Step 7. A row is a rank.");
  expect(page, "The dot tells");
  assert_int_equal(count(page, ">7</text>"), 1); /* of the imbalance's axis, in its middle */
  assert_int_equal(strncmp(path_of(page, "imbalance-chart", "curve variant-1"), "M426 220h0", 10),
                   0);
  expect(page, "3 stay at home, 0 go whole to another rank, 0 are split over several. <b>0%</b>");
  assert_int_equal(count(page, "<svg "), 5 - 1);
  assert_int_equal(count(page, "class=\"pulse"), 0);
  assert_null(strstr(page, "class=\"facts\""));
  assert_null(strstr(page, "results return"));
  free(page);

  make(3, 5); /* one run has no steps, the other no number that is a time */
  all.variant[1].n_steps = 0;
  for (int i = 0; i < 15; i++) all.counters[0][i] = (kf_counters){0};
  for (int i = 0; i < 5; i++) all.step_s[0][i] = 0;
  page = draw();
  expect(page, "There are no steps to compare.");
  expect(page, "The median is <b>1.00</b> plain.");
  expect(page, ">0 s</text>"); /* the one timeline has the axis */
  free(page);
}

static void test_escape(void **state) {
  (void)state;
  make(2, 3);
  all.report.title = all.variant[0].name = all.fact[0].name = all.fact[1].value =
    "<script>&\"'\x01\xff";
  char *page = draw();
  /* title twice, facts two, name: caption, legends, a sentence */
  assert_int_equal(count(page, "&#60;script&#62;&#38;&#34;&#39;??"), 2 + 2 + 1 + 2 + 1);
  free(page);
}

static void test_many(void **state) {
  (void)state;
  dice d = {1};
  make(300, 1500);
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; i < 1500; i++) {
      all.loss[k][i] = dice_real(&d, 0, 1);
      all.step_s[k][i] = 1.5;
      for (int64_t r = 0; r < 300; r++) {
        kf_counters *c = &all.counters[k][i * 300 + r];
        c->plan_s = dice_real(&d, 0, 0.4);
        c->route_s = dice_real(&d, 0, 0.4);
        c->compute_s = dice_real(&d, 0, 0.4);
        c->wait_s = dice_real(&d, 0, 0.4);
        all.predicted_s[i * 300 + r] = dice_real(&d, 0, 1);
        all.measured_s[i * 300 + r] = dice_real(&d, 0, 1);
      }
    }
  add_plan("joint");
  char *page = draw();
  expect(page, "A row stands for 5 neighbouring ranks");
  expect(page, "A row stands for 5 neighbouring ranks");
  expect(page, "A band is all that goes from one row to another.");
  expect(page, "The 400 broadest of ");
  assert_int_equal(count(page, "class=\"band"), BANDS);
  assert_int_equal(blocks(path_of(page, "timeline-0", "block compute")), 60 * SHOWN);
  free(page);

  make(4096, 12); /* the busiest of 64 ranks is drawn */
  add_plan("joint");
  for (int i = 0; i < 12; i++) {
    all.step_s[1][i] = 2000;
    all.counters[1][i * 4096 + 100].compute_s = 1000;
  }
  page = draw();
  expect(page, "A row stands for 64 neighbouring ranks");
  for (int i = 0; i < 64; i++) {
    block b;
    assert_true(block_of(path_of(page, "timeline-1", "block compute"), i, &b));
    assert_near(b.width, COLUMNS / (SHOWN * 4096.0) * (i == 1 ? 1000 : 2.125));
  }
  free(page);
}

/* Seconds, losses and step numbers from one end to the other. */
static void test_extremes(void **state) {
  (void)state;
  static const double seconds[] = {0, 5e-324, 1e-300, 1e-9, 1, 1e9};
  static const double losses[] = {0, 5e-324, -1e12, 1e12, 1e300, -1e-5, 123456789};
  for (int a = 0; a < 6; a++)
    for (int b = 0; b < 7; b++) {
      make(2, 3);
      for (int i = 0; i < 3; i++) {
        all.step_s[0][i] = seconds[a];
        all.step_s[1][i] = i ? seconds[b % 6] : seconds[a];
        all.loss[0][i] = losses[b];
        all.loss[1][i] = i == 1 ? losses[a] : losses[b];
        all.step[i] = i == 2 ? ((int64_t)1 << 52) : i == 1 && b % 2 ? ((int64_t)1 << 52) - 1 : i;
      }
      for (int i = 0; i < 6; i++) {
        all.counters[0][i].compute_s = seconds[b % 6];
        all.counters[1][i].route_s = seconds[a];
        all.predicted_s[i] = seconds[a];
        all.measured_s[i] = seconds[b % 6];
      }
      free(draw());
      all.variant[0].n_steps = all.variant[1].n_steps = 1;
      all.step[0] = (int64_t)1 << 52;
      all.report.n_points = 1;
      free(draw());
    }
}

static void check_bad(kf_status status, const char *want) {
  char *page = (char *)&all;
  assert_refused(kf_report_html(&all.report, &page), status, want);
  assert_ptr_equal(page, &all); /* written only on success */
  make(3, 5);
}

static void test_bad(void **state) {
  (void)state;
  char *page = NULL;
  make(3, 5);
  assert_int_equal(kf_report_html(NULL, &page), KF_EINVAL);
  assert_int_equal(kf_report_html(&all.report, NULL), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_report_html: report or out is NULL");
  all.report.n_ranks = 0;
  check_bad(KF_EINVAL, "kf_report_html: 0 ranks, expected 1 to 1048576");
  all.report.n_variants = 3;
  check_bad(KF_EINVAL, "3 variants, expected 1 or 2");
  all.report.n_variants = 0;
  check_bad(KF_EINVAL, "0 variants, expected 1 or 2");
  all.report.variant = NULL;
  check_bad(KF_EINVAL, "2 variants at NULL");
  all.variant[1].name = NULL;
  check_bad(KF_EINVAL, "variant 1: name is NULL");
  all.variant[1].n_steps = -1;
  check_bad(KF_EINVAL, "variant 1: -1 steps, expected 0 to 1073741824");
  all.variant[0].step_s = NULL;
  check_bad(KF_EINVAL, "variant 0: 5 steps, but step_s is NULL");
  all.variant[1].counters = NULL;
  check_bad(KF_EINVAL, "variant 1: 5 steps, but counters is NULL");
  all.step[2] = 1;
  check_bad(KF_EINVAL, "variant 0, step number 1 after 1, expected rising numbers from 0 to");
  all.step[0] = -1;
  check_bad(KF_EINVAL, "variant 0, step number -1 after -1");
  all.step[4] = ((int64_t)1 << 52) + 1;
  check_bad(KF_EINVAL, "step number 4503599627370497 after 3");
  all.step_s[1][3] = NAN;
  check_bad(KF_EINVAL, "variant 1, step 3: step_s is nan, expected 0 to 1e+09 seconds");
  all.step_s[1][3] = 2e9;
  check_bad(KF_EINVAL, "step_s is 2e+09");
  all.counters[0][4 * 3 + 2].plan_s = -1;
  check_bad(KF_EINVAL, "variant 0, step 4, rank 2: plan_s -1, route_s 0, compute_s 3, wait_s 0");
  all.counters[0][4 * 3 + 2].route_s = NAN;
  check_bad(KF_EINVAL, "route_s nan");
  all.counters[0][4 * 3 + 2].compute_s = INFINITY;
  check_bad(KF_EINVAL, "compute_s inf");
  all.counters[0][4 * 3 + 2].wait_s = -0.5;
  check_bad(KF_EINVAL, "wait_s -0.5, expected 0 to 1e+09 seconds");
  all.report.n_facts = -1;
  check_bad(KF_EINVAL, "-1 facts, expected 0 or more");
  all.report.fact = NULL;
  check_bad(KF_EINVAL, "2 facts at NULL");
  all.fact[1].value = NULL;
  check_bad(KF_EINVAL, "fact 1: value is NULL");
  all.fact[0].name = NULL;
  check_bad(KF_EINVAL, "fact 0: name is NULL");
  all.report.n_points = -2;
  check_bad(KF_EINVAL, "-2 points");
  all.report.measured_s = NULL;
  check_bad(KF_EINVAL, "15 points, but measured_s is NULL");
  all.report.predicted_s = NULL;
  check_bad(KF_EINVAL, "15 points, but predicted_s is NULL");
  all.predicted_s[14] = -1;
  check_bad(KF_EINVAL, "point 14: predicted_s -1, measured_s 2.");
  all.measured_s[0] = NAN;
  check_bad(KF_EINVAL, "point 0: predicted_s 2, measured_s nan, expected 0 to");
}

static void test_bad_plan(void **state) {
  (void)state;
  make(3, 5);
  add_plan("joint");
  all.report.batch = NULL;
  check_bad(KF_EINVAL, "there is a plan, but batch is NULL");
  add_plan("joint");
  kf_plan other = *all.report.plan;
  other.n_ranks = 2;
  all.report.plan = &other;
  check_bad(KF_EINVAL, "a plan for 2 ranks, expected 3 as in the report");
  add_plan("joint");
  other = *all.report.plan;
  other.n_seqs--;
  all.report.plan = &other;
  check_bad(KF_EPLAN, "sequences, the batch has 3 and");
}

static void test_locale(void **state) {
  (void)state;
  make(5, 33);
  add_plan("joint");
  assert_same_in_german(draw());
}

static void test_memory(void **state) {
  (void)state;
  make(32, 50);
  add_plan("joint");
  assert_starves(4, page,
                 kf_report_html(&all.report, &page)); /* the plan's proof, sums, text, bands */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_headline), cmocka_unit_test(test_median),
    cmocka_unit_test(test_nothing),  cmocka_unit_test(test_escape),
    cmocka_unit_test(test_many),     cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_bad),      cmocka_unit_test(test_bad_plan),
    cmocka_unit_test(test_locale),   cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
