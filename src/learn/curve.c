/* SPDX-License-Identifier: Apache-2.0 */
/*
** A robust fit of seconds = (A x + B x^2 + C) * slow[rank], all of them at least 0.
**
**     sample    at most some 1000 rows, a few of every length
**     start     the best of a grid of shapes, by a loss that does not see how far an outlier is
**     approach  that loss, descended on the sample
**     settle    least squares of relative errors over the rows within 4 sigma, until they stay
**     constant  is C worth its uncertainty?
**
** Why a grid and no random subsets of three rows: with centres taken by medians a shape has two
** parameters only, each a crossing point on the length axis, so some 100 shapes are everything.
** Three rows with 5% noise often give a shape that fits nothing else.
**
** Why lengths are balanced in the sample: a thousand pictures of 4096 tokens and twenty videos say
** nothing about the curve where they are counted by rows: every shape fits the majority, the wrong
** ones find the videos to be outliers. Only the last step counts rows, where it is efficient.
**
** Ranks are random effects: their slowness is shrunk to 1 as far as its own rows cannot tell it
** from noise, so that many ranks of few rows each do not use up the data, and one of many rows that
** is three times slower is not held back. The curve is solved for together with the ranks (Schur
** complement): alternating between the two creeps where ranks differ in the lengths they got.
**
** Cost: O(n) a pass, some 40 passes, and up to 800 shapes times the sample.
** Sums run in the order of the rows; log and exp are ours: the same bits everywhere.
*/
#include "curve.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../numbers.h"
#include "../real.h"

enum {
  SAMPLE_MAX = 1024,    /* fewer rows than this are all in the sample */
  BINS_PER_OCTAVE = 16, /* of lengths */
  N_BINS = 34 * BINS_PER_OCTAVE,
  ROWS_PER_BIN = 4, /* more of one length have no more voice than these */
  OWN_ROWS = 3,     /* a rank of fewer has no centre of its own in the start */
  MAX_STEPS = 40,   /* of settle; about 6 are taken */
  APPROACH_STEPS = 20
};

#define FAR 0.5        /* log seconds: beyond, an outlier is an outlier */
#define NEAR 0.02      /* log seconds: below, errors count squared, above linearly */
#define CUT_SIGMA 4    /* an outlier is further off than this; 1 in 16000 honest rows is */
#define CUT_LEAST 1e-3 /* and further than this: exact rows have no sigma */
#define SIGMA_PART                                                                                 \
  0.58 /* sigma is read off where so many of the errors lie below: 42% of outliers */
#define SIGMA_Z 0.80642 /* do not reach it. Of a normal variable, |z| < 0.806 has 58% */

/* ------------------------------------------------------------------------ small tools */

static int by_value(const void *left, const void *right) {
  const kfi_weighted *a = left, *b = right;
  if (a->value != b->value) return a->value < b->value ? -1 : 1;
  return (a->weight > b->weight) - (a->weight < b->weight); /* or sums would depend on qsort */
}

/* Quickselect: the halves that cannot hold the quantile are not sorted. Should pivots be bad ones
** again and again, what is left is sorted after all. */
double kfi_weighted_quantile(kfi_weighted *v, int64_t n, double part) {
  double want = 0, below = 0;
  for (int64_t i = 0; i < n; i++) want += part * v[i].weight;
  for (int k = 0; k < 64; k++) {
    double p = v[0].value, q = v[n / 2].value, r = v[n - 1].value, less = 0, equal = 0;
    double pivot = fmax(fmin(p, q), fmin(fmax(p, q), r)); /* the middle one */
    int64_t low = 0, high = n;
    for (int64_t i = 0; i < high;) { /* | below the pivot | equal | not seen | above | */
      kfi_weighted at = v[i];
      if (at.value < pivot) {
        less += at.weight;
        v[i++] = v[low];
        v[low++] = at;
      } else if (at.value > pivot) {
        v[i] = v[--high];
        v[high] = at;
      } else {
        equal += at.weight;
        i++;
      }
    }
    if (low > 0 && below + less >= want) {
      n = low;
    } else if (high == n || below + less + equal >= want) {
      return pivot;
    } else {
      below += less + equal;
      v += high;
      n -= high;
    }
  }
  qsort(v, (size_t)n, sizeof *v, by_value);
  for (int64_t i = 0; i < n - 1; i++)
    if ((below += v[i].weight) >= want) return v[i].value;
  return v[n - 1].value;
}

/* G a = b for the unknowns in `support` (bit k: unknown k), the others are 0. By Cholesky of the
** matrix scaled to a diagonal of 1. False where that is singular but for rounding. */
static bool solve(double G[3][3], const double b[3], unsigned support, double a[3]) {
  double L[3][3], s[3], y[3];
  int k[3], n = 0;
  for (int i = 0; i < 3; i++) {
    a[i] = 0;
    if (support >> i & 1) k[n++] = i;
  }
  for (int i = 0; i < n; i++) {
    if (!(G[k[i]][k[i]] > 0)) return false;
    s[i] = 1 / sqrt(G[k[i]][k[i]]);
    y[i] = b[k[i]] * s[i];
    for (int j = 0; j <= i; j++) {
      double sum = G[k[i]][k[j]] * s[i] * s[j];
      for (int m = 0; m < j; m++) sum -= L[i][m] * L[j][m];
      if (i == j && !(sum > 1e-11)) return false;
      L[i][j] = i == j ? sqrt(sum) : sum / L[j][j];
    }
    for (int m = 0; m < i; m++) y[i] -= L[i][m] * y[m];
    y[i] /= L[i][i];
  }
  for (int i = n - 1; i >= 0; i--) {
    for (int m = i + 1; m < n; m++) y[i] -= L[m][i] * y[m];
    y[i] /= L[i][i];
    a[k[i]] = y[i] * s[i];
  }
  return true;
}

/*
** The a >= 0 that is least in a'Ga - 2a'b, its last element given if `constant` is not below 0.
** Three unknowns have seven supports: they are tried, all first, since that is the answer nearly
** always. False if nothing was found; a is then as it was.
*/
static bool solve_positive(double G[3][3], const double b[3], double constant, double a[3]) {
  static const unsigned supports[] = {7, 3, 5, 6, 1, 2, 4};
  bool given = constant >= 0, found = false;
  double least = 0, rest[3];
  for (int i = 0; i < 3; i++) rest[i] = given ? b[i] - G[i][2] * constant : b[i];
  for (int k = 0; k < 7; k++) {
    double t[3], value = 0;
    if (given && supports[k] & 4) continue;
    if (!solve(G, rest, supports[k], t) || t[0] < 0 || t[1] < 0 || t[2] < 0) continue;
    for (int i = 0; i < 3; i++) {
      value -= 2 * t[i] * rest[i];
      for (int j = 0; j < 3; j++) value += t[i] * G[i][j] * t[j];
    }
    if (found && !(value < least - 1e-9 * fabs(least))) continue; /* of equals the first */
    found = true;
    least = value;
    for (int i = 0; i < 3; i++) a[i] = t[i];
    if (supports[k] == (given ? 3 : 7)) break; /* free of the bounds: there is no better */
  }
  if (found && given) a[2] = constant;
  return found;
}

/* ------------------------------------------------------------------------- the sample */

static int bin_of(double x) { /* x is at most 1, and above 2^-33 */
  int e;
  double m = frexp(x, &e);
  int bin = (e + 32) * BINS_PER_OCTAVE + (int)((m - 0.5) * (2 * BINS_PER_OCTAVE));
  return bin < 0 ? 0 : bin < N_BINS ? bin : N_BINS - 1;
}

static void draw_sample(const kfi_curve_rows *rows, kfi_curve_work *work) {
  int64_t all[N_BINS] = {0}, drawn[N_BINS] = {0}, n_bins = 0, n = 0;
  kfi_curve_rows *s = &work->sample;
  for (int64_t i = 0; i < rows->n; i++) n_bins += all[bin_of(rows->x[i])]++ == 0;
  int64_t most = rows->n <= SAMPLE_MAX ? rows->n : SAMPLE_MAX / n_bins;
  if (most < ROWS_PER_BIN) most = ROWS_PER_BIN;
  for (int32_t g = 0; g < rows->n_ranks; g++) {
    s->off[g] = n;
    for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
      int bin = bin_of(rows->x[i]);
      /* Of a full bin each row has the same chance. In file order ranks and lengths repeat. */
      uint64_t chance = kfi_mix64((uint64_t)i) % (uint64_t)all[bin];
      if (chance >= (uint64_t)most || drawn[bin] == most) continue;
      drawn[bin]++;
      s->x[n] = rows->x[i];
      s->y[n++] = rows->y[i];
    }
  }
  s->off[rows->n_ranks] = s->n = n;
  s->n_ranks = rows->n_ranks;
  for (int64_t i = 0; i < n; i++) {
    int bin = bin_of(s->x[i]);
    work->even[i] = fmin(1, (double)ROWS_PER_BIN / (double)drawn[bin]);
    work->share[i] = (double)all[bin] / (double)drawn[bin];
  }
}

/* -------------------------------------------------------------------------- the start */

/* How well the shape `a` explains the sample, less is better, and each rank's centre: the median of
** log seconds less log shape. Ranks of few rows share one. Log seconds are in `log_y`. */
static double score(const kfi_curve_work *work, const double a[3], const double *log_y,
                    double *centre) {
  const kfi_curve_rows *s = &work->sample;
  kfi_weighted *v = work->sorted;
  int64_t n_rest = 0;
  double sum = 0, rest_centre = 0;
  for (int32_t g = 0; g < s->n_ranks; g++) {
    int64_t n = s->off[g + 1] - s->off[g];
    bool own = n >= OWN_ROWS;
    for (int64_t i = 0; i < n; i++) {
      int64_t row = s->off[g] + i;
      kfi_weighted e = {log_y[row] - kfi_log(kfi_curve_at(a, s->x[row])), work->even[row]};
      if (own)
        v[i] = e;
      else
        v[s->n - ++n_rest] = e; /* from the end: there is room, these rows come only once */
    }
    if (!own) continue;
    double c = kfi_weighted_quantile(v, n, 0.5);
    for (int64_t i = 0; i < n; i++) sum += v[i].weight * fmin(fabs(v[i].value - c), FAR);
    if (centre) centre[g] = c;
  }
  if (n_rest > 0) {
    v += s->n - n_rest;
    rest_centre = kfi_weighted_quantile(v, n_rest, 0.5);
    for (int64_t i = 0; i < n_rest; i++)
      sum += v[i].weight * fmin(fabs(v[i].value - rest_centre), FAR);
  }
  for (int32_t g = 0; centre && g < s->n_ranks; g++)
    if (s->off[g + 1] - s->off[g] < OWN_ROWS) centre[g] = rest_centre;
  return sum;
}

/* Centres become slownesses about 1, and the rest of them the height of the curve. */
static void level_start(const kfi_curve_work *work, kfi_curve *curve) {
  const kfi_curve_rows *s = &work->sample;
  int64_t n = 0;
  for (int32_t g = 0; g < s->n_ranks; g++) {
    double count = (double)(s->off[g + 1] - s->off[g]);
    if (count > 0) work->sorted[n++] = (kfi_weighted){curve->slow[g], count};
  }
  double middle = kfi_weighted_quantile(work->sorted, n, 0.5);
  for (int k = 0; k < 3; k++) curve->a[k] *= kfi_exp(middle);
  for (int32_t g = 0; g < s->n_ranks; g++)
    curve->slow[g] = s->off[g + 1] > s->off[g] ? kfi_exp(curve->slow[g] - middle) : 1;
}

/*
** All shapes x + b x^2 + c whose terms cross at lengths a factor of 2 (b) or 4 (c) apart, from well
** below the shortest to well above the longest, each term also alone and also absent.
*/
static void start(const kfi_curve_work *work, double *log_y, kfi_curve *curve) {
  const kfi_curve_rows *s = &work->sample;
  double low = 1, least = INFINITY, best[3] = {1, 0, 0};
  for (int64_t i = 0; i < s->n; i++) {
    low = fmin(low, s->x[i]);
    log_y[i] = kfi_log(s->y[i]);
  }
  low /= 8;
  for (double b_at = 8; b_at >= low / 2; b_at /= 2) {
    for (double c_at = low; c_at <= 32; c_at *= 4) {
      bool square = b_at<low, first_b = b_at == 8, first_c = c_at == low, flat = c_at> 8;
      double a[3] = {square ? 0 : 1, square ? 1 : first_b ? 0 : 1 / b_at, 0};
      if (!first_c) a[2] = kfi_curve_at(a, c_at);
      if (flat) a[0] = a[1] = 0, a[2] = 1;
      double now = score(work, a, log_y, NULL);
      if (!(now < least)) continue;
      least = now;
      for (int k = 0; k < 3; k++) best[k] = a[k];
    }
  }
  for (int k = 0; k < 3; k++) curve->a[k] = best[k];
  score(work, best, log_y, curve->slow);
  level_start(work, curve);
}

/* -------------------------------------------------------------------------- one step */

/* Slownesses and height for the given shape, and how much noise is in a rank against the spread
** between ranks: (sigma / tau)^2, infinite where ranks do not differ. */
static double level(const kfi_curve_rows *rows, const kfi_curve_work *work, kfi_curve *curve) {
  double n_all = 0, n_square = 0, sum_all = 0, within = 0, between = 0, noise = INFINITY;
  int64_t n_ranks = 0;
  for (int32_t g = 0; g < rows->n_ranks; g++) {
    double n = 0, sum = 0, square = 0;
    for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
      double w = work->weight[i];
      if (!(w > 0)) continue;
      double ratio = rows->y[i] / kfi_curve_at(curve->a, rows->x[i]);
      n += w;
      sum += w * ratio;
      square += w * ratio * ratio;
    }
    work->of_rank[g] = n;
    if (!(n > 0)) continue;
    curve->slow[g] = sum / n;
    n_ranks++;
    n_all += n;
    n_square += n * n;
    sum_all += sum;
    within += fmax(0, square / (curve->slow[g] * curve->slow[g]) - n);
  }
  double mean = sum_all / n_all;
  for (int k = 0; k < 3; k++) curve->a[k] *= mean;
  for (int32_t g = 0; g < rows->n_ranks; g++) {
    curve->slow[g] = work->of_rank[g] > 0 ? curve->slow[g] / mean - 1 : 0;
    between += work->of_rank[g] * curve->slow[g] * curve->slow[g];
  }
  if (n_ranks > 1 && n_all > (double)n_ranks + 0.5) { /* both by their moments */
    double sigma2 = within / (n_all - (double)n_ranks);
    double tau2 = (between - (double)(n_ranks - 1) * sigma2) / (n_all - n_square / n_all);
    if (tau2 > 0) noise = fmax(sigma2 / tau2, 1e-4);
  }
  for (int32_t g = 0; g < rows->n_ranks; g++) {
    double n = work->of_rank[g];
    curve->slow[g] = noise < INFINITY ? 1 + n / (n + noise) * curve->slow[g] : 1;
  }
  return noise;
}

/* The normal equations of a step, and what else its pass over the rows finds. */
typedef struct equations {
  double G[3][3], b[3];
  double n, square; /* weight in all; the sum of squares of z */
  int n_lengths;    /* different ones, counted up to 3 */
  double shortest;
} equations;

static void add_outer(equations *q, const double x[3], double z, double weight) {
  for (int k = 0; k < 3; k++) {
    q->b[k] += weight * x[k] * z;
    for (int j = 0; j < 3; j++) q->G[k][j] += weight * x[k] * x[j];
  }
}

static void count_length(equations *q, double seen[3], double x) {
  for (int k = 0; k < q->n_lengths; k++)
    if (seen[k] == x) return;
  if (q->n_lengths < 3) seen[q->n_lengths++] = x;
}

/*
** Relative errors: z = y / (slow f) is about 1, and so is the sum of a[k] X[k], X[k] = x^power / f.
** A rank's own mean says little about the curve, as its slowness may explain it; how much is left
** follows from minimising over the slownesses first. With noise n/(n + noise) of it are gone.
** What then has no hold is the height, so it is held where `level` has put it.
*/
static void accumulate(const kfi_curve_rows *rows, const kfi_curve_work *work,
                       const kfi_curve *curve, double noise, equations *q) {
  double all[4] = {0, 0, 0, 0}, seen[3];
  *q = (equations){.shortest = INFINITY};
  for (int32_t g = 0; g < rows->n_ranks; g++) {
    double mean[4] = {0, 0, 0, 0}, n = work->of_rank[g];
    for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
      double w = work->weight[i], x = rows->x[i];
      if (!(w > 0)) continue;
      double f = kfi_curve_at(curve->a, x), X[3] = {x / f, x * x / f, 1 / f};
      double z = rows->y[i] / (curve->slow[g] * f);
      add_outer(q, X, z, w);
      for (int k = 0; k < 3; k++) mean[k] += w * X[k];
      mean[3] += w * z;
      q->square += w * z * z;
      q->shortest = fmin(q->shortest, x);
      count_length(q, seen, x);
    }
    for (int k = 0; k < 4; k++) all[k] += mean[k];
    q->n += n;
    if (!(n > 0) || !(noise < INFINITY)) continue;
    for (int k = 0; k < 4; k++) mean[k] /= n;
    add_outer(q, mean, mean[3], -n);
    add_outer(q, mean, mean[3] + kfi_log(curve->slow[g]), n * noise / (n + noise));
  }
  if (!(noise < INFINITY) || !(q->n > 0)) return;
  for (int k = 0; k < 4; k++) all[k] /= q->n;
  add_outer(q, all, all[3], q->n);
}

/* One step of least squares with the weights in `work`; with this C if it is not below 0. */
static equations step(const kfi_curve_rows *rows, const kfi_curve_work *work, double constant,
                      kfi_curve *curve) {
  equations q;
  double noise = level(rows, work, curve), a[3];
  accumulate(rows, work, curve, noise, &q);
  /* Two lengths have any two terms through them: the first two, unless that makes one negative. */
  if (q.n_lengths < 3 && solve(q.G, q.b, 3, a) && a[0] >= 0 && a[1] >= 0) constant = 0;
  solve_positive(q.G, q.b, constant, curve->a);
  return q;
}

/* ---------------------------------------------------------------- approach and settle */

/* Descend the loss of the start, truncated absolute errors, by reweighting. */
static void approach(const kfi_curve_work *work, kfi_curve *curve) {
  const kfi_curve_rows *s = &work->sample;
  for (int k = 0; k < APPROACH_STEPS; k++) {
    double any = 0;
    for (int32_t g = 0; g < s->n_ranks; g++)
      for (int64_t i = s->off[g]; i < s->off[g + 1]; i++) {
        double f = curve->slow[g] * kfi_curve_at(curve->a, s->x[i]);
        double e = fabs(kfi_log(s->y[i] / f));
        work->weight[i] = e < FAR ? work->even[i] * (NEAR / fmax(e, NEAR)) : 0;
        any += work->weight[i];
      }
    if (!(any > 0)) return;
    step(s, work, -1, curve);
  }
}

/* Each rank of some rows gets the median of all its rows: the sample may hold few of them. */
static void centre_ranks(const kfi_curve_rows *rows, kfi_curve_work *work, kfi_curve *curve) {
  for (int32_t g = 0; g < rows->n_ranks && rows->n_ranks > 1; g++) {
    int64_t first = rows->off[g], n = rows->off[g + 1] - first;
    if (n < OWN_ROWS) continue;
    for (int64_t i = 0; i < n; i++) {
      double ratio = rows->y[first + i] / kfi_curve_at(curve->a, rows->x[first + i]);
      work->sorted[i] = (kfi_weighted){ratio, 1};
    }
    curve->slow[g] = kfi_weighted_quantile(work->sorted, n, 0.5);
  }
}

/*
** The scale of the errors, in log seconds: the larger of what lengths say, each with one voice, and
** of what rows say. By lengths alone, a length off the curve that has nearly all rows would be
** called outliers; by rows alone, all others would.
*/
static double sigma_of(const kfi_curve_rows *rows, const kfi_curve_work *work,
                       const kfi_curve *curve) {
  const kfi_curve_rows *s = &work->sample;
  double n = (double)s->n, free = 3, most = 0;
  for (int32_t g = 0; g < s->n_ranks; g++) free += curve->slow[g] != 1;
  /* So many rows a fit can always meet, of all; the quantile is taken of the others. */
  free = fmin(free * n / (double)rows->n, n - 1);
  double part = (free + SIGMA_PART * (n - free)) / n;
  for (int by_row = 0; by_row < 2; by_row++) {
    const double *weight = by_row ? work->share : work->even;
    for (int32_t g = 0; g < s->n_ranks; g++)
      for (int64_t i = s->off[g]; i < s->off[g + 1]; i++) {
        double f = curve->slow[g] * kfi_curve_at(curve->a, s->x[i]);
        work->sorted[i] = (kfi_weighted){fabs(kfi_log(s->y[i] / f)), weight[i]};
      }
    most = fmax(most, kfi_weighted_quantile(work->sorted, s->n, part));
  }
  return most / SIGMA_Z * (1 + 5 / (n - free)); /* Rousseeuw's correction for few rows */
}

/* Keep the rows within the cut; true if these are others than before. Where they would all be of
** one length, all rows are kept: there is no curve through one length. */
static bool reject(const kfi_curve_rows *rows, const kfi_curve_work *work, kfi_curve *curve) {
  double cut = fmax(CUT_SIGMA * sigma_of(rows, work, curve), CUT_LEAST);
  double high = kfi_exp(cut), low = 1 / high, first = 0;
  bool changed = false, several = false;
  for (int32_t g = 0; g < rows->n_ranks; g++)
    for (int64_t i = rows->off[g]; i < rows->off[g + 1]; i++) {
      double f = curve->slow[g] * kfi_curve_at(curve->a, rows->x[i]);
      uint8_t keep = rows->y[i] >= low * f && rows->y[i] <= high * f;
      changed |= keep != curve->keep[i];
      curve->keep[i] = keep;
      if (!keep) continue;
      several |= first > 0 && rows->x[i] != first;
      first = rows->x[i];
    }
  for (int64_t i = 0; i < rows->n; i++) {
    if (!several) curve->keep[i] = 1;
    work->weight[i] = curve->keep[i];
  }
  return changed && several;
}

static equations settle(const kfi_curve_rows *rows, const kfi_curve_work *work, kfi_curve *curve) {
  equations q;
  for (int k = 0;; k++) {
    bool moved = reject(rows, work, curve) && k < MAX_STEPS / 2; /* they may take turns for ever */
    double before[3] = {curve->a[0], curve->a[1], curve->a[2]};
    q = step(rows, work, -1, curve);
    for (int j = 0; j < 3; j++) moved |= fabs(curve->a[j] - before[j]) > 1e-12 * before[j];
    if (!moved || k == MAX_STEPS) return q;
  }
}

/* ------------------------------------------------------------------------ the constant */

/*
** C is what the data tell least about: only short rows do. With 200 rows of lengths drawn evenly up
** to 65536 and 5% noise, its error is 4% of the seconds of the shortest, and so is then that of the
** prediction; and most costs have no constant. So the estimate is shrunk while it is not clear of
** 0, and where it would make short predictions worse by more than 2% to 3% it must be significant,
** or is taken for 0. A constant that is well known is not touched.
**
** Share of seeds whose predictions are within 3% (2%) of the truth from 256 to 65536, for C of so
** much of the seconds of 256 tokens:
**   lengths drawn              evenly, 0   evenly, 16% *   by log, 0   by log, 6%   by log, 16%
**   never shrunk                65 (58)       32 (23)        98 (88)     97 (81)      97 (83)
**   0 if below 2.3 errors       98 (96)       18 (13)        98 (93)     78 (68)      97 (83)
**   as here                     99 (95)       16 (10)        99 (89)     96 (80)      98 (83)
** (*) which such rows cannot tell from nothing, even where weights and outliers are known.
*/
static double worth(const equations *q, const kfi_curve *curve) {
  const double small = 0.8, large = 2.8;
  double G[3][3], unit[3] = {0, 0, 1}, v[3], C = curve->a[2];
  double at = kfi_curve_at(curve->a, q->shortest);
  unsigned support = (curve->a[0] > 0) | (unsigned)(curve->a[1] > 0) << 1 | 4;
  if (!(C > 1e-6 * at)) return 0;
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 3; j++) G[i][j] = q->G[i][j];
  if (!solve(G, unit, support, v)) return 0;
  double sigma2 = fmax(0, q->square - q->n) / fmax(q->n - 3, 1); /* z is about 1, and so its mean */
  double error = sqrt(v[2] * sigma2);
  double ramp = fmin(fmax(error / at * 100 - 2, 0), 1);
  if (!(C > (small + ramp * (large - small)) * error)) return 0;
  double times = small * error / C;
  return C * (1 - times * times * times);
}

/* -------------------------------------------------------------------------- the whole */

/* Exact rows leave rounding in a term that is not there, and a gamma of 1e15 after it. */
static void dust_off(const equations *q, double a[3]) {
  double x = q->shortest, low = 1e-9 * kfi_curve_at(a, x), high = 1e-9 * kfi_curve_at(a, 1);
  double at_low[3] = {a[0] * x, a[1] * x * x, a[2]};
  for (int k = 0; k < 3; k++)
    if (at_low[k] < low && a[k] < high) a[k] = 0;
}

static int64_t sample_room(int64_t n) {
  int64_t room = SAMPLE_MAX > N_BINS * ROWS_PER_BIN ? SAMPLE_MAX : N_BINS * ROWS_PER_BIN;
  return n < room ? n : room;
}

void kfi_curve_lay(kfi_layout *layout, int64_t n, int32_t n_ranks, kfi_curve_work *work,
                   kfi_curve *curve) {
  int64_t m = sample_room(n);
  work->sample.x = KFI_TAKE(layout, double, m);
  work->sample.y = KFI_TAKE(layout, double, m);
  work->sample.off = KFI_TAKE(layout, int64_t, n_ranks + 1);
  work->even = KFI_TAKE(layout, double, m);
  work->share = KFI_TAKE(layout, double, m);
  work->weight = KFI_TAKE(layout, double, n);
  work->sorted = KFI_TAKE(layout, kfi_weighted, n);
  work->of_rank = KFI_TAKE(layout, double, n_ranks);
  curve->slow = KFI_TAKE(layout, double, n_ranks);
  curve->keep = KFI_TAKE(layout, uint8_t, n);
}

void kfi_curve_fit(const kfi_curve_rows *rows, kfi_curve_work *work, kfi_curve *curve) {
  draw_sample(rows, work);
  start(work, work->weight, curve);
  approach(work, curve);
  centre_ranks(rows, work, curve);
  for (int64_t i = 0; i < rows->n; i++) curve->keep[i] = 2; /* neither, so that all are new */
  equations q = settle(rows, work, curve);
  double constant = worth(&q, curve);
  for (int k = 0; k < 4; k++) step(rows, work, constant, curve);
  dust_off(&q, curve->a);
  level(rows, work, curve);
}
