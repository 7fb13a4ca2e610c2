/* SPDX-License-Identifier: Apache-2.0 */
/*
** The vector `vec` of LANES floats, by the instruction set that the including file is compiled for,
** and what the kernels do with it. Sums and products are the compiler's + - * /, with a vector or a
** float on either side; -ffp-contract=off keeps it from fusing them.
*/
#ifndef KF_SIMD_H
#define KF_SIMD_H

#include <immintrin.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#define OP(name) _mm512_##name##_ps
#else
enum { LANES = 8 };
#define OP(name) _mm256_##name##_ps
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));

static inline vec all(float a) { return OP(set1)(a); }
static inline vec load(const void *p) { return OP(loadu)(p); }
static inline void store(void *p, vec a) { OP(storeu)(p, a); }
static inline vec muladd(vec a, vec b, vec c) { return OP(fmadd)(a, b, c); }  /* a b + c */
static inline vec mulsub(vec a, vec b, vec c) { return OP(fnmadd)(a, b, c); } /* c - a b */
static inline vec larger(vec a, vec b) { return OP(max)(a, b); }

/*
** Functions that are specialised by their constant arguments, and loops over arrays of vectors,
** which are to be registers. Sanitizers make such code so large that compiling it takes minutes.
*/
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INLINE static inline
#define UNROLL
#endif
#endif
#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif

#endif
