/* SPDX-License-Identifier: Apache-2.0 */
/*
** The kernels of adaln in plain C: one column at a time, slow and obvious. They are the
** specification that adaln.h puts into words, and every other kernel gives their bits.
*/
#include <math.h>

#include "adaln.h"
#include "dtype.h"

/* ------------------------------------------------------------------------------ sums */

static float fold(const float *strands) {
  float tree[KFI_STRANDS];
  for (int i = 0; i < KFI_STRANDS; i++) tree[i] = strands[i];
  for (int apart = 1; apart < KFI_STRANDS; apart *= 2)
    for (int i = 0; i < KFI_STRANDS; i += 2 * apart) tree[i] += tree[i + apart];
  return tree[0];
}

/* The same with four levels in double. */
static double fold_exactly(const float *strands) {
  double tree[KFI_STRANDS / 4];
  for (int i = 0; i < KFI_STRANDS / 4; i++) {
    const float *s = strands + 4 * i;
    tree[i] = (s[0] + s[1]) + (s[2] + s[3]);
  }
  for (int apart = 1; apart < KFI_STRANDS / 4; apart *= 2)
    for (int i = 0; i < KFI_STRANDS / 4; i += 2 * apart) tree[i] += tree[i + apart];
  return tree[0];
}

static int64_t span_end(int64_t dim, int64_t span) {
  return dim - span < KFI_SPAN ? dim : span + KFI_SPAN;
}

/* ------------------------------------------------------------------------- one operation */

/* [R]: rounds to dtype if every operation does. */
static float maybe(const kfi_adaln_task *r, float v) {
  return r->each ? kfi_rounded(r->dtype, v) : v;
}

/* a * b + c */
static float combine(const kfi_adaln_task *r, float a, float b, float c) {
  return r->each ? kfi_rounded(r->dtype, a * b) + c : fmaf(a, b, c);
}

/* ------------------------------------------------------------------------------- forward */

/* Row t of x = residual + gate * u. */
static void make_x(const kfi_adaln_task *r, int64_t t) {
  for (int64_t c = 0; c < r->dim; c++) {
    float residual = kfi_element(r->dtype, r->residual, t * r->dim + c);
    float u = kfi_element(r->dtype, r->u, t * r->dim + c);
    kfi_set_element(r->dtype, r->x, t * r->dim + c, combine(r, r->gate[c], u, residual));
  }
}

/* The span of row t that begins with column `first`. */
static kfi_adaln_span sum_span(const kfi_adaln_task *r, int64_t t, int64_t first) {
  int64_t end = span_end(r->dim, first);
  float sum[KFI_STRANDS] = {0}, squares[KFI_STRANDS] = {0};
  for (int64_t c = first; c < end; c++)
    sum[c % KFI_STRANDS] += kfi_element(r->dtype, r->x, t * r->dim + c);
  kfi_adaln_span span = kfi_adaln_span_of(fold_exactly(sum), (float)(end - first));
  for (int64_t c = first; c < end; c++) {
    float d = kfi_element(r->dtype, r->x, t * r->dim + c) - span.mean;
    squares[c % KFI_STRANDS] = fmaf(d, d, squares[c % KFI_STRANDS]);
  }
  span.squares = fold(squares);
  return span;
}

void kfi_adaln_forward_portable(const kfi_adaln_task *r) {
  kfi_adaln_span *spans = (kfi_adaln_span *)(void *)r->work;
  for (int64_t t = 0; t < r->n; t++) {
    float mean, rstd;
    if (r->gate) make_x(r, t);
    for (int64_t i = 0; i < kfi_adaln_spans(r->dim); i++) spans[i] = sum_span(r, t, i * KFI_SPAN);
    kfi_adaln_moments(r->dim, r->eps, spans, &mean, &rstd);
    for (int64_t c = 0; c < r->dim; c++) {
      float xhat = maybe(r, (kfi_element(r->dtype, r->x, t * r->dim + c) - mean) * rstd);
      kfi_set_element(r->dtype, r->y, t * r->dim + c, combine(r, xhat, r->factor[c], r->shift[c]));
    }
    if (r->mean) r->mean[t] = mean, r->rstd[t] = rstd;
  }
}

/* ------------------------------------------------------------------------------ backward */

/* What backward needs of row t and column c. */
typedef struct place {
  float dy, x_, g;
} place;

static place place_of(const kfi_adaln_task *r, int64_t t, int64_t c) {
  place p;
  p.dy = kfi_element(r->dtype, r->dy, t * r->dim + c);
  p.x_ = (kfi_element(r->dtype, r->x, t * r->dim + c) - r->mean[t]) * r->rstd[t];
  p.g = maybe(r, p.dy * r->factor[c]);
  return p;
}

/* Row t's c1 and c2, and what it adds to dscale and dshift. */
static void slopes(const kfi_adaln_task *r, int64_t t, float *dscale, float *dshift, float *c1,
                   float *c2) {
  float total1 = 0, total2 = 0;
  for (int64_t span = 0; span < r->dim; span += KFI_SPAN) {
    float sum1[KFI_STRANDS] = {0}, sum2[KFI_STRANDS] = {0};
    for (int64_t c = span; c < span_end(r->dim, span); c++) {
      place p = place_of(r, t, c);
      sum1[c % KFI_STRANDS] += p.g;
      sum2[c % KFI_STRANDS] = fmaf(p.g, p.x_, sum2[c % KFI_STRANDS]);
      dscale[c] = combine(r, p.dy, maybe(r, p.x_), dscale[c]);
      dshift[c] += p.dy;
    }
    total1 += fold(sum1);
    total2 += fold(sum2);
  }
  *c1 = total1 / (float)r->dim;
  *c2 = total2 / (float)r->dim;
}

void kfi_adaln_backward_portable(const kfi_adaln_task *r) {
  int64_t stride = kfi_adaln_stride(r->dim);
  float *dscale = r->sums, *dshift = dscale + stride, *dgate = dshift + stride;
  for (int64_t i = 0; i < (r->gate ? 3 : 2) * stride; i++) r->sums[i] = 0;
  for (int64_t t = 0; t < r->n; t++) {
    float c1, c2;
    slopes(r, t, dscale, dshift, &c1, &c2);
    for (int64_t c = 0; c < r->dim; c++) {
      place p = place_of(r, t, c);
      float d = maybe(r, r->rstd[t] * fmaf(-p.x_, c2, p.g - c1));
      if (r->dx_add) d += kfi_element(r->dtype, r->dx_add, t * r->dim + c);
      d = maybe(r, d);
      kfi_set_element(r->dtype, r->dx, t * r->dim + c, d);
      if (!r->gate) continue;
      kfi_set_element(r->dtype, r->du, t * r->dim + c, r->gate[c] * d);
      dgate[c] = combine(r, d, kfi_element(r->dtype, r->u, t * r->dim + c), dgate[c]);
    }
  }
}

void kfi_adaln_widen_portable(kf_dtype dtype, int64_t n, const void *from, float *to) {
  for (int64_t i = 0; i < n; i++) to[i] = kfi_element(dtype, from, i);
}
