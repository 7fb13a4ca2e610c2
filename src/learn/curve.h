/* SPDX-License-Identifier: Apache-2.0 */
/* One robust fit of seconds over length; see curve.c. */
#ifndef KFI_CURVE_H
#define KFI_CURVE_H

#include <stdint.h>

#include "../memory.h"

/* What is fitted. Rows lie by rank: those of the g-th are off[g] .. off[g+1]-1, maybe none.
** Units are the caller's, such that x is at most 1 and y about 1. */
typedef struct kfi_curve_rows {
  int64_t n;
  int32_t n_ranks;
  double *x;    /* (n) length */
  double *y;    /* (n) seconds, 1e-60 to 1e60 */
  int64_t *off; /* (n_ranks + 1) */
} kfi_curve_rows;

/* seconds = (a[0] x + a[1] x*x + a[2]) * slow[rank], none below 0; slow is 1 for the mean row. */
typedef struct kfi_curve {
  double a[3];
  double *slow;  /* (n_ranks) */
  uint8_t *keep; /* (n) 0: an outlier */
} kfi_curve;

typedef struct kfi_weighted {
  double value, weight;
} kfi_weighted;

/* Memory of a fit, reused by the next one of no more rows. */
typedef struct kfi_curve_work {
  kfi_curve_rows sample; /* some of the rows, such that every length has a voice */
  double *even;          /* (sample.n) weights that give no length more than another */
  double *share;         /* (sample.n) weights by which the sample stands for all rows */
  double *weight;        /* (n) */
  double *of_rank;       /* (n_ranks) weight of a rank's rows */
  kfi_weighted *sorted;  /* (n) scratch of quantiles */
} kfi_curve_work;

/* Lay out memory and result. As with kfi_layout: once for the size, once for the pointers. */
void kfi_curve_lay(kfi_layout *layout, int64_t n, int32_t n_ranks, kfi_curve_work *work,
                   kfi_curve *curve);

/* At least 2 rows of at least 2 different lengths. Cannot fail. */
void kfi_curve_fit(const kfi_curve_rows *rows, kfi_curve_work *work, kfi_curve *curve);

static inline double kfi_curve_at(const double a[3], double x) {
  return a[0] * x + a[1] * x * x + a[2];
}

/* The least value that `part` of the weight does not exceed. Reorders v; n is at least 1. */
double kfi_weighted_quantile(kfi_weighted *v, int64_t n, double part);

#endif
