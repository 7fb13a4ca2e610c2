/* SPDX-License-Identifier: Apache-2.0 */
/*
** What kf_adaln should give: the formulas of the header in double, column by column, and how far
** from it fp32 may be. Nothing here is shared with the library.
**
** `slack` is the size of what an output is made of, so that a handful of roundings, each of 2^-24,
** stay below 1e-6 * slack. With x_ = LN(x), g = dy * (1 + scale), <> the mean over a row's columns,
** and w = 1 + |mean| * rstd, the size of the error that the mean's own rounding gives x_:
**
**     x       |residual| + |gate * u|
**     mean    <|x|>
**     rstd    rstd
**     y       (largest |x_ * (1 + scale)| of the row + |shift|), 10 times that from |mean| * rstd = 100
**     dx      rstd * (|g| + <|g|> + |x_| <|g x_|> + w (|<g x_>| + |x_| <|g|>)) + |dx_add|
**     du      |gate| * slack of dx
**     dscale, dshift, dgate: the sum over tokens of |dy * x_|, |dy|, |dx * u|
**
** The last three are about the sums, so they take mean, rstd and (in fp32) dx as the library gave
** them. dx in 16 bits is not what dgate is made of; there it is |u| * slack of dx.
*/
#ifndef ADALN_REFERENCE_H
#define ADALN_REFERENCE_H

#include "adaln_problem.h"

typedef struct reference {
  int64_t dim, n_tokens, n_seqs;
  const int32_t *seq;
  double eps;
  double *v[N_TENSORS], *slack[N_TENSORS]; /* dense; NULL where the problem has none */
} reference;

/* The inputs of p. X is what it holds now, or made by naive_x. */
static inline reference reference_of(const problem *p) {
  reference r = {p->f.dim, p->n_tokens, p->f.n_seqs, p->seq_index, 0, {0}, {0}};
  r.eps = p->f.eps != 0 ? p->f.eps : 1e-6f;
  for (int i = 0; i < N_TENSORS; i++) {
    const tensor *t = &p->t[i];
    if (!t->data) continue;
    tensor from = *t; /* in place: what it was before */
    if (t->bytes && !t->memory) from.data = t->kept;
    r.v[i] = checked(calloc((size_t)(t->n_rows * t->dim) + 1, sizeof(double)));
    r.slack[i] = checked(calloc((size_t)(t->n_rows * t->dim) + 1, sizeof(double)));
    for (int64_t row = 0; row < t->n_rows && i < Y; row++)
      for (int64_t c = 0; c < t->dim; c++) r.v[i][row * t->dim + c] = at(&from, row, c);
  }
  return r;
}

static inline void reference_drop(reference *r) {
  for (int i = 0; i < N_TENSORS; i++) free(r->v[i]), free(r->slack[i]);
}

/* x = residual + gate * u */
static inline void naive_x(const reference *r, double *x) {
  for (int64_t t = 0; t < r->n_tokens; t++)
    for (int64_t c = 0; c < r->dim; c++) {
      int64_t i = t * r->dim + c, m = r->seq[t] * r->dim + c;
      double added = r->v[GATE][m] * r->v[U][i];
      x[i] = r->v[RESIDUAL][i] + added;
      r->slack[X][i] = fabs(r->v[RESIDUAL][i]) + fabs(added);
    }
}

static inline void naive_forward(const reference *r) {
  for (int64_t t = 0; t < r->n_tokens; t++) {
    const double *x = r->v[X] + t * r->dim, *scale = r->v[SCALE] + r->seq[t] * r->dim;
    const double *shift = r->v[SHIFT] + r->seq[t] * r->dim;
    double mean = 0, size = 0, variance = 0, most = 0;
    for (int64_t c = 0; c < r->dim; c++) mean += x[c] / r->dim, size += fabs(x[c]) / r->dim;
    for (int64_t c = 0; c < r->dim; c++) variance += (x[c] - mean) * (x[c] - mean) / r->dim;
    double rstd = 1 / sqrt(variance + r->eps);
    for (int64_t c = 0; c < r->dim; c++)
      most = fmax(most, fabs((x[c] - mean) * rstd * (1 + scale[c])));
    for (int64_t c = 0; c < r->dim; c++) {
      r->v[Y][t * r->dim + c] = (x[c] - mean) * rstd * (1 + scale[c]) + shift[c];
      r->slack[Y][t * r->dim + c] = (most + fabs(shift[c])) * fmax(1, fabs(mean) * rstd / 10);
    }
    r->v[MEAN][t] = mean, r->slack[MEAN][t] = size;
    r->v[RSTD][t] = r->slack[RSTD][t] = rstd;
  }
}

/* The textbook's backward of x_ = (x - mean) * rstd, whose own gradient is g = dy * (1 + scale). */
static inline void naive_dx(const reference *r) {
  for (int64_t t = 0; t < r->n_tokens; t++) {
    const double *x = r->v[X] + t * r->dim, *scale = r->v[SCALE] + r->seq[t] * r->dim;
    const double *dy = r->v[DY] + t * r->dim;
    double mean = r->v[MEAN][t], rstd = r->v[RSTD][t], w = 1 + fabs(mean) * rstd;
    double c1 = 0, c2 = 0, size1 = 0, size2 = 0;
    for (int64_t c = 0; c < r->dim; c++) {
      double g = dy[c] * (1 + scale[c]), x_ = (x[c] - mean) * rstd;
      c1 += g / r->dim, c2 += g * x_ / r->dim;
      size1 += fabs(g) / r->dim, size2 += fabs(g * x_) / r->dim;
    }
    for (int64_t c = 0; c < r->dim; c++) {
      int64_t i = t * r->dim + c;
      double g = dy[c] * (1 + scale[c]), x_ = (x[c] - mean) * rstd;
      double extra = r->v[DX_ADD] ? r->v[DX_ADD][i] : 0;
      r->v[DX][i] = rstd * (g - c1 - x_ * c2) + extra;
      r->slack[DX][i] =
        rstd * (fabs(g) + size1 + fabs(x_) * size2 + w * (fabs(c2) + fabs(x_) * size1)) +
        fabs(extra);
      if (!r->v[GATE]) continue;
      double gate = r->v[GATE][r->seq[t] * r->dim + c];
      r->v[DU][i] = gate * r->v[DX][i];
      r->slack[DU][i] = fabs(gate) * r->slack[DX][i];
    }
  }
}

/* What the sums over tokens are made of; dx_slack NULL: dx is exact. */
typedef struct given {
  const double *mean, *rstd, *dx, *dx_slack;
} given;

static inline void naive_sums(const reference *r, given by) {
  for (int64_t t = 0; t < r->n_tokens; t++)
    for (int64_t c = 0; c < r->dim; c++) {
      int64_t i = t * r->dim + c, m = r->seq[t] * r->dim + c;
      double dy = r->v[DY][i], x_ = (r->v[X][i] - by.mean[t]) * by.rstd[t];
      r->v[DSCALE][m] += dy * x_, r->slack[DSCALE][m] += fabs(dy * x_);
      r->v[DSHIFT][m] += dy, r->slack[DSHIFT][m] += fabs(dy);
      if (!r->v[GATE]) continue;
      double u = r->v[U][i];
      r->v[DGATE][m] += by.dx[i] * u;
      r->slack[DGATE][m] += fabs(u) * (by.dx_slack ? by.dx_slack[i] : fabs(by.dx[i]));
    }
}

/* All of p's outputs, after a run. */
static inline reference naive(const problem *p) {
  reference r = reference_of(p);
  double *mean = checked(calloc((size_t)p->n_tokens + 1, sizeof *mean));
  double *rstd = checked(calloc((size_t)p->n_tokens + 1, sizeof *rstd));
  double *dx = checked(calloc((size_t)(p->n_tokens * r.dim) + 1, sizeof *dx));
  bool exact = p->f.dtype == KF_F32;
  naive_forward(&r);
  naive_dx(&r);
  for (int64_t t = 0; t < p->n_tokens; t++) {
    mean[t] = at(&p->t[MEAN], t, 0), rstd[t] = at(&p->t[RSTD], t, 0);
    for (int64_t c = 0; c < r.dim; c++)
      dx[t * r.dim + c] = exact ? at(&p->t[DX], t, c) : r.v[DX][t * r.dim + c];
  }
  naive_sums(&r, (given){mean, rstd, dx, exact ? NULL : r.slack[DX]});
  if (p->f.gate) naive_x(&r, r.v[X]); /* last: all else is of the x it has */
  free(dx);
  free(rstd);
  free(mean);
  return r;
}

/* --------------------------------------------------------------------- comparing */

/* The worst error of an output, in units of 1e-6 * slack. */
static inline double worst_of(const problem *p, const reference *r, int i) {
  const tensor *t = &p->t[i];
  double worst = 0;
  for (int64_t row = 0; row < t->n_rows; row++)
    for (int64_t c = 0; c < t->dim; c++) {
      int64_t j = row * t->dim + c;
      double error = fabs(at(t, row, c) - r->v[i][j]);
      /* beyond the last place of a result that is nearly 0 or subnormal there is nothing */
      double ratio = error <= 0x1p-149 ? 0 : error / (1e-6 * r->slack[i][j]);
      if (!(ratio <= worst)) worst = ratio;
    }
  return worst;
}

/*
** In 16 bits: every element is a neighbour of the exact one, as far as fp32 can tell, and no more
** than one in 50 is another than the nearest (more only if a large mean takes digits from fp32).
*/
static inline void expect_nearest(const problem *p, const reference *r, int i) {
  const tensor *t = &p->t[i];
  int64_t n = 0, n_other = 0;
  for (int64_t row = 0; row < t->n_rows; row++)
    for (int64_t c = 0; c < t->dim; c++, n++) {
      double want = r->v[i][row * t->dim + c], got = at(t, row, c);
      if (got == nearest(t->dtype, want)) continue;
      double room = 1e-6 * r->slack[i][row * t->dim + c] + step_at(t->dtype, want) / 2;
      n_other++;
      if (!(fabs(got - want) <= room))
        FAIL("%s[%lld][%lld] is %g, expected %g within %g", tensor_names[i], (long long)row,
             (long long)c, got, want, room);
    }
  if (n_other > n / 50 * (1 + fabs(p->f.mean) / 10) + 8)
    FAIL("%s: %lld of %lld elements are not the nearest", tensor_names[i], (long long)n_other,
         (long long)n);
}

/* worst: (N_TENSORS), the largest so far, or NULL */
static inline void expect_close(const problem *p, double *worst) {
  reference r = naive(p);
  for (int i = 0; i < N_TENSORS; i++) {
    if (!is_written(p, i) || !p->t[i].data) continue;
    if (p->t[i].dtype != KF_F32) {
      expect_nearest(p, &r, i);
      continue;
    }
    double ratio = worst_of(p, &r, i);
    if (!(ratio <= 1))
      FAIL("%s: error of %g times the bound, dim %lld, isa %d", tensor_names[i], ratio,
           (long long)p->f.dim, (int)p->a.isa);
    if (worst && ratio > worst[i]) worst[i] = ratio;
  }
  reference_drop(&r);
}

#endif
