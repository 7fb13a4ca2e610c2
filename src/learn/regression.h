/* SPDX-License-Identifier: Apache-2.0 */
/*
** A weighted least-squares problem that is never finished: some parameters that all ranks share and
** one effect per rank. Row: z = x . delta + a * u[r] + noise.
**
** Rows are not kept, only their sums (the information form), so that a row costs n*n/2 additions,
** forgetting is one multiplication of everything, and the whole is solved when somebody asks:
** rank effects are eliminated first, which leaves n equations whatever the number of ranks.
**
**     | info     cross^T | | delta |   | target      |      info  (n, n), cross (n_ranks, n),
**     | cross    diag(d) | |   u   | = | rank_target |      d = rank_info (n_ranks)
*/
#ifndef KFI_REGRESSION_H
#define KFI_REGRESSION_H

#include "../memory.h"

#include <stdint.h>

enum { KFI_PARAMS = 29 };

typedef struct kfi_regression {
  int32_t n_ranks;
  int32_t n;                       /* shared parameters in use */
  double *info, *target;           /* (KFI_PARAMS, KFI_PARAMS) lower half; (KFI_PARAMS) */
  double *rank_info, *rank_target; /* (n_ranks) */
  double *cross;                   /* (n_ranks, KFI_PARAMS) */
} kfi_regression;

/* What is believed before any row: parameter i is mean[i] with this precision, within low .. high;
** rank r's effect is rank_mean[r] with precision rank_precision[r], above 0. Precisions are in
** units of a row's weight. */
typedef struct kfi_belief {
  double mean[KFI_PARAMS], precision[KFI_PARAMS], low[KFI_PARAMS], high[KFI_PARAMS];
  const double *rank_mean, *rank_precision; /* (n_ranks) */
} kfi_belief;

/* Take the arrays from a layout; they must be zero at first. */
void kfi_regression_lay(kfi_regression *j, kfi_layout *lay);

void kfi_regression_add(kfi_regression *j, int32_t rank, double weight, const double *x, double a,
                        double z);

/* Forget: all rows count `keep` times what they did; or one rank's own level does. */
void kfi_regression_forget(kfi_regression *j, double keep);
void kfi_regression_forget_rank(kfi_regression *j, int32_t rank, double keep);

/* delta (n), its variance (n) in units of a row's variance, as if there were no limits (NULL: not
** wanted), and u (n_ranks). Returns the squared errors of rows and belief, but for a number that is
** the same for every delta: between two solutions within other limits, the difference counts. */
double kfi_regression_solve(const kfi_regression *j, const kfi_belief *belief, double *delta,
                            double *variance, double *u);

/* The rows' squared errors by delta and u, less those by nothing: between two explanations, the
** difference counts. */
double kfi_regression_squares(const kfi_regression *j, const double *delta, const double *u);

/* From now on rows are measured from delta and u: take them out of what was summed. */
void kfi_regression_shift(kfi_regression *j, const double *delta, const double *u);

#endif
