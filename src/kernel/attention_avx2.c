/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with AVX2 and FMA: 12 of the 16 registers hold a tile of 4 x 3 vectors of 8. */
#include "attention.h"

#ifdef KF_HAVE_AVX
#include "simd.h"

enum { TILE = 4 };

static inline vec nearest(vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for a whole n from -126 to 127 and a near 1: n is added to the exponent */
static inline vec times_power(vec a, vec n) {
  __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}

#define FORWARD kfi_forward_avx2
#define BACKWARD kfi_backward_avx2
#include "attention_tile.h"
#endif
