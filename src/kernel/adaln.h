/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the kernels of adaln share: the order of the arithmetic, and one chunk of work.
**
** The order. Every kernel, on the CPU and on CUDA, does the same operations in fp32 in the same
** order, so that all give the same bits. fma(a, b, c) is a * b + c rounded once; all else rounds
** after each operation. R(v) is v rounded to dtype; with KF_ROUND_EACH every R is done, with
** KF_ROUND_ONCE those in [R ..] are not, and a product that feeds a sum is an fma.
**
** SUM of a term over columns:
**     A span is 256 columns, the last one may be shorter. In a span, column c belongs to strand
**     c mod 64, and a strand adds its (up to 4) terms to 0 in order of columns. The 64 strands are
**     added as a tree of neighbours: strand i and i + 1 for even i, then i and i + 2, .. then 0 and
**     32. That is the span's sum. Spans are added to 0 in order.
**
**         columns   0 .. 63 | 64 .. 127 | 128 .. 191 | 192 .. 255 | next span
**         strand    0 .. 63 |  0 ..  63 |   0 ..  63 |   0 ..  63 |
**
**     Four terms deep and then a tree: as exact as a pairwise sum, and it suits 16 lanes of AVX-512,
**     8 of AVX2, and CUDA threads that own 4 columns (fp32) or 8 (16 bits) of each 64.
**
** Forward, factor = [R](1 + scale). The moments take two passes over a span, which a kernel can
** hold in registers, not over the row; spans are merged exactly, as if there had been two passes
** over the row (Chan, Golub, LeVeque), never by E[x^2] - E[x]^2. In the sum of x the tree adds its
** first two levels in fp32 and the upper four in double, and what rounding it to a mean leaves over
** is kept: so the mean is good to half a unit even where it is large against the deviation:
**     x      = R(residual + [R](gate * u))            with a gate; once: fma(gate, u, residual)
**     S_r    = sum of x over span r, in double,  s_r = S_r rounded to fp32
**     m_r    = s_r / n_r                              n_r is the span's columns
**     e_r    = S_r - n_r * m_r                        in double, rounded to fp32
**     q_r    = sum of (x - m_r)^2 over span r          the square is an fma into the strand, always
**     rough  = (s_0 + s_1 + ..) / dim                 sums over spans are from 0, in order
**     mean   = rough + (sum of fma(n_r, m_r - rough, e_r)) / dim
**     q      = fma(n_r * (m_r - mean), m_r - mean, q + q_r), over the spans
**     rstd   = 1 / sqrt(q / dim + eps)
**     xhat   = [R]((x - mean) * rstd)
**     y      = R([R](xhat * factor) + shift)          once: fma(xhat, factor, shift)
**
** Backward, with x_ = (x - mean) * rstd, not rounded to dtype:
**     g    = [R](dy * factor)
**     c1   = SUM(g) / dim
**     c2   = SUM(g * x_) / dim                        an fma into the strand, always
**     d    = [R](rstd * fma(-x_, c2, g - c1))
**     d    = d + dx_add                               where there is one
**     dx   = R(d), and with KF_ROUND_EACH d = dx in what follows
**     du   = R(gate * d)
** and for each column, over a chunk's tokens in order, from 0, in fp32:
**     dscale += [R](dy * [R](x_))                     once: an fma
**     dshift += dy
**     dgate  += [R](d * u)                            once: an fma
** then over a sequence's chunks in order, from 0, in double; the total is rounded to fp32, and that
** to the type of the modulation.
**
** Typical sizes: 3072 columns, 8192 tokens, 1 to 100 sequences.
*/
#ifndef KFI_ADALN_H
#define KFI_ADALN_H

#include <math.h>
#include <stdbool.h>

#include "knapformer.h"

enum {
  KFI_STRANDS = 64,
  KFI_SPAN = 256,
  /* Rows that a kernel reads, then writes; rows of 12 KB stay in L2 meanwhile. */
  KFI_FORWARD_SLAB = 4,
  KFI_BACKWARD_SLAB = 16
};

/* A chunk of tokens, all of one sequence: pointers to its first row, and what the rows need. */
typedef struct kfi_adaln_task {
  int64_t n, dim;
  kf_dtype dtype;
  bool each;   /* KF_ROUND_EACH */
  bool stream; /* what is written will not be read soon: past the caches */
  bool late;   /* begin with half a slab: neighbouring threads take turns at reading and writing */
  float eps;
  const float *factor, *shift, *gate; /* (dim) gate NULL: no prologue */
  const void *residual, *u;
  void *x, *y;
  float *mean, *rstd; /* forward: may be NULL */
  const void *dy, *dx_add;
  void *dx, *du;
  float *sums; /* (2 or 3, kfi_adaln_stride(dim)) backward: of dscale, dshift, dgate; written */
  float *work; /* kfi_adaln_work(dim) floats */
} kfi_adaln_task;

/* Columns, rounded up so that each row of a worker's floats begins on a cache line. */
static inline int64_t kfi_adaln_pad(int64_t dim) {
  return (dim + KFI_STRANDS - 1) / KFI_STRANDS * KFI_STRANDS;
}

/* Floats from one row of column sums to the next: not a multiple of a page, see adaln.c. */
static inline int64_t kfi_adaln_stride(int64_t dim) { return kfi_adaln_pad(dim) + 5 * KFI_STRANDS; }

static inline int64_t kfi_adaln_spans(int64_t dim) { return (dim + KFI_SPAN - 1) / KFI_SPAN; }

/* s_r, m_r, e_r and q_r of a span. */
typedef struct kfi_adaln_span {
  float sum, mean, rest, squares;
} kfi_adaln_span;

/* A span of n columns from the sum S_r; its squares come later. */
static inline kfi_adaln_span kfi_adaln_span_of(double sum, float n) {
  kfi_adaln_span span;
  span.sum = (float)sum;
  span.mean = span.sum / n;
  span.rest = (float)(sum - (double)n * span.mean); /* the product is exact */
  span.squares = 0;
  return span;
}

/* Floats that a kernel may keep for itself: the rows that forward makes of residual and u, and a
** kfi_adaln_span for each span. */
static inline int64_t kfi_adaln_work(int64_t dim) {
  return KFI_FORWARD_SLAB * kfi_adaln_pad(dim) + 4 * kfi_adaln_spans(dim);
}

/* Mean and rstd of a row from its spans. Inline, so that kernels with an instruction for fmaf use
** it. */
static inline void kfi_adaln_moments(int64_t dim, float eps, const kfi_adaln_span *spans,
                                     float *mean, float *rstd) {
  int64_t n_spans = kfi_adaln_spans(dim), last = n_spans - 1;
  float sum = 0, rest = 0, squares = 0, n = KFI_SPAN, n_last = (float)(dim - last * KFI_SPAN);
  for (int64_t r = 0; r < n_spans; r++) sum += spans[r].sum;
  float rough = sum / (float)dim;
  for (int64_t r = 0; r < last; r++) rest += fmaf(n, spans[r].mean - rough, spans[r].rest);
  rest += fmaf(n_last, spans[last].mean - rough, spans[last].rest);
  *mean = rough + rest / (float)dim;
  for (int64_t r = 0; r < last; r++) {
    float off = spans[r].mean - *mean;
    squares = fmaf(n * off, off, squares + spans[r].squares);
  }
  float off = spans[last].mean - *mean;
  squares = fmaf(n_last * off, off, squares + spans[last].squares);
  *rstd = 1 / sqrtf(squares / (float)dim + eps);
}

typedef void kfi_adaln_rows(const kfi_adaln_task *);
typedef void kfi_adaln_widen(kf_dtype, int64_t n, const void *from, float *to); /* to fp32 */

kfi_adaln_rows kfi_adaln_forward_portable, kfi_adaln_backward_portable;
kfi_adaln_widen kfi_adaln_widen_portable;
#ifdef KF_HAVE_AVX
kfi_adaln_rows kfi_adaln_forward_avx2, kfi_adaln_backward_avx2;
kfi_adaln_rows kfi_adaln_forward_avx512, kfi_adaln_backward_avx512;
kfi_adaln_widen kfi_adaln_widen_avx2, kfi_adaln_widen_avx512;
#endif

#endif
