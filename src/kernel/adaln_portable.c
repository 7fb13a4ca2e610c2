/* SPDX-License-Identifier: Apache-2.0 */
/*
** The kernels of adaln in plain C: one column at a time, slow and obvious. They are the
** specification that adaln.h puts into words, and every other kernel gives their bits.
*/
#include <math.h>

#include "adaln.h"
#include "dtype.h"

/* --------------------------------------------------------------------- the sum of a row */

typedef struct row_sum {
  float strand[KFI_STRANDS]; /* of the run at hand */
  float total;               /* of the runs before */
} row_sum;

static float fold(const float *strands) {
  float tree[KFI_STRANDS];
  for (int i = 0; i < KFI_STRANDS; i++) tree[i] = strands[i];
  for (int apart = 1; apart < KFI_STRANDS; apart *= 2)
    for (int i = 0; i < KFI_STRANDS; i += 2 * apart) tree[i] += tree[i + apart];
  return tree[0];
}

/* Where column c's term belongs; columns come in order. */
static float *strand_of(row_sum *sum, int64_t c) {
  if (c > 0 && c % KFI_RUN == 0) {
    sum->total += fold(sum->strand);
    for (int i = 0; i < KFI_STRANDS; i++) sum->strand[i] = 0;
  }
  return &sum->strand[c % KFI_STRANDS];
}

static float total_of(const row_sum *sum) { return sum->total + fold(sum->strand); }

/* ------------------------------------------------------------------------- one operation */

/* [R]: rounds to dtype if every operation does. */
static float maybe(const kfi_rows *r, float v) { return r->each ? kfi_rounded(r->dtype, v) : v; }

/* a * b + c */
static float combine(const kfi_rows *r, float a, float b, float c) {
  return r->each ? kfi_rounded(r->dtype, a * b) + c : fmaf(a, b, c);
}

/* ------------------------------------------------------------------------------- forward */

/* Row t of x = residual + gate * u. */
static void make_x(const kfi_rows *r, int64_t t) {
  for (int64_t c = 0; c < r->dim; c++) {
    float residual = kfi_load(r->dtype, r->residual, t * r->dim + c);
    float u = kfi_load(r->dtype, r->u, t * r->dim + c);
    kfi_store(r->dtype, r->x, t * r->dim + c, combine(r, r->gate[c], u, residual));
  }
}

void kfi_adaln_forward_portable(const kfi_rows *r) {
  float dim = (float)r->dim;
  for (int64_t t = 0; t < r->n; t++) {
    row_sum sum = {{0}, 0}, squares = {{0}, 0};
    if (r->gate) make_x(r, t);
    for (int64_t c = 0; c < r->dim; c++)
      *strand_of(&sum, c) += kfi_load(r->dtype, r->x, t * r->dim + c);
    float mean = total_of(&sum) / dim;
    for (int64_t c = 0; c < r->dim; c++) {
      float *strand = strand_of(&squares, c);
      float d = kfi_load(r->dtype, r->x, t * r->dim + c) - mean;
      *strand = fmaf(d, d, *strand);
    }
    float rstd = 1 / sqrtf(total_of(&squares) / dim + r->eps);
    for (int64_t c = 0; c < r->dim; c++) {
      float xhat = maybe(r, (kfi_load(r->dtype, r->x, t * r->dim + c) - mean) * rstd);
      kfi_store(r->dtype, r->y, t * r->dim + c, combine(r, xhat, r->factor[c], r->shift[c]));
    }
    if (r->mean) r->mean[t] = mean;
    if (r->rstd) r->rstd[t] = rstd;
  }
}

/* ------------------------------------------------------------------------------ backward */

/* What backward needs of row t and column c. */
typedef struct place {
  float dy, x_, g;
} place;

static place place_of(const kfi_rows *r, int64_t t, int64_t c) {
  place p;
  p.dy = kfi_load(r->dtype, r->dy, t * r->dim + c);
  p.x_ = (kfi_load(r->dtype, r->x, t * r->dim + c) - r->mean[t]) * r->rstd[t];
  p.g = maybe(r, p.dy * r->factor[c]);
  return p;
}

void kfi_adaln_backward_portable(const kfi_rows *r) {
  float dim = (float)r->dim;
  int64_t pad = kfi_adaln_pad(r->dim);
  float *dscale = r->sums, *dshift = dscale + pad, *dgate = dshift + pad;
  for (int64_t i = 0; i < (r->gate ? 3 : 2) * pad; i++) r->sums[i] = 0;
  for (int64_t t = 0; t < r->n; t++) {
    row_sum sum1 = {{0}, 0}, sum2 = {{0}, 0};
    for (int64_t c = 0; c < r->dim; c++) {
      place p = place_of(r, t, c);
      float *strand2 = strand_of(&sum2, c);
      *strand_of(&sum1, c) += p.g;
      *strand2 = fmaf(p.g, p.x_, *strand2);
      dscale[c] = combine(r, p.dy, maybe(r, p.x_), dscale[c]);
      dshift[c] += p.dy;
    }
    float c1 = total_of(&sum1) / dim, c2 = total_of(&sum2) / dim;
    for (int64_t c = 0; c < r->dim; c++) {
      place p = place_of(r, t, c);
      float d = maybe(r, r->rstd[t] * fmaf(-p.x_, c2, p.g - c1));
      if (r->dx_add) d += kfi_load(r->dtype, r->dx_add, t * r->dim + c);
      d = maybe(r, d);
      kfi_store(r->dtype, r->dx, t * r->dim + c, d);
      if (!r->gate) continue;
      kfi_store(r->dtype, r->du, t * r->dim + c, r->gate[c] * d);
      dgate[c] = combine(r, d, kfi_load(r->dtype, r->u, t * r->dim + c), dgate[c]);
    }
  }
}

void kfi_adaln_widen_portable(kf_dtype dtype, int64_t n, const void *from, float *to) {
  for (int64_t i = 0; i < n; i++) to[i] = kfi_load(dtype, from, i);
}
