/* SPDX-License-Identifier: Apache-2.0 */
/*
** Logarithm and exponential with the same bits everywhere. libm's differ between its versions, and
** on one machine with its processor (glibc picks a variant with fused multiply-add at run time), so
** ranks that learn by them would drift apart. Only frexp, ldexp and arithmetic are used here, all of
** which IEEE 754 defines to the bit. Within 2 ulp; some 10 ns.
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
  double s = (m - 1) / (m + 1), z = s * s, sum = 0;
  for (int k = 21; k >= 3; k -= 2) sum = (sum + 1.0 / k) * z;
  return e * KFI_LN2_HIGH + (2 * s + (2 * s * sum + e * KFI_LN2_LOW));
}

/* |x| is cut at 700. */
static inline double kfi_exp(double x) {
  if (x > 700) x = 700;
  if (!(x > -700)) x = -700;
  double k = floor(x * 1.4426950408889634 + 0.5);
  double r = (x - k * KFI_LN2_HIGH) - k * KFI_LN2_LOW; /* |r| < 0.347 */
  double sum = 1;
  for (int i = 14; i >= 1; i--) sum = 1 + sum * r / i;
  return ldexp(sum, (int)k);
}

#endif
