/* SPDX-License-Identifier: Apache-2.0 */
/*
** Logarithm and exponential with the same bits everywhere. libm's differ between its versions, and
** on one machine with its processor (glibc picks a variant with fused multiply-add at run time), so
** ranks that learn by them would drift apart. Only frexp, ldexp and arithmetic are used here, all
** of which IEEE 754 defines to the bit. Within 2 ulp; some 10 ns.
*/
#ifndef KFI_REAL_H
#define KFI_REAL_H

#include <math.h>

#define KFI_LN2_HIGH 0x1.62e42fefap-1 /* 33 bits: times an exponent it is exact */
#define KFI_LN2_LOW 0x1.cf79abc9e3b3ap-40

/* x is above 0 and finite. */
static inline double kfi_log(double x) {
  int e;
  double m = frexp(x, &e); /* 0.5 <= m < 1 */
  if (m < 0.70710678118654752) m *= 2, e--;
  /* log m = 2 atanh s, |s| < 0.172: the terms beyond s^21 are below 1e-18 */
  static const double term[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  double s = (m - 1) / (m + 1), z = s * s, sum = 0;
  for (int k = 0; k < 10; k++) sum = (sum + term[k]) * z;
  return e * KFI_LN2_HIGH + (2 * s + (2 * s * sum + e * KFI_LN2_LOW));
}

/* |x| is cut at 700. */
static inline double kfi_exp(double x) {
  if (x > 700) x = 700;
  if (!(x > -700)) x = -700;
  double k = floor(x * 1.4426950408889634 + 0.5);
  double r = (x - k * KFI_LN2_HIGH) - k * KFI_LN2_LOW; /* |r| < 0.347 */
  static const double term[] = {                       /* 1/13!, 1/12!, .. 1/1!, 1 */
                                1.0 / 6227020800,
                                1.0 / 479001600,
                                1.0 / 39916800,
                                1.0 / 3628800,
                                1.0 / 362880,
                                1.0 / 40320,
                                1.0 / 5040,
                                1.0 / 720,
                                1.0 / 120,
                                1.0 / 24,
                                1.0 / 6,
                                1.0 / 2,
                                1,
                                1};
  double sum = 0;
  for (int i = 0; i < 14; i++) sum = sum * r + term[i];
  return ldexp(sum, (int)k);
}

#endif
