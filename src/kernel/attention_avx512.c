/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with AVX-512: 24 of the 32 registers hold a tile of 8 x 3 vectors of 16. */
#include "attention.h"

#ifdef KF_HAVE_AVX
#include <immintrin.h>

enum { LANES = 16, TILE = 8 };
typedef __m512 vec;

static inline vec load(const float *p) { return _mm512_loadu_ps(p); }
static inline void store(float *p, vec a) { _mm512_storeu_ps(p, a); }
static inline vec all(float a) { return _mm512_set1_ps(a); }
static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec muladd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec nearest(vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for a whole n from -126 to 127 */
static inline vec times_power(vec a, vec n) { return _mm512_scalef_ps(a, n); }

#define FORWARD kfi_forward_avx512
#define BACKWARD kfi_backward_avx512
#include "attention_tile.h"
#endif
