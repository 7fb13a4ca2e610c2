/* SPDX-License-Identifier: Apache-2.0 */
/* Least squares with forgetting and one effect per rank; regression.h says what. */
#include "regression.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { P = KFI_PARAMS };

void kfi_regression_lay(kfi_regression *j, kfi_layout *lay) {
  j->info = KFI_TAKE(lay, double, P *P);
  j->target = KFI_TAKE(lay, double, P);
  j->rank_info = KFI_TAKE(lay, double, j->n_ranks);
  j->rank_target = KFI_TAKE(lay, double, j->n_ranks);
  j->cross = KFI_TAKE(lay, double, (int64_t)j->n_ranks *P);
}

void kfi_regression_add(kfi_regression *j, int32_t rank, double weight, const double *x, double a,
                        double z) {
  double *cross = j->cross + (int64_t)rank * P;
  for (int i = 0; i < j->n; i++) {
    double w = weight * x[i];
    for (int k = 0; k <= i; k++) j->info[i * P + k] += w * x[k];
    j->target[i] += w * z;
    cross[i] += w * a;
  }
  j->rank_info[rank] += weight * a * a;
  j->rank_target[rank] += weight * a * z;
}

void kfi_regression_forget_rank(kfi_regression *j, int32_t rank, double keep) {
  double *cross = j->cross + (int64_t)rank * P;
  for (int i = 0; i < j->n; i++) cross[i] *= keep;
  j->rank_info[rank] *= keep;
  j->rank_target[rank] *= keep;
}

void kfi_regression_forget(kfi_regression *j, double keep) {
  for (int i = 0; i < j->n; i++) {
    for (int k = 0; k <= i; k++) j->info[i * P + k] *= keep;
    j->target[i] *= keep;
  }
  for (int32_t r = 0; r < j->n_ranks; r++) kfi_regression_forget_rank(j, r, keep);
}

/* The n equations that remain once the rank effects are eliminated. */
static void reduce(const kfi_regression *j, const kfi_belief *b, double m[P][P], double *g) {
  for (int i = 0; i < j->n; i++) {
    for (int k = 0; k <= i; k++) m[i][k] = j->info[i * P + k];
    m[i][i] += b->precision[i];
    g[i] = j->target[i] + b->precision[i] * b->mean[i];
  }
  for (int32_t r = 0; r < j->n_ranks; r++) {
    const double *cross = j->cross + (int64_t)r * P;
    double share = 1 / (j->rank_info[r] + b->rank_precision[r]);
    double t = j->rank_target[r] + b->rank_precision[r] * b->rank_mean[r];
    if (j->rank_info[r] == 0) continue;
    for (int i = 0; i < j->n; i++) {
      double c = cross[i] * share;
      for (int k = 0; k <= i; k++) m[i][k] -= c * cross[k];
      g[i] -= c * t;
    }
  }
  for (int i = 0; i < j->n; i++)
    for (int k = 0; k < i; k++) m[k][i] = m[i][k];
}

/* Cholesky of the free rows and columns, in `l`; a direction without information stays put. */
static void factor(int n, double m[P][P], const bool *fixed, double l[P][P]) {
  for (int i = 0; i < n; i++) {
    for (int k = 0; k <= i && !fixed[i]; k++) {
      if (fixed[k]) continue;
      double sum = m[i][k];
      for (int t = 0; t < k; t++)
        if (!fixed[t]) sum -= l[i][t] * l[k][t];
      if (i != k)
        l[i][k] = sum / l[k][k];
      else
        l[i][i] = sum > 1e-12 * m[i][i] ? sqrt(sum) : 1e150;
    }
  }
}

static void substitute(int n, double l[P][P], const bool *fixed, const double *g, double *x) {
  for (int i = 0; i < n; i++) {
    if (fixed[i]) continue;
    x[i] = g[i];
    for (int t = 0; t < i; t++)
      if (!fixed[t]) x[i] -= l[i][t] * x[t];
    x[i] /= l[i][i];
  }
  for (int i = n - 1; i >= 0; i--) {
    if (fixed[i]) continue;
    for (int t = i + 1; t < n; t++)
      if (!fixed[t]) x[i] -= l[t][i] * x[t];
    x[i] /= l[i][i];
  }
}

/* Solve; whoever leaves its limits is held there, and the others are solved again. */
static void solve_within(int n, double m[P][P], const double *g, const kfi_belief *b, bool *fixed,
                         double l[P][P], double *delta) {
  for (bool again = true; again;) {
    double rest[P] = {0};
    again = false;
    for (int i = 0; i < n; i++) {
      rest[i] = g[i];
      for (int k = 0; k < n; k++)
        if (fixed[k]) rest[i] -= m[i][k] * delta[k];
    }
    factor(n, m, fixed, l);
    substitute(n, l, fixed, rest, delta);
    for (int i = 0; i < n; i++) {
      if (fixed[i] || (delta[i] >= b->low[i] && delta[i] <= b->high[i])) continue;
      delta[i] = delta[i] < b->low[i] ? b->low[i] : b->high[i];
      fixed[i] = again = true;
    }
  }
}

/* The diagonal of the inverse: for each column of it, the part of the triangle below is needed. */
static void find_variance(int n, double m[P][P], const bool *fixed, double l[P][P],
                          double *variance) {
  factor(n, m, fixed, l); /* whoever will be held at a limit is as uncertain as if it were not */
  for (int k = 0; k < n; k++) {
    double x[P];
    variance[k] = 0;
    for (int i = k; i < n && !fixed[k]; i++) { /* column k of the inverse of l */
      if (fixed[i]) continue;
      double sum = i == k;
      for (int t = k; t < i; t++)
        if (!fixed[t]) sum -= l[i][t] * x[t];
      x[i] = sum / l[i][i];
      variance[k] += x[i] * x[i];
    }
  }
}

double kfi_regression_solve(const kfi_regression *j, const kfi_belief *b, double *delta,
                            double *variance, double *u) {
  double m[P][P], l[P][P], g[P], squares = 0;
  bool fixed[P] = {false};
  int n = j->n;
  reduce(j, b, m, g);
  for (int i = 0; i < n; i++) {
    delta[i] = b->low[i];
    fixed[i] = b->low[i] == b->high[i];
  }
  if (variance) find_variance(n, m, fixed, l, variance);
  solve_within(n, m, g, b, fixed, l, delta);
  for (int32_t r = 0; r < j->n_ranks; r++) {
    const double *cross = j->cross + (int64_t)r * P;
    double t = j->rank_target[r] + b->rank_precision[r] * b->rank_mean[r];
    for (int i = 0; i < n; i++) t -= cross[i] * delta[i];
    u[r] = t / (j->rank_info[r] + b->rank_precision[r]);
  }
  for (int i = 0; i < n; i++) {
    squares -= 2 * g[i] * delta[i];
    for (int k = 0; k < n; k++) squares += delta[i] * m[i][k] * delta[k];
  }
  return squares;
}

void kfi_regression_shift(kfi_regression *j, const double *delta, const double *u) {
  for (int i = 0; i < j->n; i++)
    for (int k = 0; k <= i; k++) {
      j->target[i] -= j->info[i * P + k] * delta[k];
      if (k < i) j->target[k] -= j->info[i * P + k] * delta[i];
    }
  for (int32_t r = 0; r < j->n_ranks; r++) {
    const double *cross = j->cross + (int64_t)r * P;
    double sum = 0;
    for (int i = 0; i < j->n; i++) {
      j->target[i] -= cross[i] * u[r];
      sum += cross[i] * delta[i];
    }
    j->rank_target[r] -= sum + j->rank_info[r] * u[r];
  }
}

double kfi_regression_squares(const kfi_regression *j, const double *delta, const double *u) {
  double squares = 0;
  for (int i = 0; i < j->n; i++) {
    double sum = j->info[i * P + i] * delta[i] - 2 * j->target[i];
    for (int k = 0; k < i; k++) sum += 2 * j->info[i * P + k] * delta[k];
    squares += sum * delta[i];
  }
  for (int32_t r = 0; r < j->n_ranks; r++) {
    const double *cross = j->cross + (int64_t)r * P;
    double sum = j->rank_info[r] * u[r] - 2 * j->rank_target[r];
    for (int i = 0; i < j->n; i++) sum += 2 * cross[i] * delta[i];
    squares += sum * u[r];
  }
  return squares;
}
