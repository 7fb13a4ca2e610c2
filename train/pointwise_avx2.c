/* SPDX-License-Identifier: Apache-2.0 */
/* Loops between matrix products with AVX2 and FMA. */
#include "pointwise.h"

#ifdef KF_HAVE_AVX
#include <immintrin.h>

enum { LANES = 8 };
typedef __m256 vec;

static inline vec load(const float *p) { return _mm256_loadu_ps(p); }
static inline void store(float *p, vec a) { _mm256_storeu_ps(p, a); }
static inline vec all(float a) { return _mm256_set1_ps(a); }
static inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec root(vec a) { return _mm256_sqrt_ps(a); }
static inline vec muladd(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec mulsub(vec a, vec b, vec c) { return _mm256_fmsub_ps(a, b, c); } /* a b - c */
static inline vec magnitude(vec a) { return _mm256_andnot_ps(all(-0.0f), a); }
static inline vec smaller(vec a, vec b) { return _mm256_min_ps(a, b); }
static inline vec nearest(vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for a whole n and a near 1: n is added to the exponent, which must not leave its range */
static inline vec times_power(vec a, vec n) {
  __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}

/* a where y is less than the limit, else 0 */
static inline vec if_below(vec y, vec limit, vec a) {
  return _mm256_and_ps(_mm256_cmp_ps(y, limit, _CMP_LT_OQ), a);
}

/* a where the sign of x is plus, b where it is minus */
static inline vec by_sign(vec x, vec a, vec b) { return _mm256_blendv_ps(a, b, x); }

/* The first n lanes, 0 < n < LANES; the others are 0, or not written. */
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

/* Half as many lanes in double. */
typedef __m256d wide;

static inline wide wide_load(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline wide wide_zero(void) { return _mm256_setzero_pd(); }
static inline wide wide_muladd(wide a, wide b, wide c) { return _mm256_fmadd_pd(a, b, c); }
static inline void wide_store(double *p, wide a) { _mm256_storeu_pd(p, a); }

#define TABLE train_pointwise_avx2
#include "pointwise_loops.h"
#endif
