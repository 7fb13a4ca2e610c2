/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "report_scene.h"

/* ------------------------------------------------------------------------------ timeline */

static void test_timeline(void **state) {
  (void)state;
  make(4, 20);
  char *page = draw();
  double px = COLUMNS / (SHOWN * 4.0); /* a second: both runs on the scale of the longer */
  expect(page, "</b> 6 steps in 24.00 s, of which ranks wait 38%</figcaption>");
  expect(page, "<b>balanced</b> 6 steps in 15.00 s</figcaption>");
  expect(page, ">9.000 s less</text>");
  assert_int_equal(count(page, ">step 0</text>"), 2);
  for (int k = 0; k < 2; k++) {
    const char *d = path_of(page, k ? "timeline-1" : "timeline-0", "block compute");
    assert_int_equal(blocks(d), 4 * SHOWN);
    for (int i = 0; i < 4 * SHOWN; i++) {
      block b;
      assert_true(block_of(d, i, &b));
      assert_near(b.x, LEFT + px * (k ? 2.5 * (i / 4) + 0.375 : 4.0 * (i / 4)));
      assert_near(b.width, px * (k ? 2.125 : i % 4 + 1));
    }
  }
  assert_int_equal(blocks(path_of(page, "timeline-0", "block wait")), 3 * SHOWN);
  assert_int_equal(blocks(path_of(page, "timeline-0", "block plan")), 0);
  assert_int_equal(blocks(path_of(page, "timeline-1", "block plan")), 4 * SHOWN);
  assert_int_equal(blocks(path_of(page, "timeline-1", "block route")), 4 * SHOWN);
  free(page);
}

/* What is longer than its step is cut at its end. */
static void test_overlong(void **state) {
  (void)state;
  make(2, 2);
  all.counters[0][0].compute_s = 7;
  all.counters[0][1].compute_s = 1;
  all.counters[0][1].wait_s = 7;
  all.report.n_variants = 1;
  char *page = draw();
  block b;
  assert_true(block_of(path_of(page, "timeline-0", "block compute"), 0, &b));
  assert_near(b.x + b.width, (LEFT + RIGHT) / 2.0);
  assert_true(block_of(path_of(page, "timeline-0", "block wait"), 0, &b));
  assert_near(b.x + b.width, (LEFT + RIGHT) / 2.0);
  assert_int_equal(blocks(path_of(page, "timeline-0", "block wait")), 2); /* of rank 0 in step 1 */
  free(page);
}

/* The steps that are drawn have no pause in them, in either run, and are the same in both. */
static void test_window(void **state) {
  (void)state;
  make(2, 40);
  for (int i = 0; i < 40; i += 9) all.step_s[0][i] = 30;
  for (int i = 4; i < 22; i += 9) all.step_s[1][i] = 0.1;
  for (int i = 0; i < 40; i++) all.step[i] = 100 + 3 * i;
  char *page = draw();
  expect(page, "<p>Steps 157 to 172 of both runs, on one scale of time, chosen because they come "
               "closest to 6 median steps.");
  free(page);

  int64_t other[40]; /* steps 220 .. 337: few in common, and then none */
  for (int i = 0; i < 40; i++) other[i] = 211 + i;
  all.variant[1].step = other;
  all.step_s[1][3] = 1.5;
  page = draw();
  expect(page, "<p>Steps 211 to 217 of both runs");
  expect(page, "0.92\xc3\x97 by the sum of 3 steps");
  free(page);
  for (int i = 0; i < 40; i++) other[i] = 1000 + i;
  page = draw();
  expect(page, "The runs have no step in common");
  expect(page, ">step 1005</text>");
  assert_null(strstr(page, "by the sum of"));
  free(page);
}

/* -------------------------------------------------------------------------------- curves */

/* The points of a curve, n of them. */
static void assert_curve(const char *d, int64_t n, const double *value, double low, double high) {
  const double top = 10, base = 220;
  for (int64_t i = 0; i < n; i++) {
    double x, y;
    d = strpbrk(d, "ML\"");
    if (sscanf(d + 1, "%lf %lf", &x, &y) != 2) fail_msg("%d points", (int)i);
    assert_near(x, LEFT + COLUMNS * (double)i / (double)(n - 1));
    assert_near(y, base - (base - top) * (value[i] - low) / (high - low));
    d++;
  }
  assert_true(*strpbrk(d, "ML\"") == '"');
}

static void test_imbalance(void **state) {
  (void)state;
  double want[2][9];
  make(4, 9);
  for (int i = 0; i < 9; i++) {
    all.counters[1][i * 4 + 2].compute_s += 0.1 * i;
    want[0][i] = 1.6;
    want[1][i] = (2.5 + 0.1 * i) * 4 / (10 + 0.1 * i);
  }
  char *page = draw();
  assert_curve(path_of(page, "imbalance-chart", "curve variant-0"), 9, want[0], 1, 1.6);
  assert_curve(path_of(page, "imbalance-chart", "curve variant-1"), 9, want[1], 1, 1.6);
  expect(page, "The median is <b>1.60</b> plain, and <b>1.12</b> balanced.");
  assert_null(strstr(page, "above the picture"));
  free(page);

  make(4, 200); /* a pause is cut off rather than to flatten all others */
  all.counters[1][100 * 4].compute_s = 300;
  page = draw();
  expect(page, " 1 step is above the picture, up to 3.90.");
  free(page);
}

static void test_loss(void **state) {
  (void)state;
  make(2, 12);
  double low = all.loss[0][11], high = all.loss[1][0], span = 0.04 * (high - low);
  char *page = draw();
  expect(page, "In the 12 steps that both did, the losses differ by <b>1.0 \xc3\x97 10<sup>");
  expect(page, "the last ones are 0.4762 and 0.4762.");
  assert_curve(path_of(page, "loss-chart", "curve variant-0"), 12, all.loss[0], low - span,
               high + span);
  assert_curve(path_of(page, "loss-chart", "curve variant-1"), 12, all.loss[1], low - span,
               high + span);
  free(page);

  all.loss[1][7] = 0.5 * all.loss[0][7];
  page = draw();
  expect(page, "the losses differ by <b>50%</b> of their value at most");
  free(page);

  memcpy(all.loss[1], all.loss[0], 12 * sizeof(double));
  all.loss[0][3] = NAN; /* a gap in each */
  all.loss[1][5] = INFINITY;
  page = draw();
  expect(page, "<b>the same loss, to the bit</b>, in all 10 steps");
  expect(page, " 2 losses are no number that can be drawn, and left out.");
  for (int k = 0; k < 2; k++) {
    const char *d = path_of(page, "loss-chart", k ? "curve variant-1" : "curve variant-0");
    int moves = 0, points = 0;
    for (; *d != '"'; d++) moves += *d == 'M', points += *d == 'M' || *d == 'L';
    assert_int_equal(moves, 2);
    assert_int_equal(points, 11);
  }
  free(page);

  all.variant[0].loss = NULL; /* one has losses, the other has none */
  page = draw();
  assert_null(strstr(page, "losses differ"));
  path_of(page, "loss-chart", "curve variant-1");
  free(page);

  for (int i = 0; i < 12; i++) all.loss[1][i] = 1; /* a constant */
  page = draw();
  expect(page, ">1.000</text>");
  free(page);
}

/* More steps than columns: a single spike is still seen. */
static void test_columns(void **state) {
  (void)state;
  make(1, COLUMNS);
  char *page = draw();
  assert_null(strstr(page, "more steps than"));
  free(page);
  make(1, 50000);
  for (int i = 0; i < 50000; i++) all.loss[0][i] = all.loss[1][i] = 1;
  all.loss[0][12345] = 3;
  page = draw();
  assert_int_equal(count(page, "more steps than the picture has columns"), 2);
  double span = 2 * 0.04, y = 220 - 210.0 * (2 + span) / (2 + 2 * span);
  char top[20];
  snprintf(top, sizeof top, "V%.1f", y);
  assert_int_equal(count(page, top), 1);
  free(page);
}

/* ----------------------------------------------------------------------------------- fit */

static void test_fit(void **state) {
  (void)state;
  make(1, 8);
  for (int i = 0; i < 8; i++) {
    all.predicted_s[i] = 1 + 0.1 * i;
    all.measured_s[i] = all.predicted_s[i] + (i % 2 ? 0.01 : -0.03);
  }
  char *page = draw();
  expect(page,
         "A prediction is off by <b>20.00 ms</b> in the mean, <b>1.49%</b> of the mean busy time");
  expect(page, "Each of 8 dots tells");
  const char *d = path_of(page, "fit-chart", "dots");
  assert_int_equal(blocks(d), 8);
  double low = 0.97, high = 1.71, span = 0.04 * (high - low);
  span = fmax(span, 0.02 * high + 1e-9);
  for (int i = 0; i < 8; i++, d++) {
    double x, y;
    d = strchr(d, 'M');
    assert_int_equal(sscanf(d, "M%lf %lfh0", &x, &y), 2);
    assert_near(x, LEFT + 320 * (all.predicted_s[i] - low + span) / (high - low + 2 * span));
    assert_near(y, 350 - 320 * (all.measured_s[i] - low + span) / (high - low + 2 * span));
  }
  free(page);

  make(1, 1000); /* a few that took far too long; what was expected of some was nothing */
  for (int i = 0; i < 5; i++) all.measured_s[i] = 100;
  all.predicted_s[6] = 0;
  page = draw();
  expect(page, "; 5 of them lie beyond the edge.");
  assert_int_equal(blocks(path_of(page, "fit-chart", "dots")), 1000);
  free(page);
  make(1, 5000);
  page = draw();
  expect(page, "; where they fall on one another, one is drawn.");
  assert_null(strstr(strstr(page, "<svg id=\"fit-chart\""), ">0 s<"));
  assert_true(blocks(path_of(page, "fit-chart", "dots")) <= 7);
  free(page);
}

/* What differs much is drawn from 0 on. */
static void test_fit_from_0(void **state) {
  (void)state;
  make(1, 2);
  all.predicted_s[0] = all.measured_s[0] = 1;
  all.predicted_s[1] = all.measured_s[1] = 3;
  char *page = draw();
  assert_int_equal(count(strstr(page, "<svg id=\"fit-chart\""), ">0 s<"), 2);
  free(page);
}

/* Errors of 0, 4% and -4% are a half, a third and a sixth of all. */
static void test_bins(void **state) {
  (void)state;
  make(1, 600);
  for (int i = 0; i < 600; i++) {
    all.predicted_s[i] = 1;
    all.measured_s[i] = i < 300 ? 1 : i < 500 ? 1.04 : 0.96;
  }
  char *page = draw();
  const char *d = path_of(page, "fit-chart", "bins");
  block b[3];
  assert_int_equal(blocks(d), 3);
  for (int i = 0; i < 3; i++) assert_true(block_of(d, i, &b[i]));
  assert_near(b[0].height, 320 / 3.0);
  assert_near(b[1].height, 320);
  assert_near(b[2].height, 640 / 3.0);
  assert_near(b[2].x - b[1].x, b[1].x - b[0].x);
  assert_near(b[1].x + b[1].width / 2, (470 + 772) / 2.0); /* in the middle */
  expect(page, ">+5%</text>");
  free(page);
}

/* ------------------------------------------------------------------------------- routing */

static const char *const band_kind[] = {"band stay", "band whole", "band split home", "band split"};

/* Of each kind: how many bands, and how wide together. */
static void bands_of(const char *page, const char *kind, int *n, double *width) {
  char class[60];
  snprintf(class, sizeof class, "class=\"%s\"", kind);
  *n = 0;
  *width = 0;
  while ((page = strstr(page, class))) {
    double w;
    assert_int_equal(sscanf(strstr(page, "stroke-width"), "stroke-width=\"%lf", &w), 1);
    *width += w;
    ++*n;
    page++;
  }
}

static void test_routing(void **state) {
  (void)state;
  make(32, 3);
  add_plan("joint");
  const kf_plan *p = all.report.plan;
  int64_t tokens[4] = {0}, n_bands[4] = {0}, most = 0;
  int seqs[3] = {0};
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    int split = p->seq_off[k->seq + 1] - p->seq_off[k->seq] > 1, away = k->source != k->destination;
    tokens[2 * split + away] += k->length;
    n_bands[2 * split + away] += k->length > 0;
    if (c == p->seq_off[k->seq]) seqs[split ? 2 : away]++;
  }
  for (int r = 0; r < 32; r++) {
    most = p->home_rows[r] > most ? p->home_rows[r] : most;
    most = p->hold_rows[r] > most ? p->hold_rows[r] : most;
  }
  assert_true(n_bands[0] > 0 && n_bands[1] > 0 && n_bands[2] > 0 && n_bands[3] > 0);
  char *page = draw(), words[200];
  double token_px = 560.0 / 32 * 0.84 / (double)most;
  for (int k = 0; k < 4; k++) {
    int n;
    double width;
    bands_of(page, band_kind[k], &n, &width);
    assert_int_equal(n, n_bands[k]);
    assert_true(width >= token_px * (double)tokens[k] - 0.01 * n);
    assert_true(width <= token_px * (double)tokens[k] + 0.6 * n);
  }
  assert_int_equal(count(page, "class=\"pulse whole\" pathLength=\"100\""), n_bands[1]);
  assert_int_equal(count(page, "class=\"pulse split\" pathLength=\"100\""), n_bands[3]);
  assert_int_equal(count(page, "class=\"pulse "), n_bands[1] + n_bands[3]);
  snprintf(words, sizeof words,
           "%d stay at home, %d go whole to another rank, %d are split over several.", seqs[0],
           seqs[1], seqs[2]);
  expect(page, words);
  expect(page, "prefers-reduced-motion:no-preference");
  assert_int_equal(blocks(path_of(page, "routing-chart", "work")), 32);
  block b;
  assert_true(block_of(path_of(page, "routing-chart", "planned"), 5, &b));
  double most_s = p->figures.before_step_s;
  assert_near(b.width, 128 * (p->compute_s[5] + p->comm_s[5]) / most_s);
  free(page);
}

/* Not more ranks than rows, but more sequences than bands: those between two ranks share one. */
static void test_joined(void **state) {
  (void)state;
  make(16, 2);
  add_plan("g1b60i256f1s0,g1b2i256f1s0");
  const kf_plan *p = all.report.plan;
  int64_t most = 0;
  for (int r = 0; r < 16; r++) most = p->home_rows[r] > most ? p->home_rows[r] : most;
  assert_true(p->n_chunks > BANDS);
  char *page = draw();
  double width, sum = 0, px = 560.0 / 16 * 0.84 / (double)most;
  int n, n_bands = 0;
  for (int k = 0; k < 4; k++) {
    bands_of(page, band_kind[k], &n, &width);
    sum += width;
    n_bands += n;
  }
  assert_true(n_bands > 16 && n_bands < BANDS);
  assert_true(fabs(sum - px * (double)p->figures.tokens) < 0.6 * n_bands);
  expect(page, "A band is all that goes from one row to another.");
  assert_null(strstr(page, "A row stands for"));
  assert_null(strstr(page, "broadest of"));
  free(page);
}

/* Bands end one beside the other in the nodes of their ranks, and do not overlap there. */
static void test_ends(void **state) {
  (void)state;
  make(2, 3);
  add_plan("g1b2i1024f1s0,g1b2i256f1s0");
  char *page = draw();
  double sum[2] = {0, 0}, low[2] = {1e9, 1e9}, high[2] = {0, 0};
  for (const char *b = page; (b = strstr(b, "<path class=\"band ")); b++) {
    double w, x0, y0, x1, y1, x2, y2, x3, y3;
    assert_int_equal(sscanf(strstr(b, "stroke-width"),
                            "stroke-width=\"%lf\" d=\"M%lf %lfC%lf %lf %lf %lf %lf %lf", &w, &x0,
                            &y0, &x1, &y1, &x2, &y2, &x3, &y3),
                     9);
    int row = y3 > 34 + 92; /* where it is computed */
    sum[row] += w;
    low[row] = fmin(low[row], y3 - w / 2);
    high[row] = fmax(high[row], y3 + w / 2);
  }
  for (int row = 0; row < 2; row++) {
    assert_true(fabs(high[row] - low[row] - sum[row]) < 0.8);
    assert_true(fabs((high[row] + low[row]) / 2 - (34 + 92 * (row + 0.5))) < 0.8);
  }
  free(page);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_timeline), cmocka_unit_test(test_overlong),
    cmocka_unit_test(test_window),   cmocka_unit_test(test_imbalance),
    cmocka_unit_test(test_loss),     cmocka_unit_test(test_columns),
    cmocka_unit_test(test_fit),      cmocka_unit_test(test_fit_from_0),
    cmocka_unit_test(test_joined),   cmocka_unit_test(test_bins),
    cmocka_unit_test(test_routing),  cmocka_unit_test(test_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
