/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 for the emulator: the upper half of a float. Every NaN becomes 0x7fff, as on a GPU. */
#ifndef CUDA_BF16_H
#define CUDA_BF16_H

#include "cuda_runtime.h"

EMULATOR_HALF(__nv_bfloat16, __bfloat16_as_ushort, __ushort_as_bfloat16)

inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float((unsigned)value.bits << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return __ushort_as_bfloat16(0x7fff);
  /* Just below one half of what is cut off, and one more where what remains is odd. */
  return __ushort_as_bfloat16((unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16));
}

struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
