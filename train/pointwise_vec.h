/* SPDX-License-Identifier: Apache-2.0 */
/*
** For the loops between matrix products: the vector `vec` of LANES floats, by the instruction set
** that the including file is compiled for, and `wide` of half as many doubles. Sums and products
** are the compiler's + - * /; -ffp-contract=off keeps it from fusing them.
*/
#ifndef KF_POINTWISE_VEC_H
#define KF_POINTWISE_VEC_H

#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512F__
enum { LANES = 16 };
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef __m512d wide;
#define OP(name) _mm512_##name

static inline vec nearest(vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for a whole n */
static inline vec times_power(vec a, vec n) { return _mm512_scalef_ps(a, n); }

/* a where y is less than the limit, else 0 */
static inline vec if_below(vec y, vec limit, vec a) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, limit, _CMP_LT_OQ), a);
}

/* a where the sign of x is plus, b where it is minus */
static inline vec by_sign(vec x, vec a, vec b) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), a, b);
}

/* The first n lanes, 0 < n < LANES; the others are 0, or not written. */
static inline __mmask16 first_lanes(int64_t n) { return (__mmask16)((1U << n) - 1); }
static inline vec load_part(const float *p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void store_part(float *p, int64_t n, vec a) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a);
}

static inline wide wide_load(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }

#else
enum { LANES = 8 };
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef __m256d wide;
#define OP(name) _mm256_##name

/* n is added to the exponent, which must not leave its range: a is near 1 */
static inline vec times_power(vec a, vec n) {
  __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}

static inline vec if_below(vec y, vec limit, vec a) {
  return _mm256_and_ps(_mm256_cmp_ps(y, limit, _CMP_LT_OQ), a);
}

static inline vec nearest(vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec by_sign(vec x, vec a, vec b) { return _mm256_blendv_ps(a, b, x); }

static inline __m256i first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
static inline vec load_part(const float *p, int64_t n) {
  return _mm256_maskload_ps(p, first_lanes(n));
}
static inline void store_part(float *p, int64_t n, vec a) {
  _mm256_maskstore_ps(p, first_lanes(n), a);
}

static inline wide wide_load(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
#endif

static inline vec all(float a) { return OP(set1_ps)(a); }
static inline vec load(const float *p) { return OP(loadu_ps)(p); }
static inline void store(float *p, vec a) { OP(storeu_ps)(p, a); }
static inline vec root(vec a) { return OP(sqrt_ps)(a); }
static inline vec muladd(vec a, vec b, vec c) { return OP(fmadd_ps)(a, b, c); } /* a b + c */
static inline vec mulsub(vec a, vec b, vec c) { return OP(fmsub_ps)(a, b, c); } /* a b - c */
static inline vec magnitude(vec a) { return OP(andnot_ps)(all(-0.0f), a); }
static inline vec smaller(vec a, vec b) { return OP(min_ps)(a, b); }
static inline wide wide_zero(void) { return OP(setzero_pd)(); }
static inline wide wide_muladd(wide a, wide b, wide c) { return OP(fmadd_pd)(a, b, c); }
static inline void wide_store(double *p, wide a) { OP(storeu_pd)(p, a); }

#endif
