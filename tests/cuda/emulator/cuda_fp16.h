/* SPDX-License-Identifier: Apache-2.0 */
/* half for the emulator, in integers: no machine needs F16C. Every NaN becomes 0x7fff, as on a
** GPU. */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include "cuda_runtime.h"

EMULATOR_HALF(__half, __half_as_ushort, __ushort_as_half)

inline float __half2float(__half value) {
  unsigned sign = (unsigned)(value.bits & 0x8000) << 16, exponent = value.bits >> 10 & 31;
  unsigned fraction = value.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  float magnitude = (float)fraction * 0x1p-24f; /* subnormal, or zero */
  return sign ? -magnitude : magnitude;
}

inline __half __float2half_rn(float value) {
  unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000,
           magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return __ushort_as_half(0x7fff);
  if (magnitude >= 0x477ff000u) /* 65520, halfway between the largest half and 2^16 */
    return __ushort_as_half((unsigned short)(sign | 0x7c00));
  if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, which adding 0.5 rounds to */
    float shifted = __uint_as_float(magnitude) + 0.5f;
    return __ushort_as_half((unsigned short)(sign | (__float_as_uint(shifted) - 0x3f000000u)));
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1);
  return __ushort_as_half((unsigned short)(sign | (magnitude - (112u << 23)) >> 13));
}

struct __half2 {
  __half x, y;
};
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}

#endif
