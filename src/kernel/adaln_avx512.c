/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm-Modulate with AVX-512: a piece is all 64 strands, 4 vectors of 16. */
#include "adaln.h"

#ifdef KF_HAVE_AVX
#include "simd.h"

enum { PIECE = 64 };

/* What was loaded stays in its register: the compiler would rather load it again. */
static inline vec hold(vec a) {
  __asm__("" : "+v"(a));
  return a;
}

static inline vec load_bf16(const void *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vec load_fp16(const void *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Each float rounded to its upper half, ties to even, as bits that still have a lower half. A NaN
** keeps its upper half, made quiet. The instruction of AVX512_BF16 is not used: it takes subnormals
** for zero. */
static inline __m512i upper_half(vec v) {
  __m512i bits = _mm512_castps_si512(v);
  __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  __m512i half = _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(0x7fff), _mm512_set1_epi32(0x8000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, _mm512_set1_epi32(0x400000));
}
static inline __m256i to_bf16(vec v) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper_half(v), 16));
}
/* The upper halves of both, in order: the odd ones of 64 16-bit numbers. */
static inline __m512i pair_bf16(vec a, vec b) {
  const __m512i odd =
    _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                     23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(upper_half(a), odd, upper_half(b));
}
static inline __m256i to_fp16(vec v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

static inline vec round_bf16(vec v) {
  return _mm512_castsi512_ps(_mm512_and_si512(upper_half(v), _mm512_set1_epi32(-65536)));
}
static inline vec round_fp16(vec v) { return _mm512_cvtph_ps(to_fp16(v)); }

static inline void store_half(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline void store_pair(void *p, __m512i v) { _mm512_storeu_si512(p, v); }
static inline void stream_pair(void *p, __m512i v) { _mm512_stream_si512(p, v); }
static inline void stream_fp32(void *p, vec v) { _mm512_stream_ps(p, v); }
static inline void stream_half(void *p, __m256i v) { _mm256_stream_si256((__m256i *)p, v); }

/* The tree of neighbours over 64 strands: pairs, then fours: lane k of 128 bits has 4k .. 4k+3 of
** each of the vectors a, b, c, d. */
static inline vec fours(const vec *v) {
  vec ab = _mm512_shuffle_ps(v[0], v[1], 0x88) + _mm512_shuffle_ps(v[0], v[1], 0xdd);
  vec cd = _mm512_shuffle_ps(v[2], v[3], 0x88) + _mm512_shuffle_ps(v[2], v[3], 0xdd);
  return _mm512_shuffle_ps(ab, cd, 0x88) + _mm512_shuffle_ps(ab, cd, 0xdd);
}

/* Then eights and sixteens across lanes, the rest across vectors. */
static inline float fold(const vec *v) {
  vec four = fours(v);
  vec eight = four + _mm512_shuffle_f32x4(four, four, 0xb1);
  vec sixteen = eight + _mm512_shuffle_f32x4(eight, eight, 0x4e);
  __m128 abcd = _mm512_castps512_ps128(sixteen);
  __m128 pairs = _mm_add_ps(abcd, _mm_movehdup_ps(abcd));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}

static inline __m256d eights(__m256 lanes) {
  __m512d four = _mm512_cvtps_pd(lanes);
  return _mm256_add_pd(_mm512_castpd512_pd256(four), _mm512_extractf64x4_pd(four, 1));
}

static inline double fold_exactly(const vec *v) {
  vec four = fours(v);
  __m256d abcd =
    _mm256_add_pd(eights(_mm512_castps512_ps256(four)), eights(_mm512_extractf32x8_ps(four, 1)));
  __m256d pairs = _mm256_hadd_pd(abcd, abcd);
  return _mm_cvtsd_f64(_mm_add_sd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1)));
}

#define FORWARD kfi_adaln_forward_avx512
#define BACKWARD kfi_adaln_backward_avx512
#define WIDEN kfi_adaln_widen_avx512
#include "adaln_rows.h"
#endif
