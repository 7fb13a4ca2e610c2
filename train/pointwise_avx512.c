/* SPDX-License-Identifier: Apache-2.0 */
/* Loops between matrix products with AVX-512. */
#include "pointwise.h"

#ifdef KF_HAVE_AVX
#include <immintrin.h>

enum { LANES = 16 };
typedef __m512 vec;

static inline vec load(const float *p) { return _mm512_loadu_ps(p); }
static inline void store(float *p, vec a) { _mm512_storeu_ps(p, a); }
static inline vec all(float a) { return _mm512_set1_ps(a); }
static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec root(vec a) { return _mm512_sqrt_ps(a); }
static inline vec muladd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec mulsub(vec a, vec b, vec c) { return _mm512_fmsub_ps(a, b, c); } /* a b - c */
static inline vec magnitude(vec a) { return _mm512_andnot_ps(all(-0.0f), a); }
static inline vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
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

/* Half as many lanes in double. */
typedef __m512d wide;

static inline wide wide_load(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline wide wide_zero(void) { return _mm512_setzero_pd(); }
static inline wide wide_muladd(wide a, wide b, wide c) { return _mm512_fmadd_pd(a, b, c); }
static inline void wide_store(double *p, wide a) { _mm512_storeu_pd(p, a); }

#define TABLE train_pointwise_avx512
#include "pointwise_loops.h"
#endif
