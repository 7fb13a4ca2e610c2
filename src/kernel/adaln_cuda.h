/* SPDX-License-Identifier: Apache-2.0 */
/*
** How a row lies in the threads of a block, for adaln.cu: types, loads and stores, and the sum of a
** row in the order of adaln.h.
**
** A team of threads owns a span of 256 columns. A thread owns WIDTH neighbours of each 64, so that
** its sums over the span are the strands themselves; a step is 64 columns:
**
**     wide, fp32      16 lanes, lane 0 has columns 0..3, 64..67, 128..131, 192..195
**     wide, 16 bits    8 lanes, lane 0 has columns 0..7, 64..71, 128..135, 192..199
**     narrow          32 lanes, lane 0 has columns 0..1, 64..65, 128..129, 192..193
**
** Wide is for rows on multiples of 16 bytes: every access is 16 bytes. Narrow is for the others,
** one element at a time. A block has up to 32 teams, which is 8192 columns; then the next tile.
** 3072 columns are 12 teams: 192 threads with fp32, 96 with 16 bits. Values stay packed as they
** were loaded.
**
** Sums that begin with 0 are never -0, so a term of 0 beyond the last column changes nothing.
*/
#ifndef KFI_ADALN_CUDA_H
#define KFI_ADALN_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <knapformer.h>
#include <stdint.h>

/* All shared memory: sums of spans, see add_spans, adaln_forward and adaln_backward. */
extern __shared__ float4 kf_shared[];

namespace {

enum { STRANDS = 64, SPAN = 256, STEPS = SPAN / STRANDS, MAX_TEAMS = 32 };

/* ------------------------------------------------------------------------------- types */

/* A type of storage: a word holds one or two values. */
struct fp32 {
  typedef uint32_t bits;
  static __device__ __forceinline__ float round(float v) { return v; }
  static __device__ __forceinline__ void unpack(uint32_t word, float *v) {
    v[0] = __uint_as_float(word);
  }
  static __device__ __forceinline__ uint32_t pack(const float *v) { return __float_as_uint(v[0]); }
};

struct bf16 {
  typedef uint16_t bits;
  static __device__ __forceinline__ float round(float v) {
    return __bfloat162float(__float2bfloat16_rn(v));
  }
  static __device__ __forceinline__ void unpack(uint32_t word, float *v) {
    v[0] = __uint_as_float(word << 16);
    v[1] = __uint_as_float(word & 0xffff0000u);
  }
  static __device__ __forceinline__ uint32_t pack(const float *v) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(v[0], v[1]);
    return __bfloat16_as_ushort(two.x) | (uint32_t)__bfloat16_as_ushort(two.y) << 16;
  }
};

struct fp16 {
  typedef uint16_t bits;
  static __device__ __forceinline__ float round(float v) {
    return __half2float(__float2half_rn(v));
  }
  static __device__ __forceinline__ void unpack(uint32_t word, float *v) {
    v[0] = __half2float(__ushort_as_half((uint16_t)word));
    v[1] = __half2float(__ushort_as_half((uint16_t)(word >> 16)));
  }
  static __device__ __forceinline__ uint32_t pack(const float *v) {
    const __half2 two = __floats2half2_rn(v[0], v[1]);
    return __half_as_ushort(two.x) | (uint32_t)__half_as_ushort(two.y) << 16;
  }
};

/* A type, and how many neighbours of it a thread owns. */
template <class S, int W> struct layout {
  typedef S type;
  typedef typename S::bits bits;
  enum {
    WIDTH = W,
    LANES = STRANDS / W,
    WORDS = W * sizeof(bits) / 4,
    PER_WORD = 4 / sizeof(bits),
    WIDE = WORDS == 4,
    TEAMS = WIDE ? MAX_TEAMS : MAX_TEAMS / 2 /* at most: narrow ones have more lanes */
  };
};
template <class S> using wide = layout<S, 16 / sizeof(typename S::bits)>;
template <class S> using narrow = layout<S, 2>;

/* A thread's columns of a step. */
template <class T> struct words { uint32_t w[T::WORDS]; };

template <class T> __device__ __forceinline__ void unpack(const words<T> &from, float v[T::WIDTH]) {
#pragma unroll
  for (int i = 0; i < T::WORDS; i++) T::type::unpack(from.w[i], v + i * T::PER_WORD);
}

template <class T> __device__ __forceinline__ words<T> pack(const float v[T::WIDTH]) {
  words<T> to;
#pragma unroll
  for (int i = 0; i < T::WORDS; i++) to.w[i] = T::type::pack(v + i * T::PER_WORD);
  return to;
}

/* [R] of adaln.h: rounds to the type if every operation does. */
template <class T, bool EACH> __device__ __forceinline__ float maybe(float v) {
  return EACH ? T::type::round(v) : v;
}

/* a * b + c */
template <class T, bool EACH> __device__ __forceinline__ float combine(float a, float b, float c) {
  return EACH ? __fadd_rn(T::type::round(__fmul_rn(a, b)), c) : __fmaf_rn(a, b, c);
}

/* -------------------------------------------------------------------- a thread's columns */

struct spot {
  int lane, team, n_teams;
  int tile, n_tiles;
  int dim;
  int turn; /* which half of the shared sums is used next */

  __device__ __forceinline__ int span() const { return tile * n_teams + team; }
  __device__ __forceinline__ int columns_of_span() const { /* 0 or less: there is no such span */
    return dim - span() * SPAN < SPAN ? dim - span() * SPAN : SPAN;
  }
  __device__ __forceinline__ int first() const { return span() * SPAN + lane; }
  /* How many of the step's columns are there, from this one on; 0 or less: none. */
  __device__ __forceinline__ int left(int step) const { return dim - first() - step * STRANDS; }
  /* The step's first element in a row. The steps are a constant apart: one address does for all. */
  __device__ __forceinline__ int64_t in(int64_t row, int step) const {
    return row + first() + (int64_t)(step * STRANDS);
  }
};

template <class T> __device__ __forceinline__ spot spot_of(int64_t dim) {
  const int n_teams = (int)blockDim.x / T::LANES, tile_columns = n_teams * SPAN;
  spot at;
  at.lane = (int)threadIdx.x % T::LANES * T::WIDTH;
  at.team = (int)threadIdx.x / T::LANES;
  at.n_teams = n_teams;
  at.tile = 0;
  at.n_tiles = ((int)dim + tile_columns - 1) / tile_columns;
  at.dim = (int)dim;
  at.turn = 0;
  return at;
}

/* --------------------------------------------------------------------- loads and stores */

/* Element i of a tensor and the WIDTH - 1 after it, of which the first n are there; those that are
** not are 0. Wide ones are all there or none. Tokens are read once, so their lines may leave the
** caches first. The thread may have written x before, so this is no __ldg. */
template <class T> __device__ __forceinline__ words<T> load(const void *tensor, int64_t i, int n) {
  const typename T::bits *from = (const typename T::bits *)tensor + i;
  words<T> to = {};
  if constexpr (T::WIDE) {
    if (n <= 0) return to;
    const uint4 v = __ldcs((const uint4 *)from);
    to.w[0] = v.x, to.w[1] = v.y, to.w[2] = v.z, to.w[3] = v.w;
  } else {
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++)
      if (j < n) to.w[j / T::PER_WORD] |= (uint32_t)from[j] << j % T::PER_WORD * 16;
  }
  return to;
}

/* What is written is read by the next operation of the model: it stays in L2 if it can. A plain
** assignment would say that too, but nvcc cuts it into four stores. */
template <class T>
__device__ __forceinline__ void store(void *tensor, int64_t i, int n, const words<T> &v) {
  typename T::bits *to = (typename T::bits *)tensor + i;
  if constexpr (T::WIDE) {
    if (n > 0) __stwb((uint4 *)to, make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
  } else {
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++)
      if (j < n) to[j] = (typename T::bits)(v.w[j / T::PER_WORD] >> j % T::PER_WORD * 16);
  }
}

/* A row's columns of the tile at hand; all loads are under way before any is needed. */
template <class T>
__device__ __forceinline__ void load_tile(const void *tensor, int64_t row, const spot &at,
                                          words<T> to[STEPS]) {
#pragma unroll
  for (int step = 0; step < STEPS; step++)
    to[step] = load<T>(tensor, at.in(row, step), at.left(step));
}

/* The same of one step of scale, shift or gate, in fp32. They are read again for every token, from
** L1. With EACH they are of the tokens' type. */
template <class T, bool EACH>
__device__ __forceinline__ void load_modulation(const kf_adaln &a, const void *tensor, int64_t i,
                                                int n, float v[T::WIDTH]) {
  if (T::PER_WORD == 2 && !EACH && a.mod_fp32) {
    const float *from = (const float *)tensor + i;
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) v[j] = 0;
    if constexpr (T::WIDE) {
      if (n <= 0) return;
#pragma unroll
      for (int j = 0; j < T::WIDTH; j += 4) {
        const float4 four = __ldg((const float4 *)(from + j));
        v[j] = four.x, v[j + 1] = four.y, v[j + 2] = four.z, v[j + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < T::WIDTH; j++)
        if (j < n) v[j] = __ldg(from + j);
    }
    return;
  }
  words<T> from = {};
  if constexpr (T::WIDE) {
    if (n > 0) {
      const uint4 four = __ldg((const uint4 *)((const typename T::bits *)tensor + i));
      from.w[0] = four.x, from.w[1] = four.y, from.w[2] = four.z, from.w[3] = four.w;
    }
  } else {
    from = load<T>(tensor, i, n);
  }
  unpack<T>(from, v);
}

/* ----------------------------------------------------------------------------------- sums */

/* The sum of a span's strands, for all lanes of its team: a tree, first in a thread, then over
** lanes. */
template <class T> __device__ __forceinline__ float fold(float strand[T::WIDTH]) {
#pragma unroll
  for (int apart = 1; apart < T::WIDTH; apart *= 2)
#pragma unroll
    for (int j = 0; j < T::WIDTH; j += 2 * apart)
      strand[j] = __fadd_rn(strand[j], strand[j + apart]);
  float sum = strand[0];
#pragma unroll
  for (int apart = 1; apart < T::LANES; apart *= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
  return sum;
}

/* The same tree, but above fours of strands in double. */
template <class T> __device__ __forceinline__ double fold_in_double(float strand[T::WIDTH]) {
  enum { IN_THREAD = T::WIDTH < 4 ? T::WIDTH : 4 };
#pragma unroll
  for (int apart = 1; apart < IN_THREAD; apart *= 2)
#pragma unroll
    for (int j = 0; j < T::WIDTH; j += 2 * apart)
      strand[j] = __fadd_rn(strand[j], strand[j + apart]);
  if constexpr (T::WIDTH == 2)
    strand[0] = __fadd_rn(strand[0], __shfl_xor_sync(0xffffffffu, strand[0], 1));
  double sum = strand[0];
  if constexpr (T::WIDTH == 8) sum = __dadd_rn(sum, strand[4]);
#pragma unroll
  for (int apart = T::WIDTH == 2 ? 2 : 1; apart < T::LANES; apart *= 2)
    sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
  return sum;
}

/*
** Add two sums of each span of this tile to total[], in order, by every thread for itself.
**
** One barrier is enough because two halves take turns: who writes a half for the second time has
** passed the barrier of the turn between, which nobody reaches before having read the first.
*/
template <class T>
__device__ __forceinline__ void add_spans(spot &at, float strand[2][T::WIDTH], float total[2]) {
  float *half = (float *)kf_shared + at.turn * 2 * MAX_TEAMS;
  const float sum[2] = {fold<T>(strand[0]), fold<T>(strand[1])};
  if (at.lane == 0) half[2 * at.team] = sum[0];
  if (at.lane == 0) half[2 * at.team + 1] = sum[1];
  at.turn ^= 1;
  __syncthreads();
  for (int team = 0; team < at.n_teams; team++) {
    total[0] = __fadd_rn(total[0], half[2 * team]);
    total[1] = __fadd_rn(total[1], half[2 * team + 1]);
  }
}

/* What the moments of a row are made of: s_r, e_r and q_r. m_r is s_r / n_r. */
struct span {
  float sum, rest, squares;
};

/* The span of x that this team has. */
template <class T>
__device__ __forceinline__ span sum_span(const spot &at, const words<T> x[STEPS]) {
  float sum[T::WIDTH] = {}, squares[T::WIDTH] = {}, value[T::WIDTH];
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    unpack<T>(x[step], value); /* 0 beyond dim */
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) sum[j] = __fadd_rn(sum[j], value[j]);
  }
  const double exact = fold_in_double<T>(sum);
  const float n = (float)at.columns_of_span(), rounded = __double2float_rn(exact);
  const float mean = __fdiv_rn(rounded, n);
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int left = at.left(step);
    if (left <= 0) continue;
    unpack<T>(x[step], value);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) {
      const float d = __fsub_rn(value[j], mean);
      if (T::WIDE || j < left) squares[j] = __fmaf_rn(d, d, squares[j]);
    }
  }
  return {rounded, __double2float_rn(__dadd_rn(exact, -__dmul_rn(n, mean))), fold<T>(squares)};
}

/* Mean and rstd of a row, from all of its spans. To divide by 256 is to multiply by 2^-8, so there
** is one division for the last span, which may be shorter. */
__device__ __forceinline__ void find_moments(const spot &at, const span *spans, float eps,
                                             float &mean, float &rstd) {
  const int whole = at.dim / SPAN, n_spans = (at.dim + SPAN - 1) / SPAN;
  const float dim = (float)at.dim, last = (float)(at.dim - (n_spans - 1) * SPAN);
  const float last_mean = __fdiv_rn(spans[n_spans - 1].sum, last);
  float sum = 0, rest = 0, squares = 0;
  for (int r = 0; r < n_spans; r++) sum = __fadd_rn(sum, spans[r].sum);
  const float rough = __fdiv_rn(sum, dim);
  for (int r = 0; r < n_spans; r++) {
    const float n = r < whole ? (float)SPAN : last;
    const float m = r < whole ? __fmul_rn(spans[r].sum, 1.0f / SPAN) : last_mean;
    rest = __fadd_rn(rest, __fmaf_rn(n, __fsub_rn(m, rough), spans[r].rest));
  }
  mean = __fadd_rn(rough, __fdiv_rn(rest, dim));
  for (int r = 0; r < n_spans; r++) {
    const float n = r < whole ? (float)SPAN : last;
    const float m = r < whole ? __fmul_rn(spans[r].sum, 1.0f / SPAN) : last_mean;
    const float off = __fsub_rn(m, mean);
    squares = __fmaf_rn(__fmul_rn(n, off), off, __fadd_rn(squares, spans[r].squares));
  }
  rstd = __fdiv_rn(1, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, dim), eps)));
}

} // namespace

#endif
