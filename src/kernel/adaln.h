/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the kernels of adaln share: the order of the arithmetic, and one chunk of work.
**
** The order. Every kernel, on the CPU and on CUDA, does the same operations in fp32 in the same
** order, so that all give the same bits. fma(a, b, c) is a * b + c rounded once; all else rounds
** after each operation. R(v) is v rounded to dtype; with KF_ROUND_EACH every R is done, with
** KF_ROUND_ONCE those in [R ..] are not, and a product that feeds a sum is an fma.
**
** SUM of a term over a row's columns:
**     A run is 256 columns, the last one may be shorter. In a run, column c belongs to strand
**     c mod 64, and a strand adds its (up to 4) terms to 0 in order of columns. The 64 strands are
**     added as a tree of neighbours: strand i and i + 1 for even i, then i and i + 2, .. then 0 and
**     32. Runs are added to 0 in order.
**
**         columns   0 .. 63 | 64 .. 127 | 128 .. 191 | 192 .. 255 | next run
**         strand    0 .. 63 |  0 ..  63 |   0 ..  63 |   0 ..  63 |
**
**     Four terms deep and then a tree: as exact as a pairwise sum, and it suits 16 lanes of AVX-512,
**     8 of AVX2, and CUDA threads that own 4 columns (fp32) or 8 (16 bits) of each 64.
**
** Forward, factor = [R](1 + scale):
**     x    = R(residual + [R](gate * u))              with a gate; once: fma(gate, u, residual)
**     mean = SUM(x) / dim
**     rstd = 1 / sqrt(SUM((x - mean)^2) / dim + eps)  the square is an fma into the strand, always
**     xhat = [R]((x - mean) * rstd)
**     y    = R([R](xhat * factor) + shift)            once: fma(xhat, factor, shift)
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

#include <stdbool.h>

#include "knapformer.h"

enum { KFI_STRANDS = 64, KFI_RUN = 256 };

/* A chunk of tokens, all of one sequence: pointers to its first row, and what the rows need. */
typedef struct kfi_rows {
  int64_t n, dim;
  kf_dtype dtype;
  bool each;   /* KF_ROUND_EACH */
  bool stream; /* what is written will not be read soon: past the caches */
  float eps;
  const float *factor, *shift, *gate; /* (dim) gate NULL: no prologue */
  const void *residual, *u;
  void *x, *y;
  float *mean, *rstd; /* forward: may be NULL */
  const void *dy, *dx_add;
  void *dx, *du;
  float *sums; /* (2 or 3, kfi_adaln_pad(dim)) backward: of dscale, dshift, dgate; written */
  float *work; /* kfi_adaln_work(dim) floats */
} kfi_rows;

/* Columns, rounded up so that each row of a worker's floats begins on a cache line. */
static inline int64_t kfi_adaln_pad(int64_t dim) {
  return (dim + KFI_STRANDS - 1) / KFI_STRANDS * KFI_STRANDS;
}

/* The rows that a kernel may keep for itself: the two that forward makes of residual and u. */
static inline int64_t kfi_adaln_work(int64_t dim) { return 2 * kfi_adaln_pad(dim); }

typedef void kfi_adaln_rows(const kfi_rows *);
typedef void kfi_adaln_widen(kf_dtype, int64_t n, const void *from, float *to); /* to fp32 */

kfi_adaln_rows kfi_adaln_forward_portable, kfi_adaln_backward_portable;
kfi_adaln_widen kfi_adaln_widen_portable;
#ifdef KF_HAVE_AVX
kfi_adaln_rows kfi_adaln_forward_avx2, kfi_adaln_backward_avx2;
kfi_adaln_rows kfi_adaln_forward_avx512, kfi_adaln_backward_avx512;
kfi_adaln_widen kfi_adaln_widen_avx2, kfi_adaln_widen_avx512;
#endif

#endif
