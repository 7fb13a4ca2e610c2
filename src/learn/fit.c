/* SPDX-License-Identifier: Apache-2.0 */
/*
** Measured rows become a cost: rows in the caller's units to rows that curve.c fits and back, five
** fits of four fifths for the error on rows not seen, the power law for comparison, the figures.
**
** Units: lengths over a power of two that makes the longest at most 1, seconds over one near their
** median, both exact. So sums of squares neither overflow nor vanish, whatever is measured.
*/
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "../numbers.h"
#include "../real.h"
#include "../status.h"
#include "curve.h"

enum { FOLDS = 5 };

#define LONGEST_S 86400.0

typedef struct fitting {
  const kf_fit_row *row;
  kfi_curve_rows all;
  int64_t *from;       /* (n) which row stands at a place of `all` */
  int64_t *rank_at;    /* (n_ranks + 1) scratch: where the rows of a rank go */
  int32_t *rank;       /* (all.n_ranks) their numbers: ranks without rows are left out */
  uint8_t *fold;       /* (n) by places */
  kfi_curve curve;     /* of all rows */
  kfi_curve_rows most; /* the rows but one fold's */
  kfi_curve unseen;    /* their curve */
  kfi_curve_work work;
  int len_exp, s_exp; /* units: 2^len_exp tokens, 2^s_exp seconds */
} fitting;

/* -------------------------------------------------------------------------- the input */

static kf_status check_row(const kf_fit_row *row, int64_t i) {
  if (row->len < 1 || row->len > KF_MAX_LEN)
    return kfi_fail(KF_EINVAL, "row %" PRId64 ": a length of %" PRId64 ", expected 1 to %" PRId64,
                    i, row->len, KF_MAX_LEN);
  if (!(row->seconds > 0) || !(row->seconds <= LONGEST_S))
    return kfi_fail(KF_EINVAL, "row %" PRId64 ": %g seconds, expected above 0 and at most %g", i,
                    row->seconds, LONGEST_S);
  if (row->rank < 0 || row->rank >= KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "row %" PRId64 ": rank %" PRId32 ", expected 0 to %d", i, row->rank,
                    KF_MAX_RANKS - 1);
  return KF_OK;
}

static kf_status check_rows(const kf_fit_row *rows, int64_t n, int32_t *n_ranks) {
  kf_status status;
  bool several = false;
  if (n < 3 || n > KF_MAX_SEQS)
    return kfi_fail(KF_EINVAL, "found %" PRId64 " row%s, expected 3 to %" PRId64, n,
                    n == 1 ? "" : "s", KF_MAX_SEQS);
  for (int64_t i = 0; i < n; i++) {
    if ((status = check_row(&rows[i], i))) return status;
    if (rows[i].rank >= *n_ranks) *n_ranks = rows[i].rank + 1;
    several |= rows[i].len != rows[0].len;
  }
  if (several) return KF_OK;
  return kfi_fail(KF_EINVAL,
                  "all %" PRId64 " rows have the length %" PRId64
                  ", expected at least 2 different lengths",
                  n, rows[0].len);
}

static void lay(kfi_layout *layout, int64_t n, int32_t n_ranks, fitting *f) {
  kfi_curve_rows *rows[2] = {&f->all, &f->most};
  int32_t n_seen = n < n_ranks ? (int32_t)n : n_ranks; /* at most */
  for (int k = 0; k < 2; k++) {
    rows[k]->x = KFI_TAKE(layout, double, n);
    rows[k]->y = KFI_TAKE(layout, double, n);
    rows[k]->off = KFI_TAKE(layout, int64_t, n_seen + 1);
  }
  f->from = KFI_TAKE(layout, int64_t, n);
  f->rank_at = KFI_TAKE(layout, int64_t, n_ranks + 1);
  f->rank = KFI_TAKE(layout, int32_t, n_seen);
  f->fold = KFI_TAKE(layout, uint8_t, n);
  f->unseen.slow = KFI_TAKE(layout, double, n_seen);
  f->unseen.keep = KFI_TAKE(layout, uint8_t, n);
  kfi_curve_lay(layout, n, n_seen, &f->work, &f->curve);
}

/* The exponent of the median of the seconds, by counting exponents. */
static int middle_exponent(const kf_fit_row *row, int64_t n) {
  enum { LOW = -1080, HIGH = 20 };
  int64_t count[HIGH - LOW] = {0}, below = 0;
  int e;
  for (int64_t i = 0; i < n; i++) {
    frexp(row[i].seconds, &e);
    count[e - LOW]++;
  }
  for (e = LOW; 2 * (below += count[e - LOW]) < n; e++) {}
  return e;
}

/* By rank, in the order of the rows within one. */
static void sort_by_rank(fitting *f, int64_t n, int32_t n_ranks) {
  int64_t longest = 0, *at = f->rank_at, first = 0;
  kfi_curve_rows *all = &f->all;
  for (int32_t r = 0; r <= n_ranks; r++) at[r] = 0;
  for (int64_t i = 0; i < n; i++) {
    if (f->row[i].len > longest) longest = f->row[i].len;
    at[f->row[i].rank]++;
  }
  for (int32_t r = 0; r < n_ranks; r++) {
    int64_t count = at[r];
    at[r] = first;
    if (count == 0) continue;
    f->rank[all->n_ranks] = r;
    all->off[all->n_ranks++] = first;
    first += count;
  }
  all->off[all->n_ranks] = all->n = n;
  f->most.n_ranks = all->n_ranks;
  frexp((double)longest, &f->len_exp);
  f->s_exp = middle_exponent(f->row, n);
  for (int64_t i = 0; i < n; i++) {
    int64_t to = at[f->row[i].rank]++;
    f->from[to] = i;
    all->x[to] = ldexp((double)f->row[i].len, -f->len_exp);
    all->y[to] = fmin(fmax(ldexp(f->row[i].seconds, -f->s_exp), 1e-60), 1e60);
  }
}

/* ------------------------------------------------------------------------ the figures */

/* What the curve without a fold says of it: the sum of relative errors of rows that the fit of all
** kept, and their number. Nothing where the other rows are of one length. */
static double fold_error(fitting *f, int fold, int64_t *n_scored) {
  kfi_curve_rows *most = &f->most;
  bool several = false;
  double sum = 0;
  most->n = 0;
  for (int32_t g = 0; g < f->all.n_ranks; g++) {
    most->off[g] = most->n;
    for (int64_t i = f->all.off[g]; i < f->all.off[g + 1]; i++) {
      if (f->fold[i] == fold) continue;
      most->x[most->n] = f->all.x[i];
      most->y[most->n] = f->all.y[i];
      several |= most->x[most->n] != most->x[0];
      most->n++;
    }
  }
  most->off[most->n_ranks] = most->n;
  if (!several) return 0;
  kfi_curve_fit(most, &f->work, &f->unseen);
  for (int32_t g = 0; g < f->all.n_ranks; g++)
    for (int64_t i = f->all.off[g]; i < f->all.off[g + 1]; i++) {
      if (f->fold[i] != fold || !f->curve.keep[i]) continue;
      double predicted = f->unseen.slow[g] * kfi_curve_at(f->unseen.a, f->all.x[i]);
      sum += fabs(predicted / f->all.y[i] - 1);
      *n_scored += 1;
    }
  return sum;
}

/* Folds of equal size, dealt at random: files often repeat lengths or ranks in a fixed order. */
static double holdout(fitting *f, double otherwise) {
  int64_t n = f->all.n, n_scored = 0;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) f->fold[i] = (uint8_t)(i % FOLDS);
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t k = (int64_t)(kfi_mix64((uint64_t)i) % (uint64_t)(i + 1));
    uint8_t other = f->fold[k];
    f->fold[k] = f->fold[i];
    f->fold[i] = other;
  }
  for (int fold = 0; fold < FOLDS; fold++) sum += fold_error(f, fold, &n_scored);
  return n_scored > 0 ? sum / (double)n_scored : otherwise;
}

/* Errors of the curve over the kept rows. */
static void measure(const fitting *f, kf_fit *out) {
  const kfi_curve_rows *rows = &f->all;
  double mean = 0, total = 0, left = 0, error = 0, n = 0;
  for (int64_t i = 0; i < rows->n; i++)
    if (f->curve.keep[i]) mean += rows->y[i], n++;
  mean /= n;
  for (int32_t g = 0; g < rows->n_ranks; g++)
    for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
      if (!f->curve.keep[i]) continue;
      double predicted = f->curve.slow[g] * kfi_curve_at(f->curve.a, rows->x[i]);
      total += (rows->y[i] - mean) * (rows->y[i] - mean);
      left += (rows->y[i] - predicted) * (rows->y[i] - predicted);
      error += fabs(predicted / rows->y[i] - 1);
    }
  out->r2 = total > 0 ? 1 - left / total : left > 0 ? 0 : 1;
  out->mape = error / n;
  out->n_outliers = rows->n - (int64_t)n;
}

/* log seconds = log power_s + power_p log len, over the kept rows, with the ranks' slowness taken
** out: the usual fit. Relative errors are errors of the logarithm, so weights are equal. */
static void fit_power(const fitting *f, kf_fit *out) {
  const kfi_curve_rows *rows = &f->all;
  double n = 0, u = 0, v = 0, uu = 0, uv = 0, error = 0;
  for (int pass = 0; pass < 3; pass++) {
    for (int32_t g = 0; g < rows->n_ranks; g++)
      for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
        if (!f->curve.keep[i]) continue;
        double log_x = kfi_log(rows->x[i]), log_y = kfi_log(rows->y[i] / f->curve.slow[g]);
        if (pass == 0) n++, u += log_x, v += log_y;
        if (pass == 1) uu += (log_x - u) * (log_x - u), uv += (log_x - u) * (log_y - v);
        if (pass == 2) error += fabs(kfi_exp(v + out->power_p * (log_x - u) - log_y) - 1);
      }
    if (pass == 0) u /= n, v /= n;
    if (pass == 1) out->power_p = uv / uu;
  }
  out->power_s = kfi_exp(v - out->power_p * (u + f->len_exp * (KFI_LN2_HIGH + KFI_LN2_LOW)) +
                         f->s_exp * (KFI_LN2_HIGH + KFI_LN2_LOW));
  out->power_mape = error / n;
}

/* ---------------------------------------------------------------------------- the calls */

/* The slowness of the median rank of those that have rows, the lower one of two. */
static double median_rank(const fitting *f) {
  kfi_weighted *v = f->work.sorted; /* no more ranks than rows */
  for (int32_t g = 0; g < f->all.n_ranks; g++) v[g] = (kfi_weighted){f->curve.slow[g], 1};
  return kfi_weighted_quantile(v, f->all.n_ranks, 0.5);
}

static void write_fit(const fitting *f, double *slowness, uint8_t *outlier, kf_fit *out) {
  double middle = median_rank(f);
  out->linear_s = ldexp(f->curve.a[0] * middle, f->s_exp - f->len_exp);
  out->quadratic_s = ldexp(f->curve.a[1] * middle, f->s_exp - 2 * f->len_exp);
  out->constant_s = ldexp(f->curve.a[2] * middle, f->s_exp);
  out->power_s = fmin(out->power_s * middle, 1e300);
  for (int32_t r = 0; slowness && r < out->n_ranks; r++) slowness[r] = 1; /* without rows */
  for (int32_t g = 0; slowness && g < f->all.n_ranks; g++)
    slowness[f->rank[g]] = f->curve.slow[g] / middle;
  for (int64_t i = 0; outlier && i < f->all.n; i++) outlier[f->from[i]] = !f->curve.keep[i];
}

kf_status kf_fit_rows(const kf_fit_row *rows, int64_t n_rows, double *slowness, uint8_t *outlier,
                      kf_fit *out) {
  kf_status status;
  int32_t n_ranks = 1;
  if (!rows || !out) return kfi_fail(KF_EINVAL, "kf_fit_rows: rows or out is NULL");
  if ((status = check_rows(rows, n_rows, &n_ranks))) return status;

  fitting f = {.row = rows};
  kfi_layout layout = {0};
  kfi_buffer buffer = {0};
  lay(&layout, n_rows, n_ranks, &f);
  if (!kfi_layout_reserve(&layout, &buffer)) return KF_ENOMEM;
  lay(&layout, n_rows, n_ranks, &f);

  kf_fit fit = {.n_rows = n_rows, .n_ranks = n_ranks};
  sort_by_rank(&f, n_rows, n_ranks);
  kfi_curve_fit(&f.all, &f.work, &f.curve);
  measure(&f, &fit);
  fit_power(&f, &fit);
  fit.holdout_mape = holdout(&f, fit.mape);
  write_fit(&f, slowness, outlier, &fit);
  kfi_buffer_free(&buffer);
  *out = fit;
  return KF_OK;
}

double kf_fit_gamma(const kf_fit *fit, const kf_model *model) {
  if (!(fit->quadratic_s > 0)) return 0;
  return fit->linear_s > 0 ? 6.0 * model->dim * fit->quadratic_s / fit->linear_s : INFINITY;
}
