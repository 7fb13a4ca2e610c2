/* SPDX-License-Identifier: Apache-2.0 */
/*
** bf16 and fp16 as bits, to and from float: to the nearest, ties to the even; a NaN stays one, made
** quiet, with the upper bits of its payload, as the CPU's own conversions do.
*/
#ifndef KFI_DTYPE_H
#define KFI_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "../numbers.h"

static inline uint32_t kfi_bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

static inline float kfi_float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* bf16 is the upper half of a float. */
static inline float kfi_float_of_bf16(uint16_t h) { return kfi_float_of((uint32_t)h << 16); }

static inline uint16_t kfi_bf16_of(float v) {
  uint32_t bits = kfi_bits_of(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* fp16: a sign, 5 bits of exponent (biased by 15), 10 of mantissa; exponent 0 counts 2^-24s. */
static inline float kfi_float_of_fp16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023u;
  if (exponent == 31)
    return kfi_float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
  if (exponent == 0) {
    float v = (float)mantissa * 0x1p-24f; /* exact */
    return sign ? -v : v;
  }
  return kfi_float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t kfi_fp16_of(float v) {
  uint32_t bits = kfi_bits_of(v), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x1ff));
  if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and more */
  if (size < 0x38800000) { /* below 2^-14: adding 2^-1 leaves a count of 2^-24s, rounded */
    float shifted = kfi_float_of(size) + 0.5f;
    return (uint16_t)(sign | (kfi_bits_of(shifted) - 0x3f000000));
  }
  /* May round up into the next exponent, and from the largest number to infinity. */
  return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

/* Element i of an array of dtype. */
static inline float kfi_element(kf_dtype dtype, const void *from, int64_t i) {
  if (dtype == KF_F32) return ((const float *)from)[i];
  uint16_t h = ((const uint16_t *)from)[i];
  return dtype == KF_BF16 ? kfi_float_of_bf16(h) : kfi_float_of_fp16(h);
}

static inline void kfi_set_element(kf_dtype dtype, void *to, int64_t i, float v) {
  if (dtype == KF_F32)
    ((float *)to)[i] = v;
  else
    ((uint16_t *)to)[i] = dtype == KF_BF16 ? kfi_bf16_of(v) : kfi_fp16_of(v);
}

/* The value that storing v keeps. */
static inline float kfi_rounded(kf_dtype dtype, float v) {
  if (dtype == KF_F32) return v;
  return dtype == KF_BF16 ? kfi_float_of_bf16(kfi_bf16_of(v)) : kfi_float_of_fp16(kfi_fp16_of(v));
}

#endif
