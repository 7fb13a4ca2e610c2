/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "svg.h"

enum { MOST = 100000, UNIT = 110, COLUMNS = 288 };

/* Five rules, of which three have buckets. */
typedef struct rules {
  kf_bucket bucket[3][MOST];
  kf_buckets buckets[3];
  kf_epoch epoch[5];
  kf_bucket_panel panel[5];
} rules;
static rules all;

static double work(double len) { return 1e-4 * len + 1e-8 * len * len; }

/* `n` lengths from 100, each longer by `factor`; M_comp is the work of the longest. */
static void make(int64_t n, double factor) {
  static const char *const name[] = {"equal_token", "power", "two_term", "packed",
                                     "two_term_balanced"};
  static const kf_rule rule[] = {KF_RULE_EQUAL_TOKEN, KF_RULE_POWER, KF_RULE_TWO_TERM};
  double len = 100;
  for (int64_t i = 0; i < n; i++, len = fmax(len * factor, len + 1))
    for (int p = 0; p < 3; p++)
      all.bucket[p][i] =
        (kf_bucket){.len = (int64_t)len, .count = 1 + i % 7, .work_s = work(floor(len))};
  const kf_bucket *last = &all.bucket[0][n - 1];
  for (int p = 0; p < 3; p++) {
    double comp_s = p ? last->work_s : 0;
    all.buckets[p] = (kf_buckets){.rule = rule[p],
                                  .n = n,
                                  .bucket = all.bucket[p],
                                  .mem_tokens = 2 * last->len,
                                  .comp_s = comp_s,
                                  .match_len = p ? (double)last->len : 0,
                                  .p = p == 1 ? 1.5 : 0};
    for (int64_t i = 0; i < n; i++) {
      kf_bucket *b = &all.bucket[p][i];
      double most = floor(2 * (double)last->len / (double)b->len);
      b->batch_size = (int64_t)fmax(1, p ? fmin(most, floor(comp_s / b->work_s)) : most);
    }
  }
  for (int p = 0; p < 5; p++) {
    all.epoch[p] = (kf_epoch){.n_steps = 40,
                              .imbalance_rate = 0.41 / (1 + p),
                              .mean_memory_use = 0.9 - 0.1 * p,
                              .mean_compute_use = p ? 0.8 + 0.1 * p : 0,
                              .predicted_tokens_per_s = 1e5 * (1 + 0.12 * p)};
    all.panel[p] = (kf_bucket_panel){name[p], p < 3 ? &all.buckets[p] : NULL, &all.epoch[p]};
  }
}

static char *draw(int32_t n_panels, const char *title) {
  char *text = NULL;
  if (kf_svg_buckets(all.panel, n_panels, title, &text)) fail_msg("%s", kf_last_error());
  return text;
}

/* The y of the first mark of a series in a chart, from 0; and where its 0% is. */
static double mark_y(const char *text, int chart, const char *series) {
  double x, y;
  char begin[32];
  for (; chart >= 0; chart--) text = strstr(text + 1, "<path class=\"stem\"");
  snprintf(begin, sizeof begin, "<path class=\"%s s", series);
  assert_non_null(text = strstr(text, begin));
  assert_int_equal(sscanf(strstr(text, "d=\""), "d=\"M%lf %lf", &x, &y), 2);
  return y;
}

static double base_y(const char *text, int chart) {
  double x, y;
  for (; chart >= 0; chart--) text = strstr(text + 1, "<path class=\"axis\"");
  assert_int_equal(sscanf(strstr(text, "d=\""), "d=\"M%lf %lf", &x, &y), 2);
  return y;
}

static void check_use(const char *text, int chart, const char *series, double use) {
  double found = (base_y(text, chart) - mark_y(text, chart, series)) / UNIT;
  if (!(fabs(found - use) < 0.002)) fail_msg("%s of %d: %f, not %f", series, chart, found, use);
}

static void test_content(void **state) {
  (void)state;
  make(40, 1.15);
  char *text = draw(5, "rules of a test");
  assert_sound(text);
  assert_int_equal(count(text, "h0"), 3 * 2 * 40 + 2 + 4); /* and those of the legend */
  assert_int_equal(count(text, "class=\"stem\""), 3);
  assert_int_equal(count(text, "class=\"limit\""), 3 + 1);
  assert_int_equal(count(text, "class=\"clipped\""), 0);
  assert_has(text, ">rules of a test</text>",
             "two_term_balanced: 1.48\xc3\x97 the tokens/s of equal_token, "
             "imbalance rate 41.0% \xe2\x86\x92 8.2%",
             "work not limited, drawn against 7.754 s \xc2\xb7 40 lengths<",
             "work 7.754 s, as of 23292 tokens \xc2\xb7 p 1.50 \xc2\xb7");
  assert_int_equal(count(text, "memory 46584 tokens"), 3);
  assert_int_equal(count(text, ">10k</text>"), 3);
  assert_int_equal(count(text, ">200</text>"), 3);
  assert_int_equal(count(text, ">100%</text>"), 3);
  assert_has(text, "tokens/s against equal_token</text>", "prefers-color-scheme:dark");
  free(text);
}

/* All figures of all panels; what is not known is a dash. */
static void test_figures(void **state) {
  (void)state;
  static const char *const words[] = {
    ">41.0%<",        ">20.5%<",       ">13.7%<",        ">10.3%<",        ">8.2%<",
    ">90.0%<",        ">80.0%<",       ">70.0%<",        ">60.0%<",        ">50.0%<",
    ">110.0%<",       ">120.0%<",      ">1.00\xc3\x97<", ">1.12\xc3\x97<", ">1.24\xc3\x97<",
    ">1.36\xc3\x97<", ">1.48\xc3\x97<"};
  make(3, 2);
  char *text = draw(5, "x");
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(text, words[i])) fail_msg("no %s", words[i]);
  assert_int_equal(count(text, ">\xe2\x80\x93<"), 1); /* no compute use of equal_token */
  assert_int_equal(count(text, "imbalance-bar\" x"), 5);
  assert_int_equal(count(text, "memory-bar\" x"), 5);
  assert_int_equal(count(text, "work-bar\" x"), 4);
  assert_int_equal(count(text, "speed-bar\" x"), 5);
  free(text);

  all.epoch[2].predicted_tokens_per_s = all.epoch[3].predicted_tokens_per_s = 2e5;
  text = draw(5, "x"); /* of equals the first */
  assert_non_null(strstr(text, "two_term: 2.00\xc3\x97 the tokens/s of equal_token, "));
  free(text);

  make(3, 2);
  all.panel[0].name = "first"; /* then tokens/s are those of the first */
  all.panel[3].name = "equal_token";
  text = draw(3, "x");
  assert_non_null(strstr(text, "two_term: 1.24\xc3\x97 the tokens/s of first, "));
  free(text);
  text = draw(5, "x"); /* and of equal_token, wherever it stands */
  assert_non_null(strstr(text, "two_term_balanced: 1.09\xc3\x97 the tokens/s of equal_token, "));
  free(text);
  all.epoch[3].predicted_tokens_per_s = 0;
  text = draw(5, "x");
  assert_sound(text);
  assert_int_equal(count(text, ">\xe2\x80\x93<"), 1 + 5);
  assert_int_equal(count(text, "speed-bar\" x"), 0);
  assert_non_null(strstr(text, "two_term_balanced: most tokens/s, imbalance rate 8.2%<"));
  free(text);
}

/* Heights: of 3 samples of 100 tokens and 1 s, under 400 tokens and 4 s. */
static void test_uses(void **state) {
  (void)state;
  make(1, 1);
  for (int p = 0; p < 3; p++) {
    all.bucket[p][0] = (kf_bucket){100, 5, 3, 1};
    all.buckets[p].mem_tokens = 400;
    all.buckets[p].comp_s = p ? 4 - p : 0; /* 3 s, 2 s */
  }
  char *text = draw(5, "x");
  assert_sound(text);
  for (int p = 0; p < 3; p++) check_use(text, p, "memory", 0.75);
  check_use(text, 0, "work", 1); /* against the largest limit */
  check_use(text, 1, "work", 1);
  check_use(text, 2, "work", 1.5);
  assert_int_equal(count(text, "class=\"clipped\""), 0);
  free(text);

  all.buckets[0].comp_s = 2; /* told, but no limit to this rule */
  text = draw(5, "x");
  check_use(text, 0, "work", 1.5);
  assert_non_null(strstr(text, "work not limited, drawn against 2.000 s"));
  free(text);

  for (int p = 0; p < 3; p++) all.buckets[p].comp_s = 0;
  all.bucket[2][0].batch_size = 4;
  text = draw(5, "x"); /* no limit at all: against the heaviest batch */
  check_use(text, 0, "work", 0.75);
  check_use(text, 2, "work", 1);
  assert_int_equal(count(text, "drawn against the heaviest batch, 4.000 s"), 3);
  free(text);

  for (int p = 0; p < 3; p++) all.bucket[p][0].work_s = 0;
  text = draw(5, "x");
  assert_sound(text);
  check_use(text, 0, "work", 0);
  free(text);
}

/* What is above 300% has a triangle, and the largest is told; memory is where it was. */
static void test_clipped(void **state) {
  (void)state;
  make(10, 2);
  for (int p = 0; p < 3; p++)
    for (int i = 0; i < 10; i++) all.bucket[p][i].batch_size = 1;
  all.buckets[1].comp_s = 10;
  all.buckets[2].comp_s = 1000;
  all.bucket[1][8].work_s = all.bucket[1][9].work_s = 30;
  char *text = draw(5, "x");
  assert_null(strstr(text, "class=\"clipped\""));
  free(text);
  all.bucket[1][3].work_s = 30.1;
  all.bucket[1][9].work_s = 48;
  text = draw(5, "x");
  assert_sound(text);
  assert_int_equal(count(text, "class=\"clipped\""), 1 + 1); /* and the legend's */
  assert_int_equal(count(text, "h9l-4.5 -8z"), 2 + 1);
  assert_has(text, "10 lengths, 2 above 300%, up to 480%<", ">above 300%</text>");
  assert_int_equal(count(text, "h0"), 3 * 2 * 10 - 2 + 2 + 4);
  assert_int_equal(count(text, ">300%</text>"), 1); /* other charts are not as high */
  free(text);
}

/* Of all paths of a kind. */
static int dots(const char *text, const char *kind) {
  char begin[40];
  int n = 0;
  snprintf(begin, sizeof begin, "<path class=\"%s\"", kind);
  while ((text = strstr(text, begin)))
    for (; *text != '>'; text++) n += text[0] == 'h' && text[1] == '0';
  return n;
}

/* Marks are larger where more of the samples are: 50%, 10%, 4%, 2%, 0.5%. */
static void test_sizes(void **state) {
  (void)state;
  static const int64_t samples[] = {100, 20, 8, 4, 1};
  make(6, 2);
  for (int i = 0; i < 5; i++) all.bucket[2][i].count = samples[i];
  all.bucket[2][5].count = 200 - 133;
  all.panel[0] = all.panel[2];
  char *text = draw(1, "x");
  assert_int_equal(dots(text, "work s0"), 1);
  assert_int_equal(dots(text, "work s1"), 1);
  assert_int_equal(dots(text, "work s2"), 1 + 1); /* and that of the legend */
  assert_int_equal(dots(text, "work s3"), 3);
  free(text);
}

/* Any number of lengths, and no more room than a few hundred take. */
static void test_many(void **state) {
  (void)state;
  static const int64_t n[] = {1, 2, COLUMNS, COLUMNS + 1, 5000, MOST};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
    make(n[i], n[i] > 6000 ? 1 : 1.002);
    char *text = draw(5, "x"), *again = draw(5, "x");
    assert_sound(text);
    assert_string_equal(text, again);
    assert_true(strlen(text) < 100000);
    assert_int_equal(count(text, "columns<"), n[i] > COLUMNS ? 3 : 0);
    free(text);
    free(again);
  }
}

/* Where lengths share columns, a single high batch among them shows, and so does a small one. */
static void test_spike(void **state) {
  (void)state;
  make(5000, 1.001);
  all.panel[0] = all.panel[2];
  for (int i = 0; i < 5000; i++) all.bucket[2][i].work_s = 1e-9;
  all.bucket[2][1234].batch_size = 1;
  all.bucket[2][1234].work_s = 2.5 * all.buckets[2].comp_s;
  char *text = draw(1, "x"), top[16];
  assert_sound(text);
  snprintf(top, sizeof top, "V%.0f", base_y(text, 0) - 2.5 * UNIT);
  assert_int_equal(count(text, top), 2); /* its stem, and its work */
  assert_non_null(strstr(text, ">250%</text>"));
  free(text);
  for (int i = 0; i < 5000; i++) {
    kf_bucket *b = &all.bucket[2][i];
    b->batch_size = i == 1234 ? 1 : all.buckets[2].mem_tokens / b->len;
  }
  text = draw(1, "x");
  double use = (double)all.bucket[2][1234].len / (double)all.buckets[2].mem_tokens;
  snprintf(top, sizeof top, " %.1fV", base_y(text, 0) - use * UNIT);
  assert_int_equal(count(text, top), 1); /* of memory */
  free(text);
}

static void test_names(void **state) {
  (void)state;
  make(5, 2);
  all.panel[0].name = "<script>&\"'\x01\xff";
  all.panel[1].name = "";
  all.panel[2].name = /* 30 letters of three bytes: 20 in a heading, 10 beside figures */
    "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97"
    "\xa5"
    "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97"
    "\xa5"
    "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97"
    "\xa5"
    "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5";
  char stray[1000];
  memset(stray, 0x80, sizeof stray - 1);
  stray[999] = 0;
  all.panel[3].name = stray;
  all.panel[4].name = "abcdefghijklmnopqrstuvwxyz";
  char *text = draw(5, "<a>&");
  assert_sound(text);
  assert_null(strstr(text, "<script"));
  assert_null(strstr(text, "<a>"));
  assert_int_equal(count(text, "&#60;a&#62;&#38;"), 2);
  assert_int_equal(count(text, "&#60;script&#62;&#38;&#34;&#39;?"
                               "?<"),
                   2);
  assert_int_equal(count(text, "\xe6\x97\xa5"), 20 + 10);
  assert_int_equal(count(text, ">???????"
                               "???????"
                               "??????\xe2\x80\xa6<"),
                   1);
  assert_int_equal(count(text, ">abcdefghijklmnopqrst\xe2\x80\xa6<"), 1);
  free(text);
  all.panel[0].name = "one";
  text = draw(1, NULL);
  assert_has(text, "<title>Rules for batches</title>", ">one: imbalance rate 41.0%<");
  free(text);
}

/* Panels without buckets, or with none of them: figures only. */
static void test_no_charts(void **state) {
  (void)state;
  make(5, 2);
  all.panel[0].buckets = all.panel[1].buckets = NULL;
  all.buckets[2].n = 0;
  char *text = draw(5, "x");
  assert_sound(text);
  assert_null(strstr(text, "class=\"stem\""));
  assert_null(strstr(text, "share of the samples"));
  assert_int_equal(count(text, "imbalance-bar\" x"), 5);
  free(text);
  all.epoch[1].n_steps = 0; /* nothing was handed out: no figures */
  all.epoch[3].mean_compute_use = 12345;
  text = draw(5, "x");
  assert_int_equal(count(text, "imbalance-bar\" x"), 4);
  assert_int_equal(count(text, ">\xe2\x80\x93</text>"), 4 + 1); /* and panel 0 has no limit */
  assert_int_equal(count(text, ">12345\xc3\x97</text>"), 1);
  free(text);
}

/* Lengths, work and limits from one end to the other. */
static void test_extremes(void **state) {
  (void)state;
  static const double seconds[] = {0, 5e-324, 1e-300, 1, 1e290};
  for (int i = 0; i < 5; i++) {
    for (int k = 0; k < 5; k++) {
      make(2, 2);
      for (int p = 0; p < 3; p++) {
        all.bucket[p][0].len = 1;
        all.bucket[p][1].len = KF_MAX_LEN;
        all.bucket[p][1].batch_size = p ? 1 << 20 : 1;
        all.bucket[p][1].work_s = seconds[i];
        all.buckets[p].comp_s = p ? seconds[k] : 0;
        all.buckets[p].mem_tokens = p ? KF_MAX_TOKENS : 1;
        all.epoch[p].predicted_tokens_per_s = seconds[k] * 1e10;
        all.epoch[p].imbalance_rate = seconds[i];
        all.epoch[p].mean_compute_use = all.epoch[p].mean_memory_use = seconds[k];
      }
      char *text = draw(5, "x");
      assert_sound(text);
      assert_int_equal(count(text, ">1G</text>"), 3);
      free(text);
    }
  }
}

static void check_bad(const char *want) {
  char *text = (char *)&all;
  assert_refused(kf_svg_buckets(all.panel, 5, "", &text), KF_EINVAL, want);
  assert_ptr_equal(text, &all); /* written only on success */
  make(5, 2);
}

static void test_bad(void **state) {
  (void)state;
  char *text = NULL;
  make(5, 2);
  assert_int_equal(kf_svg_buckets(NULL, 5, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_buckets(all.panel, 5, "", NULL), KF_EINVAL);
  assert_int_equal(kf_svg_buckets(all.panel, 0, "", &text), KF_EINVAL);
  assert_int_equal(kf_svg_buckets(all.panel, 65, "", &text), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_svg_buckets: 65 panels, expected 1 to 64");
  all.panel[4].name = NULL;
  check_bad("panel 4: name or epoch is NULL");
  all.panel[3].epoch = NULL;
  check_bad("panel 3: name or epoch is NULL");
  all.epoch[2].imbalance_rate = NAN;
  check_bad("panel 2: imbalance rate nan");
  all.epoch[1].mean_memory_use = -1;
  check_bad("panel 1: imbalance rate 0.205, memory use -1");
  all.epoch[1].mean_compute_use = INFINITY;
  check_bad("compute use inf");
  all.epoch[1].predicted_tokens_per_s = -INFINITY;
  check_bad("-inf tokens/s, expected finite numbers from 0 up");
  all.buckets[0].n = -1;
  check_bad("panel 0: -1 buckets");
  all.buckets[0].bucket = NULL;
  check_bad("panel 0: 5 buckets");
  all.buckets[0].mem_tokens = 0;
  check_bad("M_mem 0 tokens");
  all.buckets[1].comp_s = -3;
  check_bad("M_comp -3 s");
  all.buckets[1].match_len = NAN;
  check_bad("of nan tokens");
  all.buckets[1].p = -2;
  check_bad("p -2, expected at least 1 token");
  all.bucket[2][3].len = all.bucket[2][2].len;
  check_bad("panel 2, bucket 3: 4 samples of 400 tokens");
  all.bucket[2][0].len = 0;
  check_bad("panel 2, bucket 0: 1 samples of 0 tokens");
  all.bucket[2][4].len = KF_MAX_LEN + 1;
  check_bad("of 4294967297 tokens");
  all.bucket[2][1].count = 0;
  check_bad("panel 2, bucket 1: 0 samples");
  all.bucket[2][1].batch_size = 0;
  check_bad("in batches of 0, expected rising lengths");
  all.bucket[2][1].work_s = NAN;
  check_bad("and nan s");
  all.bucket[2][1].work_s = 1.7e308;
  check_bad("and 1.7e+308 s");
}

static void test_locale(void **state) {
  (void)state;
  make(33, 1.2);
  assert_same_in_german(draw(5, "x"));
}

static void test_memory(void **state) {
  (void)state;
  make(2000, 1.003); /* large enough to grow the buffer */
  assert_starves(2, text, kf_svg_buckets(all.panel, 5, "x", &text));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_content),   cmocka_unit_test(test_figures),
    cmocka_unit_test(test_uses),      cmocka_unit_test(test_clipped),
    cmocka_unit_test(test_sizes),     cmocka_unit_test(test_many),
    cmocka_unit_test(test_spike),     cmocka_unit_test(test_names),
    cmocka_unit_test(test_no_charts), cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_bad),       cmocka_unit_test(test_locale),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
