/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the tables of pointwise*.c agree on, so that all of them give the same bits, wherever a
** value lies in memory: the order of sums, and the factors of AdamW. Only GELU differs: the vector
** loops have an exponential of their own, the portable one takes libm's.
**
**     add_rows     rows are summed up in slabs of TRAIN_SLAB, from 0 on; slab after slab is
**                  added to out
**     sum_squares  value i goes to strand i % TRAIN_STRANDS, in double, where the square of a
**                  float is exact; then neighbours are added up
**     the others   no fused multiply-add: where memory is the limit it wins nothing, and it would
**                  have to be imitated by the portable table
*/
#ifndef TRAIN_POINTWISE_H
#define TRAIN_POINTWISE_H

#include <math.h>

#include "train.h"

enum { TRAIN_SLAB = 16, TRAIN_STRANDS = 32 };

static inline double train_fold(double strand[TRAIN_STRANDS]) {
  for (int apart = 1; apart < TRAIN_STRANDS; apart *= 2)
    for (int i = 0; i < TRAIN_STRANDS; i += 2 * apart) strand[i] += strand[i + apart];
  return strand[0];
}

/* What a step multiplies with, rounded once. */
typedef struct train_adamw_factors {
  float grad;         /* grad_scale */
  float keep;         /* of p after weight decay */
  float beta1, rest1; /* rest: 1 - beta */
  float beta2, rest2;
  float step;   /* lr / correction1 */
  float unbias; /* 1 / sqrt(correction2) */
  float eps;
  float ema, ema_rest;
} train_adamw_factors;

static inline train_adamw_factors train_adamw_factors_of(const train_adamw *a) {
  return (train_adamw_factors){.grad = a->grad_scale,
                               .keep = (float)(1 - (double)a->lr * a->weight_decay),
                               .beta1 = a->beta1,
                               .rest1 = 1 - a->beta1,
                               .beta2 = a->beta2,
                               .rest2 = 1 - a->beta2,
                               .step = (float)((double)a->lr / a->correction1),
                               .unbias = (float)(1 / sqrt(a->correction2)),
                               .eps = a->eps,
                               .ema = a->ema_decay,
                               .ema_rest = 1 - a->ema_decay};
}

#ifdef KF_HAVE_AVX
extern const train_pointwise train_pointwise_avx2, train_pointwise_avx512;
#endif

#endif
