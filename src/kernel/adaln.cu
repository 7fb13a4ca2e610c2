/* SPDX-License-Identifier: Apache-2.0 */
/*
** LayerNorm-Modulate on CUDA: the twin of adaln.c and adaln_portable.c, in the order of arithmetic
** that adaln.h fixes, so with the same bits. adaln_cuda.h has how a row lies in threads.
**
**   forward    a block takes a few tokens of a chunk. A row stays in registers from its only read
**              until y is written.
**   backward   a block takes a chunk and walks its tokens in order. A thread keeps the sums of its
**              columns in registers, and writes them to partial[chunk] at the end.
**   finish     a thread owns a column of one sequence's dscale, dshift or dgate, and adds up the
**              partials of that sequence's chunks in order.
**
** Nothing is added by atomics, so nothing depends on who came first. Rows that do not fit a block
** (8192 columns) go by tiles: forward reads x again to write y; backward first computes c1 and c2
** of all tokens of the chunk, then takes tile after tile.
**
**     workspace: chunk table | chunk_off | partial of chunk 0, 1, ..
**
** Each kernel comes in three: wide without and with a gate, and narrow with either.
*/
#include <knapformer_cuda.h>

#include <stdio.h>
#include <stdlib.h>

#include <type_traits>

#include "adaln_cuda.h"

namespace {

/* A kernel's parameters: what the caller asked for, without defaults, and the workspace. */
struct call {
  kf_adaln a;
  const kf_adaln_chunk *chunk; // (n_chunks)
  const int64_t *chunk_off;    // (n_seqs + 1)
  float *partial;              // (n_chunks, n_sums, dim) of dscale, dshift, dgate
  int n_sums;                  // 3 with a gate, else 2
};

enum path { PLAIN, GATED, NARROW };

enum {
  ROWS = 4, /* tokens of a forward block */
  PARTS = KF_ADALN_CHUNK / ROWS,
  SUM_FLOATS = 2 * 2 * MAX_TEAMS, /* of add_spans: two halves, two sums of each team */
  FINISH_THREADS = 128,
  FINISH_DEPTH = 32 /* loads under way: one long sequence has few columns to hide behind */
};

/* A token at hand: where its row and its modulation begin, and what is known of it by now. */
struct token {
  int64_t row, mod;
  float mean, rstd; /* forward */
  float c1, c2;     /* backward */
};

/* ------------------------------------------------------------------------------- forward */

/* One tile of x = residual + gate * u; written, and kept. */
template <class T, bool EACH>
__device__ __forceinline__ void make_x(const call &c, const spot &at, const token &k,
                                       words<T> x[STEPS]) {
  words<T> u[STEPS];
  load_tile<T>(c.a.residual, k.row, at, x);
  load_tile<T>(c.a.u, k.row, at, u);
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int n = at.left(step);
    float gate[T::WIDTH], value[T::WIDTH], add[T::WIDTH];
    load_modulation<T, EACH>(c.a, c.a.gate, at.in(k.mod, step), n, gate);
    unpack<T>(x[step], value);
    unpack<T>(u[step], add);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) value[j] = combine<T, EACH>(gate[j], add[j], value[j]);
    x[step] = pack<T>(value);
    store<T>(c.a.x, at.in(k.row, step), n, x[step]);
  }
}

template <class T, bool EACH>
__device__ __forceinline__ void write_y(const call &c, const spot &at, const token &k,
                                        const words<T> x[STEPS]) {
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int n = at.left(step);
    float scale[T::WIDTH], shift[T::WIDTH], value[T::WIDTH];
    load_modulation<T, EACH>(c.a, c.a.scale, at.in(k.mod, step), n, scale);
    load_modulation<T, EACH>(c.a, c.a.shift, at.in(k.mod, step), n, shift);
    unpack<T>(x[step], value);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) {
      const float factor = maybe<T, EACH>(__fadd_rn(1, scale[j]));
      const float xhat = maybe<T, EACH>(__fmul_rn(__fsub_rn(value[j], k.mean), k.rstd));
      value[j] = combine<T, EACH>(xhat, factor, shift[j]);
    }
    store<T>(c.a.y, at.in(k.row, step), n, pack<T>(value));
  }
}

/*
** The spans of a row are in shared memory: one tile's twice, in turns, as in add_spans; those of
** several tiles once. 128 registers a thread at most: with the limit left to the compiler, it aims
** lower, and spills.
*/
template <class T, bool EACH, int PATH>
__global__ void __launch_bounds__(T::LANES *T::TEAMS, 512 / (T::LANES * T::TEAMS))
  adaln_forward(call c) {
  const bool gated = PATH == NARROW ? c.a.gate != nullptr : PATH == GATED;
  const kf_adaln_chunk chunk = c.chunk[blockIdx.x / PARTS];
  const int first = (int)(blockIdx.x % PARTS) * ROWS;
  spot at = spot_of<T>(c.a.dim);
  for (int t = first; t < first + ROWS && t < chunk.n_tokens; t++) {
    token k = {(chunk.first + t) * c.a.dim, chunk.seq * c.a.mod_stride, 0, 0, 0, 0};
    span *spans = (span *)kf_shared + at.turn * MAX_TEAMS;
    words<T> x[STEPS];
    for (at.tile = 0; at.tile < at.n_tiles; at.tile++) {
      if (gated)
        make_x<T, EACH>(c, at, k, x);
      else
        load_tile<T>(c.a.x, k.row, at, x);
      const span r = sum_span<T>(at, x);
      if (at.lane == 0 && at.columns_of_span() > 0) spans[at.span()] = r;
    }
    __syncthreads();
    find_moments(at, spans, c.a.eps, k.mean, k.rstd);
    for (at.tile = 0; at.tile < at.n_tiles; at.tile++) {
      if (at.n_tiles > 1) load_tile<T>(c.a.x, k.row, at, x);
      write_y<T, EACH>(c, at, k, x);
    }
    if (threadIdx.x == 0 && c.a.mean) {
      c.a.mean[chunk.first + t] = k.mean;
      c.a.rstd[chunk.first + t] = k.rstd;
    }
    if (at.n_tiles > 1)
      __syncthreads(); /* there is no room for a second half */
    else
      at.turn ^= 1;
  }
}

/* ------------------------------------------------------------------------------ backward */

/* What backward reads of a token's tile before c1 and c2 can be known. */
template <class T> struct slice {
  words<T> x[STEPS], dy[STEPS];
  float mean, rstd;
};

template <class T>
__device__ __forceinline__ void load_slice(const call &c, const spot &at, int64_t token,
                                           slice<T> &s) {
  load_tile<T>(c.a.x, token * c.a.dim, at, s.x);
  load_tile<T>(c.a.dy, token * c.a.dim, at, s.dy);
  s.mean = c.a.mean[token];
  s.rstd = c.a.rstd[token];
}

/* A step's columns. Made twice, before and after c1 and c2 are known: cheaper than to keep them. */
template <class T> struct columns { float x_[T::WIDTH], g[T::WIDTH], dy[T::WIDTH]; };

template <class T, bool EACH>
__device__ __forceinline__ void place(const call &c, const spot &at, const token &k, int step,
                                      const slice<T> &s, columns<T> &to) {
  float scale[T::WIDTH];
  load_modulation<T, EACH>(c.a, c.a.scale, at.in(k.mod, step), at.left(step), scale);
  unpack<T>(s.x[step], to.x_);
  unpack<T>(s.dy[step], to.dy);
#pragma unroll
  for (int j = 0; j < T::WIDTH; j++) {
    to.x_[j] = __fmul_rn(__fsub_rn(to.x_[j], s.mean), s.rstd);
    to.g[j] = maybe<T, EACH>(__fmul_rn(to.dy[j], maybe<T, EACH>(__fadd_rn(1, scale[j]))));
  }
}

/* The sums over the chunk's tokens of a thread's columns. */
template <class T> struct gradients {
  float dscale[STEPS][T::WIDTH], dshift[STEPS][T::WIDTH], dgate[STEPS][T::WIDTH];
};

/* The terms of c1 and c2 of one tile; with SUMS those of dscale and dshift too. */
template <class T, bool EACH, bool SUMS>
__device__ __forceinline__ void sum_slice(const call &c, const spot &at, const token &k,
                                          const slice<T> &s, float strand[2][T::WIDTH],
                                          gradients<T> &sum) {
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int n = at.left(step);
    columns<T> p;
    if (n <= 0) continue;
    place<T, EACH>(c, at, k, step, s, p);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) {
      strand[0][j] = __fadd_rn(strand[0][j], p.g[j]);
      if (T::WIDE || j < n) strand[1][j] = __fmaf_rn(p.g[j], p.x_[j], strand[1][j]);
      if (!SUMS) continue;
      sum.dscale[step][j] = combine<T, EACH>(p.dy[j], maybe<T, EACH>(p.x_[j]), sum.dscale[step][j]);
      sum.dshift[step][j] = __fadd_rn(sum.dshift[step][j], p.dy[j]);
    }
  }
}

/* What backward reads of a row's tile only when c1 and c2 are known. */
template <class T> struct extras { words<T> u[STEPS], dx_add[STEPS]; };

template <class T>
__device__ __forceinline__ void load_extras(const call &c, const token &k, const spot &at,
                                            bool gated, extras<T> &e) {
  if (gated) load_tile<T>(c.a.u, k.row, at, e.u);
  if (c.a.dx_add) load_tile<T>(c.a.dx_add, k.row, at, e.dx_add);
}

/* dx of one step's columns, and with a gate du and the terms of dgate. dx_add may be dx. */
template <class T, bool EACH>
__device__ __forceinline__ void write_dx(const call &c, const spot &at, const token &k, int step,
                                         const slice<T> &s, const extras<T> &e, bool gated,
                                         float dgate[T::WIDTH]) {
  const int n = at.left(step);
  columns<T> p;
  float d[T::WIDTH], other[T::WIDTH], gate[T::WIDTH];
  place<T, EACH>(c, at, k, step, s, p);
#pragma unroll
  for (int j = 0; j < T::WIDTH; j++)
    d[j] = maybe<T, EACH>(__fmul_rn(s.rstd, __fmaf_rn(-p.x_[j], k.c2, __fsub_rn(p.g[j], k.c1))));
  if (c.a.dx_add) {
    unpack<T>(e.dx_add[step], other);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j++) d[j] = maybe<T, EACH>(__fadd_rn(d[j], other[j]));
  }
  store<T>(c.a.dx, at.in(k.row, step), n, pack<T>(d));
  if (!gated) return;
  unpack<T>(e.u[step], other);
  load_modulation<T, EACH>(c.a, c.a.gate, at.in(k.mod, step), n, gate);
#pragma unroll
  for (int j = 0; j < T::WIDTH; j++) {
    dgate[j] = combine<T, EACH>(d[j], other[j], dgate[j]);
    gate[j] = __fmul_rn(gate[j], d[j]);
  }
  store<T>(c.a.du, at.in(k.row, step), n, pack<T>(gate));
}

/* One of a thread's three sums goes to the chunk's place in the workspace. */
template <class T>
__device__ __forceinline__ void write_partial(const call &c, const spot &at, int which,
                                              const float sum[STEPS][T::WIDTH]) {
  typedef std::conditional_t<T::WIDE, wide<fp32>, narrow<fp32>> F;
  float *row = c.partial + (blockIdx.x * (int64_t)c.n_sums + which) * c.a.dim;
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int n = at.left(step);
#pragma unroll
    for (int j = 0; j < T::WIDTH; j += F::WIDTH)
      store<F>(row, at.in(j, step), n - j, pack<F>(sum[step] + j));
  }
}

/* c1 and c2 of all the chunk's tokens, for rows of more than one tile. */
template <class T, bool EACH>
__device__ __forceinline__ void find_slopes(const call &c, spot &at, const kf_adaln_chunk &chunk,
                                            float *slopes) {
  for (int t = 0; t < chunk.n_tokens; t++) {
    token k = {(chunk.first + t) * c.a.dim, chunk.seq * c.a.mod_stride, 0, 0, 0, 0};
    float total[2] = {0, 0};
    for (at.tile = 0; at.tile < at.n_tiles; at.tile++) {
      float strand[2][T::WIDTH] = {};
      gradients<T> none;
      slice<T> s;
      load_slice<T>(c, at, chunk.first + t, s);
      sum_slice<T, EACH, false>(c, at, k, s, strand, none);
      add_spans<T>(at, strand, total);
    }
    if (threadIdx.x > 1) continue;
    slopes[2 * t + threadIdx.x] = __fdiv_rn(threadIdx.x ? total[1] : total[0], (float)c.a.dim);
  }
  __syncthreads();
}

/*
** When things are loaded is a matter of registers; a block of 512 threads has 128 for each, one of
** 384 has 168, one of 256 all 255. With 16 bits, half as many bytes are under way, so the next
** token's x and dy are loaded before this one's sums; with a gate there is more to load for each
** token, and u and dx_add come along with x and dy. Else dx_add is loaded when it is needed.
*/
template <class T, int PATH> struct plan {
  enum {
    AHEAD = PATH == PLAIN && T::WIDTH == 8,
    EARLY = PATH == GATED,
    TEAMS = PATH == GATED && T::WIDTH == 4 ? 24 : T::TEAMS,
    THREADS = T::LANES * TEAMS
  };
};

template <class T, bool EACH, int PATH>
__global__ void __launch_bounds__(plan<T, PATH>::THREADS, 1) adaln_backward(call c) {
  constexpr bool AHEAD = plan<T, PATH>::AHEAD, EARLY = plan<T, PATH>::EARLY;
  const bool gated = PATH == NARROW ? c.a.gate != nullptr : PATH == GATED;
  const kf_adaln_chunk chunk = c.chunk[blockIdx.x];
  float *slopes = (float *)kf_shared + SUM_FLOATS; /* of rows of several tiles */
  spot at = spot_of<T>(c.a.dim);
  if (at.n_tiles > 1) find_slopes<T, EACH>(c, at, chunk, slopes);
  for (at.tile = 0; at.tile < at.n_tiles; at.tile++) {
    gradients<T> sum = {};
    slice<T> s, next;
    extras<T> e;
    if (AHEAD) load_slice<T>(c, at, chunk.first, next);
    for (int t = 0; t < chunk.n_tokens; t++) {
      token k = {(chunk.first + t) * c.a.dim, chunk.seq * c.a.mod_stride, 0, 0, 0, 0};
      float strand[2][T::WIDTH] = {}, total[2] = {0, 0};
      if (AHEAD)
        s = next;
      else
        load_slice<T>(c, at, chunk.first + t, s);
      if (AHEAD && t + 1 < chunk.n_tokens) load_slice<T>(c, at, chunk.first + t + 1, next);
      if (EARLY) load_extras<T>(c, k, at, gated, e);
      sum_slice<T, EACH, true>(c, at, k, s, strand, sum);
      if (at.n_tiles == 1) {
        add_spans<T>(at, strand, total);
        k.c1 = __fdiv_rn(total[0], (float)c.a.dim);
        k.c2 = __fdiv_rn(total[1], (float)c.a.dim);
      } else {
        k.c1 = slopes[2 * t];
        k.c2 = slopes[2 * t + 1];
      }
      if (!EARLY) load_extras<T>(c, k, at, gated, e);
#pragma unroll
      for (int step = 0; step < STEPS; step++)
        write_dx<T, EACH>(c, at, k, step, s, e, gated, sum.dgate[step]);
    }
    write_partial<T>(c, at, 0, sum.dscale);
    write_partial<T>(c, at, 1, sum.dshift);
    if (gated) write_partial<T>(c, at, 2, sum.dgate);
  }
}

/* -------------------------------------------------------------------------------- finish */

template <class S> __device__ __forceinline__ void store_one(void *tensor, int64_t i, float v) {
  const float two[2] = {v, 0};
  store<narrow<S>>(tensor, i, 1, pack<narrow<S>>(two));
}

/* Block: FINISH_THREADS neighbouring columns of one of a sequence's sums. */
__global__ void __launch_bounds__(FINISH_THREADS) adaln_finish(call c) {
  const int64_t dim = c.a.dim;
  const int n_tiles = (int)((dim + FINISH_THREADS - 1) / FINISH_THREADS);
  const int tile = (int)blockIdx.x % n_tiles, which = (int)blockIdx.x / n_tiles % c.n_sums;
  const int64_t seq = blockIdx.x / n_tiles / c.n_sums, end = c.chunk_off[seq + 1];
  const int64_t column = (int64_t)tile * FINISH_THREADS + threadIdx.x;
  if (column >= dim) return;
  double total = 0;
  for (int64_t chunk = c.chunk_off[seq]; chunk < end; chunk += FINISH_DEPTH) {
    float part[FINISH_DEPTH];
#pragma unroll
    for (int i = 0; i < FINISH_DEPTH; i++)
      part[i] = chunk + i < end ? c.partial[((chunk + i) * c.n_sums + which) * dim + column] : 0;
#pragma unroll
    for (int i = 0; i < FINISH_DEPTH; i++) total = __dadd_rn(total, part[i]);
  }
  void *to = which == 0 ? c.a.dscale : which == 1 ? c.a.dshift : c.a.dgate;
  const int64_t i = seq * c.a.mod_stride + column;
  const float sum = __double2float_rn(total);
  if (c.a.dtype == KF_F32 || c.a.mod_fp32)
    store_one<fp32>(to, i, sum);
  else if (c.a.dtype == KF_BF16)
    store_one<bf16>(to, i, sum);
  else
    store_one<fp16>(to, i, sum);
}

/* ------------------------------------------------------------------- the host: workspace */

enum { LINE = 64 };

int64_t lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

int64_t chunk_bytes(int64_t n_chunks) { return lines(n_chunks * (int64_t)sizeof(kf_adaln_chunk)); }

int64_t table_bytes(const kf_adaln *a, int64_t n_chunks) {
  return chunk_bytes(n_chunks) + lines((a->n_seqs + 1) * (int64_t)sizeof(int64_t));
}

kf_status check_workspace(const kf_adaln *a) {
  const int64_t need = kf_adaln_workspace_cuda(a);
  char sentence[160];
  if (!a->workspace)
    snprintf(sentence, sizeof sentence, "workspace is NULL, expected %lld bytes", (long long)need);
  else if ((uintptr_t)a->workspace % LINE)
    snprintf(sentence, sizeof sentence, "workspace is at %p, expected a multiple of %d",
             a->workspace, (int)LINE);
  else if (a->workspace_bytes < need)
    snprintf(sentence, sizeof sentence, "workspace_bytes is %lld, expected at least %lld",
             (long long)a->workspace_bytes, (long long)need);
  else
    return KF_OK;
  return kf_fail(KF_EINVAL, sentence);
}

/* An error that does not stick to the device would otherwise be found by the caller's next
** check. */
kf_status device_failed(const char *what, cudaError_t error) {
  char sentence[256];
  snprintf(sentence, sizeof sentence, "%s: %s", what, cudaGetErrorString(error));
  (void)cudaGetLastError();
  return kf_fail(KF_EDEVICE, sentence);
}

/* -------------------------------------------------------------------- the host: launches */

/* A kernel, and what its blocks are. */
struct choice {
  void (*kernel)(call);
  int lanes, teams; /* threads of a team; teams of a block, at most */
};

/* A block, for rows of dim columns. */
struct shape {
  int threads;
  size_t shared_bytes;
};

template <class T, bool EACH, int PATH> choice choose(bool backward) {
  if (backward) return {adaln_backward<T, EACH, PATH>, T::LANES, plan<T, PATH>::TEAMS};
  return {adaln_forward<T, EACH, PATH>, T::LANES, T::TEAMS};
}

template <class S, bool EACH> choice choose(bool backward, path p) {
  return p == PLAIN   ? choose<wide<S>, EACH, PLAIN>(backward)
         : p == GATED ? choose<wide<S>, EACH, GATED>(backward)
                      : choose<narrow<S>, EACH, NARROW>(backward);
}

template <class S> choice choose(const kf_adaln &a, bool backward, path p) {
  return a.rounding == KF_ROUND_EACH ? choose<S, true>(backward, p) : choose<S, false>(backward, p);
}

/* Rows of several tiles are cut evenly; blocks are whole warps. Forward by tiles needs the most
** shared memory: 48 KB with KF_MAX_DIM, which a block may have without asking. */
shape shape_of(const choice &o, int64_t dim, bool backward) {
  const int64_t n_spans = (dim + SPAN - 1) / SPAN;
  const int64_t n_tiles = (n_spans + o.teams - 1) / o.teams;
  const int64_t n_teams = (n_spans + n_tiles - 1) / n_tiles;
  const int64_t shared = backward ? (SUM_FLOATS + 2 * KF_ADALN_CHUNK) * sizeof(float)
                                  : (n_tiles > 1 ? n_spans : 2 * MAX_TEAMS) * sizeof(span);
  return {(int)((n_teams * o.lanes + 31) / 32 * 32), (size_t)shared};
}

/* 16-byte accesses need every row, of tokens and of modulation, on a multiple of 16 bytes. */
path path_of(const kf_adaln &a, bool backward) {
  const int64_t size = a.dtype == KF_F32 ? 4 : 2, mod_size = a.mod_fp32 ? 4 : size;
  const void *const always[] = {a.x, a.scale}, *const forward_only[] = {a.y, a.shift};
  const void *const gated[] = {a.u, a.gate}, *const backward_only[] = {a.dy, a.dx_add, a.dx};
  uintptr_t any = (uintptr_t)(a.dim * size | a.mod_stride * mod_size);
  for (const void *p : always) any |= (uintptr_t)p;
  if (a.gate)
    for (const void *p : gated) any |= (uintptr_t)p;
  if (backward)
    for (const void *p : backward_only) any |= (uintptr_t)p;
  else
    for (const void *p : forward_only) any |= (uintptr_t)p;
  if (a.gate) any |= (uintptr_t)(backward ? a.du : a.residual);
  return any % 16 ? NARROW : a.gate ? GATED : PLAIN;
}

kf_status launch(void (*kernel)(call), const char *what, int64_t n_blocks, shape block,
                 const call &c, void *stream) {
  cudaLaunchConfig_t config = {};
  if (n_blocks == 0) return KF_OK;
  if (n_blocks > INT32_MAX) {
    char sentence[160];
    snprintf(sentence, sizeof sentence, "%s would take %lld blocks of threads, at most %d can run",
             what, (long long)n_blocks, INT32_MAX);
    return kf_fail(KF_EINVAL, sentence);
  }
  config.gridDim = dim3((unsigned)n_blocks);
  config.blockDim = dim3((unsigned)block.threads);
  config.dynamicSmemBytes = block.shared_bytes;
  config.stream = (cudaStream_t)stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, c);
  return error == cudaSuccess ? KF_OK : device_failed(what, error);
}

kf_status modulate(const kf_adaln *adaln, bool backward, void *stream) {
  int64_t n_chunks;
  kf_status status = kf_adaln_check(adaln, backward);
  if (status) return status;
  if (adaln->n_seqs == 0) return KF_OK;
  if ((status = check_workspace(adaln))) return status;
  if ((status = kf_adaln_chunks(adaln, nullptr, nullptr, &n_chunks))) return status;
  call c = {};
  c.a = *adaln;
  if (c.a.mod_stride == 0) c.a.mod_stride = c.a.dim;
  if (c.a.eps == 0) c.a.eps = 1e-6f;
  if (c.a.dtype == KF_F32) c.a.mod_fp32 = 1;
  char *base = (char *)c.a.workspace;
  c.chunk = (const kf_adaln_chunk *)base;
  c.chunk_off = (const int64_t *)(base + chunk_bytes(n_chunks));
  c.partial = (float *)(base + table_bytes(&c.a, n_chunks));
  c.n_sums = c.a.gate ? 3 : 2;
  const path p = path_of(c.a, backward);
  const choice o = c.a.dtype == KF_F32    ? choose<fp32>(c.a, backward, p)
                   : c.a.dtype == KF_BF16 ? choose<bf16>(c.a, backward, p)
                                          : choose<fp16>(c.a, backward, p);
  const shape block = shape_of(o, c.a.dim, backward);
  if (!backward) return launch(o.kernel, "forward", n_chunks * PARTS, block, c, stream);
  status = launch(o.kernel, "backward", n_chunks, block, c, stream);
  if (status) return status;
  const int64_t n_tiles = (c.a.dim + FINISH_THREADS - 1) / FINISH_THREADS;
  return launch(adaln_finish, "backward", n_tiles * c.n_sums * c.a.n_seqs, {FINISH_THREADS, 0}, c,
                stream);
}

} // namespace

int64_t kf_adaln_workspace_cuda(const kf_adaln *adaln) {
  int64_t n_chunks;
  if (kf_adaln_chunks(adaln, nullptr, nullptr, &n_chunks) || adaln->n_seqs == 0) return LINE;
  const int64_t n_sums = adaln->gate ? 3 : 2;
  return table_bytes(adaln, n_chunks) +
         n_chunks * n_sums * lines(adaln->dim * (int64_t)sizeof(float));
}

kf_status kf_adaln_prepare_cuda(const kf_adaln *adaln, void *stream) {
  int64_t n_chunks;
  kf_status status = kf_adaln_chunks(adaln, nullptr, nullptr, &n_chunks);
  if (status) return status;
  if (adaln->n_seqs == 0) return KF_OK;
  if ((status = check_workspace(adaln))) return status;
  const size_t bytes = (size_t)table_bytes(adaln, n_chunks);
  char *table = (char *)calloc(1, bytes);
  if (!table) {
    char sentence[96];
    snprintf(sentence, sizeof sentence, "out of memory: %zu bytes for the chunk table", bytes);
    return kf_fail(KF_ENOMEM, sentence);
  }
  status = kf_adaln_chunks(adaln, (kf_adaln_chunk *)table,
                           (int64_t *)(table + chunk_bytes(n_chunks)), &n_chunks);
  if (!status) {
    cudaError_t error =
      cudaMemcpyAsync(adaln->workspace, table, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream);
    if (error != cudaSuccess) status = device_failed("prepare", error);
  }
  free(table);
  return status;
}

kf_status kf_adaln_forward_cuda(const kf_adaln *adaln, void *stream) {
  return modulate(adaln, false, stream);
}

kf_status kf_adaln_backward_cuda(const kf_adaln *adaln, void *stream) {
  return modulate(adaln, true, stream);
}
