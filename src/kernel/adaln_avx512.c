/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm-Modulate with AVX-512: a piece is all 64 strands, 4 vectors of 16. */
#include "adaln.h"

#ifdef KF_HAVE_AVX
#include <immintrin.h>

enum { LANES = 16, PIECE = 64 };
typedef __m512 vec;

static inline vec all(float a) { return _mm512_set1_ps(a); }
static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec muladd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec mulsub(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */

static inline vec load_fp32(const void *p) { return _mm512_loadu_ps(p); }
static inline vec load_bf16(const void *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vec load_fp16(const void *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* The upper half of each float, rounded to even. A NaN keeps its upper half, made quiet. The
** instruction of AVX512_BF16 is not used: it takes subnormals for zero. */
static inline __m256i to_bf16(vec v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
static inline __m256i to_fp16(vec v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

static inline vec round_bf16(vec v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(v)), 16));
}
static inline vec round_fp16(vec v) { return _mm512_cvtph_ps(to_fp16(v)); }

static inline void store_fp32(void *p, vec v) { _mm512_storeu_ps(p, v); }
static inline void store_half(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline void stream_fp32(void *p, vec v) { _mm512_stream_ps(p, v); }
static inline void stream_half(void *p, __m256i v) { _mm256_stream_si256((__m256i *)p, v); }

/* The tree of neighbours over 64 strands: pairs, fours (lane k then has 4k .. 4k+3 of each vector),
** eights and sixteens across lanes, then across vectors. */
static inline float fold(const vec *v) {
  vec ab = add(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
  vec cd = add(_mm512_shuffle_ps(v[2], v[3], 0x88), _mm512_shuffle_ps(v[2], v[3], 0xdd));
  vec four = add(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
  vec eight = add(four, _mm512_shuffle_f32x4(four, four, 0xb1));
  vec sixteen = add(eight, _mm512_shuffle_f32x4(eight, eight, 0x4e));
  __m128 abcd = _mm512_castps512_ps128(sixteen);
  __m128 pairs = _mm_add_ps(abcd, _mm_movehdup_ps(abcd));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}

#define FORWARD kfi_adaln_forward_avx512
#define BACKWARD kfi_adaln_backward_avx512
#define WIDEN kfi_adaln_widen_avx512
#include "adaln_rows.h"
#endif
