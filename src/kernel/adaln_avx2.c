/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm-Modulate with AVX2, FMA and F16C: a piece is 32 strands, 4 vectors of 8, so that two
** sums fit in the 16 registers. */
#include "adaln.h"

#ifdef KF_HAVE_AVX
#include "simd.h"

enum { PIECE = 32 };

static inline vec hold(vec a) { return a; } /* a span does not fit in 16 registers */

static inline vec load_bf16(const void *p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline vec load_fp16(const void *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Each float rounded to its upper half, ties to even. A NaN keeps its upper half, made quiet. */
static inline __m256i upper_half(vec v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
}
static inline __m128i to_bf16(vec v) {
  __m256i half = upper_half(v);
  return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
static inline __m256i pair_bf16(vec a, vec b) {
  __m256i lanes = _mm256_packus_epi32(upper_half(a), upper_half(b)); /* a0 b0 a1 b1 */
  return _mm256_permute4x64_epi64(lanes, 0xd8);
}
static inline __m128i to_fp16(vec v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

static inline vec round_bf16(vec v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(upper_half(v), 16));
}
static inline vec round_fp16(vec v) { return _mm256_cvtph_ps(to_fp16(v)); }

static inline void store_half(void *p, __m128i v) { _mm_storeu_si128((__m128i *)p, v); }
static inline void store_pair(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline void stream_pair(void *p, __m256i v) { _mm256_stream_si256((__m256i *)p, v); }
static inline void stream_fp32(void *p, vec v) { _mm256_stream_ps(p, v); }
static inline void stream_half(void *p, __m128i v) { _mm_stream_si128((__m128i *)p, v); }

/* The tree of neighbours over 32 strands: pairs, then fours: each half has its part of each
** vector. */
static inline vec fours(const vec *v) {
  return _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
}

/* Then eights across the halves, the rest across vectors. */
static inline float fold(const vec *v) {
  vec four = fours(v);
  __m128 eight = _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
  __m128 pairs = _mm_add_ps(eight, _mm_movehdup_ps(eight));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}

static inline double fold_exactly(const vec *v) {
  vec four = fours(v);
  __m256d eight = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(four)),
                                _mm256_cvtps_pd(_mm256_extractf128_ps(four, 1)));
  __m256d pairs = _mm256_hadd_pd(eight, eight);
  return _mm_cvtsd_f64(_mm_add_sd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1)));
}

#define FORWARD kfi_adaln_forward_avx2
#define BACKWARD kfi_adaln_backward_avx2
#define WIDEN kfi_adaln_widen_avx2
#include "adaln_rows.h"
#endif
