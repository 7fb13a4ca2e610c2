/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <knapformer.h>

#include "dice.h"
#include "fail_alloc.h"

enum { N = 200, SHORTEST = 256, LONGEST = 65536 };

static double gauss(dice *d) {
  double u = dice_real(d, 1e-12, 1), v = dice_real(d, 0, 1);
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* The cost of flux with a constant worth so many tokens. */
static kf_cost truth(double gamma, double constant_tokens) {
  kf_cost cost;
  assert_int_equal(kf_cost_preset("flux", NULL, 32, gamma, &cost), KF_OK);
  cost.constant_s = cost.linear_s * constant_tokens;
  return cost;
}

typedef struct measurement {
  kf_fit_row row[N];
  uint8_t off[N]; /* is an outlier */
} measurement;

/* Lengths drawn evenly, or evenly by their logarithm; `noise` relative; a share of outliers, times
** 10, or if `both` also times 0.1. */
typedef struct recipe {
  bool by_log, both;
  double noise, outliers;
} recipe;

static void measure(dice *d, const kf_cost *cost, const recipe *how, measurement *m) {
  for (int i = 0; i < N; i++) {
    double l = how->by_log ? exp(dice_real(d, log(SHORTEST), log(LONGEST)))
                           : dice_real(d, SHORTEST, LONGEST);
    double z = gauss(d), lot = dice_real(d, 0, 1);
    bool up = !how->both || dice_one_in(d, 2);
    m->off[i] = lot < how->outliers;
    m->row[i] = (kf_fit_row){.len = llround(l)};
    m->row[i].seconds = kf_cost_work(cost, m->row[i].len) * (1 + how->noise * z) *
                        (!m->off[i] ? 1
                         : up       ? 10
                                    : 0.1);
  }
}

/* The largest relative error of a curve anywhere in the range of lengths. */
static double worst(const double a[3], const kf_cost *cost) {
  double most = 0;
  for (double l = SHORTEST; l <= LONGEST; l *= 1.02) {
    double is = a[0] * l + a[1] * l * l + a[2];
    double should = cost->linear_s * l + cost->quadratic_s * l * l + cost->constant_s;
    most = fmax(most, fabs(is / should - 1));
  }
  return most;
}

static kf_fit fit_all(const kf_fit_row *rows, int64_t n, double *slowness, uint8_t *outlier) {
  kf_fit fit;
  kf_status status = kf_fit_rows(rows, n, slowness, outlier, &fit);
  if (status) fail_msg("%s", kf_last_error());
  return fit;
}

/* ------------------------------------------------------------------------------ quality */

/* Determinant of columns p, q, r. */
static double det(const double p[3], const double q[3], const double r[3]) {
  return p[0] * (q[1] * r[2] - q[2] * r[1]) - q[0] * (p[1] * r[2] - p[2] * r[1]) +
         r[0] * (p[1] * q[2] - p[2] * q[1]);
}

/* Least squares by one who knows the true weights and the outliers: each term that is not wanted,
** or comes out negative in every other way, is left out. What an estimate could reach at best. */
static double oracle(const measurement *m, const kf_cost *cost) {
  double G[3][3] = {{0}}, b[3] = {0}, least = INFINITY, best[3] = {0};
  for (int i = 0; i < N; i++) {
    if (m->off[i]) continue;
    double l = (double)m->row[i].len / 1e4, f = kf_cost_work(cost, m->row[i].len);
    double x[3] = {l / f, l * l / f, 1 / f};
    for (int j = 0; j < 3; j++) {
      b[j] += x[j] * m->row[i].seconds / f;
      for (int k = 0; k < 3; k++) G[j][k] += x[j] * x[k];
    }
  }
  for (int set = 1; set < 8; set++) {
    double M[3][3], t[3], a[3], value = 0;
    for (int j = 0; j < 3; j++) {
      bool in = set >> j & 1;
      t[j] = in ? b[j] : 0;
      for (int k = 0; k < 3; k++) M[k][j] = in && set >> k & 1 ? G[k][j] : j == k;
    }
    double all = det(M[0], M[1], M[2]);
    a[0] = det(t, M[1], M[2]) / all;
    a[1] = det(M[0], t, M[2]) / all;
    a[2] = det(M[0], M[1], t) / all;
    for (int j = 0; j < 3; j++) {
      value -= 2 * a[j] * t[j];
      for (int k = 0; k < 3; k++) value += set >> j & set >> k & 1 ? a[j] * G[j][k] * a[k] : 0;
    }
    if (a[0] < 0 || a[1] < 0 || a[2] < 0 || !(value < least)) continue;
    least = value;
    memcpy(best, a, sizeof best);
  }
  const double per_token[3] = {best[0] / 1e4, best[1] / 1e8, best[2]};
  return worst(per_token, cost);
}

/*
** 200 rows of 5% noise and 3% of outliers: how many of 100 seeds predict within 3% and within 2% of
** the truth, everywhere from 256 to 65536 tokens. `want` is what must be reached.
*/
static void test_quality(void **state) {
  (void)state;
  static const struct {
    bool by_log;
    double gamma, constant_tokens;
    int want3, want2;
  } cases[] = {{false, 0.4, 0, 97, 85},
               {true, 0.4, 0, 97, 85},
               {true, 1.2, 500, 97, 85},
               {true, 0.4, 50, 95, 78}};
  printf("lengths  gamma  constant    within 3%% / 2%%   oracle\n");
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    const recipe how = {.by_log = cases[k].by_log, .noise = 0.05, .outliers = 0.03};
    kf_cost cost = truth(cases[k].gamma, cases[k].constant_tokens);
    int ours3 = 0, ours2 = 0, oracle3 = 0, oracle2 = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
      dice d = {seed * 7919 + 1};
      measurement m;
      measure(&d, &cost, &how, &m);
      kf_fit fit = fit_all(m.row, N, NULL, NULL);
      const double a[3] = {fit.linear_s, fit.quadratic_s, fit.constant_s};
      double ours = worst(a, &cost), theirs = oracle(&m, &cost);
      ours3 += ours < 0.03;
      ours2 += ours < 0.02;
      oracle3 += theirs < 0.03;
      oracle2 += theirs < 0.02;
    }
    printf("%-7s  %5.1f  %3.0f tokens    %3d / %3d        %3d / %3d\n",
           cases[k].by_log ? "by log" : "evenly", cases[k].gamma, cases[k].constant_tokens, ours3,
           ours2, oracle3, oracle2);
    assert_true(ours3 >= cases[k].want3 && ours2 >= cases[k].want2);
  }
}

/* Many outliers, up and down: all are found, few others are, and predictions stay good. */
static void test_outliers(void **state) {
  (void)state;
  for (int both = 0; both < 2; both++) {
    const recipe how = {.by_log = true, .both = both, .noise = 0.05, .outliers = 0.28};
    int good = 0, missed = 0, extra = 0;
    for (uint64_t seed = 0; seed < 25; seed++) {
      dice d = {seed + 500};
      measurement m;
      uint8_t outlier[N];
      kf_cost cost = truth(0.4, 100);
      measure(&d, &cost, &how, &m);
      kf_fit fit = fit_all(m.row, N, NULL, outlier);
      const double a[3] = {fit.linear_s, fit.quadratic_s, fit.constant_s};
      good += worst(a, &cost) < 0.04;
      for (int i = 0; i < N; i++) {
        missed += m.off[i] && !outlier[i];
        extra += !m.off[i] && outlier[i];
      }
    }
    assert_int_equal(missed, 0);
    assert_true(extra <= 2 && good >= 23);
  }
}

/* ------------------------------------------------------------------------------ figures */

static double predict(const kf_fit *f, const kf_fit_row *row) {
  double l = (double)row->len;
  return f->linear_s * l + f->quadratic_s * l * l + f->constant_s;
}

/* Every figure, computed from the rows that were kept by its definition. */
static void test_figures(void **state) {
  (void)state;
  dice d = {11};
  measurement m;
  uint8_t outlier[N];
  double slowness[4], n = 0, mean = 0, left = 0, total = 0, error = 0;
  double u = 0, v = 0, uu = 0, uv = 0, power_error = 0;
  kf_cost cost = truth(0.4, 0);
  const recipe how = {.by_log = true, .noise = 0.05, .outliers = 0.03};
  measure(&d, &cost, &how, &m);
  for (int i = 0; i < N; i++) {
    m.row[i].rank = i % 4;
    m.row[i].seconds *= 1 + 0.2 * (i % 4);
  }
  kf_fit f = fit_all(m.row, N, slowness, outlier);
  for (int i = 0; i < N; i++) {
    if (outlier[i]) continue;
    n++;
    mean += m.row[i].seconds;
    u += log((double)m.row[i].len);
    v += log(m.row[i].seconds / slowness[i % 4]);
  }
  mean /= n, u /= n, v /= n;
  for (int i = 0; i < N; i++) {
    if (outlier[i]) continue;
    double y = m.row[i].seconds, p = predict(&f, &m.row[i]) * slowness[i % 4];
    double du = log((double)m.row[i].len) - u;
    error += fabs(p / y - 1);
    left += (y - p) * (y - p);
    total += (y - mean) * (y - mean);
    uu += du * du;
    uv += du * (log(y / slowness[i % 4]) - v);
  }
  for (int i = 0; i < N; i++) {
    double p = f.power_s * pow((double)m.row[i].len, f.power_p) * slowness[i % 4];
    if (!outlier[i]) power_error += fabs(p / m.row[i].seconds - 1);
  }
  assert_int_equal(f.n_rows, N);
  assert_int_equal(f.n_outliers, N - (int)n);
  assert_int_equal(f.n_ranks, 4);
  assert_true(fabs(f.mape - error / n) < 1e-12);
  assert_true(fabs(f.r2 - (1 - left / total)) < 1e-12);
  assert_true(fabs(f.power_p - uv / uu) < 1e-10);
  assert_true(fabs(f.power_mape - power_error / n) < 1e-10);
  assert_true(f.holdout_mape > f.mape && f.holdout_mape < 1.15 * f.mape);
  assert_true(f.power_mape > 2 * f.mape);
  assert_true(slowness[1] == 1); /* the lower one of the two in the middle */
  assert_true(fabs(slowness[3] / slowness[0] - 1.6) < 0.06);
}

static void test_gamma(void **state) {
  (void)state;
  kf_model flux;
  kf_cost cost = truth(0.7, 0);
  assert_int_equal(kf_model_parse("flux", &flux), KF_OK);
  kf_fit fit = {.linear_s = cost.linear_s, .quadratic_s = cost.quadratic_s};
  assert_true(fabs(kf_fit_gamma(&fit, &flux) - 0.7) < 1e-12);
  fit.linear_s = 0;
  assert_true(isinf(kf_fit_gamma(&fit, &flux)));
  fit.quadratic_s = 0;
  assert_true(kf_fit_gamma(&fit, &flux) == 0);
}

/* -------------------------------------------------------------------------- odd inputs */

/* Rows of 1e-4 l + 1e-8 l^2 + constant at 1000, 2000, .. tokens. */
static void exact_rows(kf_fit_row *row, int n, double constant_s) {
  for (int i = 0; i < n; i++) {
    double l = 1000 * (i + 1);
    row[i] = (kf_fit_row){1000 * (i + 1), 1e-4 * l + 1e-8 * l * l + constant_s, 0};
  }
}

static void assert_finite(const kf_fit *f) {
  assert_true(f->linear_s >= 0 && f->quadratic_s >= 0 && f->constant_s >= 0);
  assert_true(f->linear_s + f->quadratic_s + f->constant_s > 0);
  assert_true(isfinite(f->linear_s) && isfinite(f->quadratic_s) && isfinite(f->constant_s));
  assert_true(isfinite(f->r2) && isfinite(f->mape) && isfinite(f->holdout_mape));
  assert_true(isfinite(f->power_p) && isfinite(f->power_s) && isfinite(f->power_mape));
  assert_true(f->n_outliers >= 0 && f->n_outliers < f->n_rows);
}

static void test_exact(void **state) {
  (void)state;
  kf_fit_row row[N];
  for (int n = 3; n <= N; n += n < 10 ? 1 : 19) {
    for (int with = 0; with < 2; with++) {
      exact_rows(row, n, with ? 0.05 : 0);
      kf_fit f = fit_all(row, n, NULL, NULL);
      assert_finite(&f);
      assert_true(fabs(f.linear_s / 1e-4 - 1) < 1e-6);
      assert_true(fabs(f.quadratic_s / 1e-8 - 1) < 1e-6);
      assert_true(fabs(f.constant_s - (with ? 0.05 : 0)) < 1e-7);
      assert_int_equal(f.n_outliers, 0);
      assert_true(f.mape < 1e-8 && f.r2 > 1 - 1e-12);
    }
  }
  exact_rows(row, N, 0.05); /* one row in seven is off: it is found, and nothing else changes */
  for (int i = 0; i < N; i += 7) row[i].seconds *= 10;
  kf_fit f = fit_all(row, N, NULL, NULL);
  assert_int_equal(f.n_outliers, 29);
  assert_true(fabs(f.constant_s - 0.05) < 1e-7);
}

/* A thousand pictures of one length, and twenty videos, which alone show the curve. */
static void test_majority(void **state) {
  (void)state;
  enum { MANY = 1000 };
  static kf_fit_row row[MANY];
  dice d = {3};
  for (int i = 0; i < MANY; i++) {
    double l = i < 980 ? 4096 : 10000 + 1000 * (i - 980), z = gauss(&d);
    row[i] = (kf_fit_row){(int64_t)l, (1e-4 * l + 1e-8 * l * l) * (1 + 0.01 * z), 0};
  }
  kf_fit f = fit_all(row, MANY, NULL, NULL);
  assert_true(f.n_outliers < 3);
  assert_true(fabs(predict(&f, &(kf_fit_row){.len = 25000}) / 8.75 - 1) < 0.02);
}

static void test_ranks(void **state) {
  (void)state;
  static double slowness[KF_MAX_RANKS];
  kf_fit_row row[N];
  dice d = {5};
  /* One rank of eight is three times slower, and only one had the long sequences. */
  exact_rows(row, N, 0);
  for (int i = 0; i < N; i++) {
    row[i].rank = i < 100 ? i % 7 : 7;
    row[i].seconds *= (row[i].rank == 3 ? 3 : row[i].rank == 7 ? 2 : 1) * (1 + 0.02 * gauss(&d));
  }
  kf_fit f = fit_all(row, N, slowness, NULL);
  assert_int_equal(f.n_outliers, 0);
  assert_true(fabs(slowness[3] - 3) < 0.1 && fabs(slowness[7] - 2) < 0.1);
  assert_true(fabs(f.linear_s / 1e-4 - 1) < 0.05 && fabs(f.quadratic_s / 1e-8 - 1) < 0.05);
  /* A rank for every row: nothing is known of them, and the curve is as without ranks. */
  exact_rows(row, N, 0);
  for (int i = 0; i < N; i++) row[i].seconds *= 1 + 0.05 * gauss(&d);
  kf_fit one = fit_all(row, N, NULL, NULL);
  for (int i = 0; i < N; i++) row[i].rank = i;
  f = fit_all(row, N, slowness, NULL);
  assert_true(fabs(f.linear_s / one.linear_s - 1) < 0.01);
  for (int i = 0; i < N; i++) assert_true(slowness[i] == 1);
  /* The last rank alone, as large as its number may be. */
  for (int i = 0; i < N; i++) row[i].rank = KF_MAX_RANKS - 1;
  f = fit_all(row, N, slowness, NULL);
  assert_int_equal(f.n_ranks, KF_MAX_RANKS);
  assert_true(f.linear_s == one.linear_s && slowness[0] == 1 && slowness[KF_MAX_RANKS - 1] == 1);
}

static void test_two_lengths(void **state) {
  (void)state;
  kf_fit_row row[20];
  for (int i = 0; i < 20; i++) row[i] = (kf_fit_row){i % 2 ? 1000 : 3000, i % 2 ? 0.11 : 0.39, 0};
  kf_fit f = fit_all(row, 20, NULL, NULL);
  assert_true(f.constant_s == 0 && fabs(f.linear_s / 1e-4 - 1) < 1e-9);
  assert_true(fabs(f.quadratic_s / 1e-8 - 1) < 1e-9);
  for (int i = 0; i < 20; i++) row[i].seconds = i % 2 ? 0.2 : 0.3; /* less than linear */
  f = fit_all(row, 20, NULL, NULL);
  assert_true(fabs(f.constant_s / 0.15 - 1) < 1e-6 && fabs(f.linear_s / 5e-5 - 1) < 1e-6);
  for (int i = 0; i < 20; i++) row[i].seconds = i % 2 ? 0.1 : 10; /* more than quadratic */
  f = fit_all(row, 20, NULL, NULL);
  assert_finite(&f);
  assert_true(f.linear_s == 0 && f.constant_s == 0);
}

/* Whatever is measured, there is a curve of finite numbers. */
static void test_anything(void **state) {
  (void)state;
  dice d = {9};
  kf_fit_row row[N];
  for (int round = 0; round < 150; round++) {
    int64_t n = dice_one_in(&d, 2) ? 3 + dice_int(&d, 9) : 3 + dice_int(&d, N - 2);
    int64_t kind = dice_int(&d, 6), n_ranks = dice_one_in(&d, 2) ? 1 : 1 + dice_int(&d, 30);
    double wide = dice_one_in(&d, 3) ? 700 : 5, longest = exp(dice_real(&d, 1, 22.18));
    for (int64_t i = 0; i < n; i++) {
      double l = 1 + floor(dice_real(&d, 0, longest)), s = exp(dice_real(&d, -wide, 5));
      if (kind == 1) s = 1e-6 * l;
      if (kind == 2) s = 1e-15 * l * l * (i % 2 ? 1 : 10);
      if (kind == 3) s = 7;
      if (kind == 4) s = i % 4 ? 5e-324 : 86400;
      if (kind == 5) s = 86400 / l;
      row[i] =
        (kf_fit_row){(int64_t)l, fmin(fmax(s, 5e-324), 86400), (int32_t)dice_int(&d, n_ranks)};
    }
    row[0].len = row[1].len + 1;
    double slowness[30];
    kf_fit f = fit_all(row, n, slowness, NULL);
    if (kind != 4) assert_finite(&f); /* of 5e-324 s, coefficients may vanish */
    for (int32_t r = 0; r < f.n_ranks; r++) assert_true(slowness[r] > 0 && isfinite(slowness[r]));
  }
}

/* The bits, as they were once: every compiler must find them again. No libm above the rows. */
static void test_bits(void **state) {
  (void)state;
  dice d = {77};
  kf_fit_row row[N];
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < N; i++) {
    double l = (double)(256 + dice_int(&d, 60000)), noise = dice_real(&d, 0.9, 1.1);
    bool off = dice_one_in(&d, 30);
    int32_t rank = (int32_t)dice_int(&d, 5);
    row[i] = (kf_fit_row){(int64_t)l, (1e-4 * l + 1e-8 * l * l) * noise * (off ? 10 : 1), rank};
  }
  double slowness[5];
  kf_fit f = fit_all(row, N, slowness, NULL);
  double number[14] = {f.linear_s,     f.quadratic_s, f.constant_s, f.r2,         f.mape,
                       f.holdout_mape, f.power_s,     f.power_p,    f.power_mape, slowness[0],
                       slowness[1],    slowness[2],   slowness[3],  slowness[4]};
  for (int i = 0; i < 14; i++) {
    uint64_t bits;
    memcpy(&bits, &number[i], sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  if (hash != 0xabd379ba2ff414e0u)
    fail_msg("0x%llx: linear_s %.17g", (unsigned long long)hash, f.linear_s);
}

static void test_bad(void **state) {
  (void)state;
  kf_fit_row row[4];
  kf_fit fit = {.mape = 42};
  static const struct {
    kf_fit_row row;
    const char *want;
  } bad[] = {{{0, 1, 0}, "row 2: a length of 0, expected 1 to 4294967296"},
             {{KF_MAX_LEN + 1, 1, 0}, "a length of 4294967297"},
             {{5, 0, 0}, "row 2: 0 seconds, expected above 0 and at most 86400"},
             {{5, -1, 0}, "-1 seconds"},
             {{5, NAN, 0}, "nan seconds"},
             {{5, INFINITY, 0}, "inf seconds"},
             {{5, 86401, 0}, "86401 seconds"},
             {{5, 1, -1}, "row 2: rank -1, expected 0 to 1048575"},
             {{5, 1, KF_MAX_RANKS}, "rank 1048576"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    exact_rows(row, 4, 0);
    row[2] = bad[i].row;
    assert_int_equal(kf_fit_rows(row, 4, NULL, NULL, &fit), KF_EINVAL);
    assert_non_null(strstr(kf_last_error(), bad[i].want));
  }
  exact_rows(row, 4, 0);
  assert_int_equal(kf_fit_rows(row, 2, NULL, NULL, &fit), KF_EINVAL);
  assert_string_equal(kf_last_error(), "found 2 rows, expected 3 to 1073741824");
  assert_int_equal(kf_fit_rows(row, -1, NULL, NULL, &fit), KF_EINVAL);
  assert_int_equal(kf_fit_rows(NULL, 4, NULL, NULL, &fit), KF_EINVAL);
  assert_int_equal(kf_fit_rows(row, 4, NULL, NULL, NULL), KF_EINVAL);
  for (int i = 0; i < 4; i++) row[i].len = 4096;
  assert_int_equal(kf_fit_rows(row, 4, NULL, NULL, &fit), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "all 4 rows have the length 4096, expected at least 2 different lengths");
  assert_true(fit.mape == 42); /* written only on success */
}

static void test_memory(void **state) {
  (void)state;
  kf_fit_row row[4];
  exact_rows(row, 4, 0);
  for (long k = 1;; k++) {
    kf_fit fit = {.mape = 42};
    fail_alloc(k);
    kf_status status = kf_fit_rows(row, 4, NULL, NULL, &fit);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_true(fit.mape == 42);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_quality),  cmocka_unit_test(test_outliers),
    cmocka_unit_test(test_figures),  cmocka_unit_test(test_gamma),
    cmocka_unit_test(test_exact),    cmocka_unit_test(test_majority),
    cmocka_unit_test(test_ranks),    cmocka_unit_test(test_two_lengths),
    cmocka_unit_test(test_anything), cmocka_unit_test(test_bits),
    cmocka_unit_test(test_bad),      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
