/* SPDX-License-Identifier: Apache-2.0 */
/*
** The emulator's own tests: right kernels run right under every schedule, and for each mistake that
** must be caught there is a kernel that makes it and, of the same source, one that does not.
*/
#include "emulator/emulator.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

static void check(bool holds, const char *what, int line) {
  if (holds) return;
  const char *sentence = emulator_fault();
  printf("%s:%d: not so: %s (fault: %s)\n", __FILE__, line, what, sentence ? sentence : "none");
  exit(1);
}
#define CHECK(what) check(what, #what, __LINE__)

enum { SEEDS = 20 };
static const unsigned ALL = 0xffffffffu;

template <class... P, class... A>
static cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes,
                          A... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

static bool fault_has(const char *text) {
  return emulator_fault() && strstr(emulator_fault(), text);
}

/* ---- right kernels ---- */

/* y[block] = the sum of n numbers: shuffles, then shared memory. */
__global__ void __launch_bounds__(1024)
  sum(const float *__restrict__ x, float *__restrict__ y, int n) {
  float *partial = (float *)kf_shared;
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += __ldg(x + blockIdx.x * n + i);
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  if (warp > 0) return;
  v = lane < (int)blockDim.x / warpSize ? partial[lane] : 0;
  for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(ALL, v, step);
  if (lane == 0) y[blockIdx.x] = v;
}

static void test_sum(void) {
  enum { BLOCKS = 37, N = 301 };
  std::vector<float> x(BLOCKS * N), y(BLOCKS), right(BLOCKS);
  for (int i = 0; i < BLOCKS * N; i++) right[i / N] += x[i] = (float)(i * 7 % 101);
  for (unsigned seed = 0; seed < SEEDS; seed++)
    for (unsigned block = 32; block <= 1024; block *= 2) {
      emulator_reset(seed);
      std::fill(y.begin(), y.end(), -1.0f);
      CHECK(launch(sum, BLOCKS, block, block / 8, x.data(), y.data(), (int)N) == cudaSuccess);
      CHECK(y == right);
    }
}

/* A block that ends within a warp, and threads that exit before the barrier. */
__global__ void few(int *y, unsigned n) {
  int *shared = (int *)kf_shared;
  unsigned t = threadIdx.x, warp = t / 32, last = (n - 1) / 32;
  if (t >= n) return;
  unsigned mask = warp == last && n % 32 ? (1u << n % 32) - 1 : ALL;
  shared[t] = __shfl_sync(mask, (int)t, 0); /* the first thread of the warp */
  __syncthreads();
  y[t] = shared[n - 1 - t];
}

static void test_few(void) {
  for (unsigned seed = 0; seed < SEEDS; seed++)
    for (unsigned n = 1; n <= 70; n += 3) {
      std::vector<int> y(n);
      emulator_reset(seed);
      CHECK(launch(few, 1, n + seed, 4 * n, y.data(), n) == cudaSuccess);
      for (unsigned t = 0; t < n; t++) CHECK(y[t] == (int)((n - 1 - t) / 32 * 32));
    }
}

/* Every thread of three-dimensional blocks and grids, once. */
__global__ void place(uint4 *y) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned n = blockDim.x * blockDim.y * blockDim.z;
  y[block * n + t] = make_uint4(blockIdx.y, blockIdx.z, threadIdx.y, threadIdx.z);
}

static void test_place(void) {
  std::vector<uint4> y(3 * 4 * 5 * 6 * 7 * 2, make_uint4(9, 9, 9, 9));
  emulator_reset(1);
  CHECK(launch(place, dim3(3, 4, 5), dim3(6, 7, 2), 0, y.data()) == cudaSuccess);
  for (size_t i = 0; i < y.size(); i++) {
    CHECK(y[i].x == i / 84 / 3 % 4 && y[i].y == i / 84 / 12);
    CHECK(y[i].z == i / 6 % 7 && y[i].w == i / 42 % 2);
  }
}

/* All shuffles, as CUDA's manual describes them. */
__global__ void shuffles(double *y, int argument, int width) {
  double me = threadIdx.x;
  y[threadIdx.x] = __shfl_sync(ALL, me, argument, width);
  y[threadIdx.x + 32] = __shfl_xor_sync(ALL, me, argument, width);
  y[threadIdx.x + 64] = __shfl_down_sync(ALL, me, argument, width);
  y[threadIdx.x + 96] = __shfl_up_sync(ALL, me, argument, width);
}

static void test_shuffles(void) {
  double y[4 * 32];
  for (int width = 1; width <= 32; width *= 2)
    for (int n = 0; n < 32; n++) {
      emulator_reset(n);
      CHECK(launch(shuffles, 1, 32, 0, y, n, width) == cudaSuccess);
      for (int lane = 0; lane < 32; lane++) {
        int first = lane / width * width, in = lane % width;
        CHECK(y[lane] == first + n % width);
        CHECK(y[lane + 32] == ((lane ^ n) < first + width ? lane ^ n : lane));
        CHECK(y[lane + 64] == (in + n < width ? lane + n : lane));
        CHECK(y[lane + 96] == (in - n >= 0 ? lane - n : lane));
      }
    }
}

/* Loses counts only if a thread is interrupted between its load and its store. */
__global__ void tally(int *n) { *n = *n + 1; }

/* Which block comes when? */
__global__ void line_up(unsigned *order) { order[++order[0]] = blockIdx.x; }

static void test_schedule(void) {
  unsigned n_lost = 0;
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    int n = 0;
    emulator_reset(seed);
    CHECK(launch(tally, 1, 256, 0, &n) == cudaSuccess);
    n_lost += n < 256;
  }
  CHECK(n_lost == (EMULATOR_RACE ? SEEDS : 0));
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    unsigned order[1 + 20] = {0};
    emulator_reset(seed);
    CHECK(launch(line_up, 20, 1, 0, order) == cudaSuccess);
    CHECK(order[0] == 20 && !std::is_sorted(order + 1, order + 21));
    std::sort(order + 1, order + 21);
    for (unsigned i = 0; i < 20; i++) CHECK(order[i + 1] == i);
  }

  std::vector<float> x(40), y(4);
  std::vector<uint64_t> seen;
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    for (int again = 0; again < 2; again++) {
      emulator_reset(seed);
      CHECK(launch(sum, 4, 64, 8, x.data(), y.data(), 10) == cudaSuccess);
      seen.push_back(emulator_schedule());
    }
    CHECK(seen[2 * seed] == seen[2 * seed + 1]);
    for (unsigned before = 0; before < seed; before++) CHECK(seen[2 * before] != seen[2 * seed]);
  }
}

/* ---- what a device refuses ---- */

__global__ void nothing(void) {}
__global__ void nothing_large(void) {}

static void test_limits(void) {
  emulator_reset(0);
  CHECK(launch(nothing, 1, 1024, 48 << 10) == cudaSuccess);
  CHECK(launch(nothing, 1, dim3(1, 1, 64), 0) == cudaSuccess);
  const dim3 bad_blocks[] = {1025, 0, dim3(32, 33), dim3(1, 1, 65), dim3(2, 0), dim3(1, 1, 0)};
  for (dim3 block : bad_blocks)
    CHECK(launch(nothing, 1, block, 0) == cudaErrorInvalidConfiguration);
  const dim3 bad_grids[] = {0, 0x80000000u, dim3(1, 65536), dim3(1, 1, 65536), dim3(1, 0)};
  for (dim3 grid : bad_grids) CHECK(launch(nothing, grid, 1, 0) == cudaErrorInvalidConfiguration);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);

  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  CHECK(launch(nothing_large, 1, 1, (48 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing_large, most, (227 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing_large, most, 227 << 10) == cudaSuccess);
  CHECK(launch(nothing_large, 1, 1, 227 << 10) == cudaSuccess);
  CHECK(launch(nothing_large, 1, 1, (227 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(launch(nothing, 1, 1, (48 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(!emulator_fault());

  int from[2] = {3, 4}, to[2] = {0, 0};
  CHECK(cudaMemcpyAsync(to, from, sizeof to, cudaMemcpyDefault) == cudaSuccess && to[1] == 4);
  CHECK(cudaMemsetAsync(to, 0xff, 4) == cudaSuccess && to[0] == -1 && to[1] == 4);
  CHECK(cudaStreamSynchronize(0) == cudaSuccess);
}

/* ---- counts ---- */

struct parameters { /* the kernel's own, as constants are: not counted */
  float4 four;
  float one[8];
};
static const float constants[] = {3, 1, 4, 1, 5, 9, 2, 6};
__attribute__((noinline)) static __device__ float element(const float *table, unsigned i) {
  return table[i];
}

__global__ void moves(const float4 *x, float4 *y, const unsigned short *h, uint2 *z, parameters p) {
  unsigned t = threadIdx.x;
  p.one[t] += p.four.y + element(constants, t);
  if (t == 0) y[0] = __ldg(x);                           /* 16 in, 16 out */
  if (t == 1) __stcs(y + 1, __ldcs(x + 1));              /* 16, 16 */
  if (t == 2) y[2] = make_float4(1, 2, 3, x[2].y);       /* 4, 16 */
  if (t == 3) y[3].z = __fadd_rn(x[0].x, x[1].x);        /* 4 + 4, 4 */
  if (t == 4) kf_shared[0] = *x;                         /* 16, none */
  if (t == 5) kf_shared[1] = kf_shared[2] = x[1];        /* 16, none */
  if (t == 6) z[0] = make_uint2(__ldg(h), __ldg(h + 1)); /* 2 + 2, 8 */
  if (t == 7) y[4] = float4{1, 2, 3, p.one[t]};          /* none, 16 */
}

static void test_counts(void) {
  if (!EMULATOR_RACE) return;
  float4 x[3] = {}, y[5];
  unsigned short h[2] = {5, 6};
  uint2 z[1];
  parameters p = {make_float4(1, 2, 3, 4), {}};
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    emulator_forget_all();
    emulator_watch("x", x, sizeof x, false);
    emulator_watch("y", y, sizeof y, true);
    emulator_watch("h", h, sizeof h, false);
    emulator_watch("z", z, sizeof z, true);
    emulator_reset(seed);
    CHECK(launch(moves, 2, 8, 48, x, y, h, z, p) == cudaErrorLaunchFailure); /* blocks collide */
    emulator_reset(seed);
    CHECK(launch(moves, 1, 8, 48, x, y, h, z, p) == cudaSuccess);
    emulator_counts a = emulator_count("x"), b = emulator_count("y"), c = emulator_count("h");
    CHECK(a.loads == 7 && a.loads_16 == 4 && a.bytes_loaded == 76 && a.distinct_loaded == 36);
    CHECK(a.stores == 0 && a.bytes_stored == 0 && a.distinct_stored == 0 && a.stores_16 == 0);
    CHECK(b.stores == 5 && b.stores_16 == 4 && b.bytes_stored == 68 && b.distinct_stored == 68);
    CHECK(b.loads == 0 && c.loads == 2 && c.bytes_loaded == 4 && c.distinct_loaded == 4);
    CHECK(emulator_count("z").stores == 1 && emulator_count("z").bytes_stored == 8);
    CHECK(launch(moves, 1, 8, 48, x, y, h, z, p) == cudaSuccess); /* after the first, so no race */
    CHECK(emulator_count("x").loads == 14 && emulator_count("x").distinct_loaded == 36);
    emulator_reset_counts();
    CHECK(emulator_count("x").loads == 0 && emulator_count("x").distinct_loaded == 0);
    CHECK(z[0].x == 5 && z[0].y == 6 && y[4].w == 8);
  }
  emulator_forget_all();
}

/* ---- broken kernels: all are to reverse x into each block's part of y; WRONG is the mistake ---- */

typedef void (*broken_kernel)(const int *x, int *y);

/* Each takes what another thread has left in shared memory; without a barrier it may be too
** early. */
template <bool WRONG> __global__ void read_early(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[t] = -1;
  __syncthreads();
  shared[t] = x[t];
  if (!WRONG) __syncthreads();
  y[blockIdx.x * n + t] = shared[n - 1 - t];
}

/* .. or it overwrites what another thread still has to read. */
template <bool WRONG> __global__ void write_early(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[t] = x[t];
  __syncthreads();
  int v = shared[n - 1 - t];
  if (!WRONG) __syncthreads();
  shared[t] = -1;
  y[blockIdx.x * n + t] = v;
}

template <bool WRONG> __global__ void write_twice(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[WRONG ? t / 40 : t] = x[t];
  y[blockIdx.x * n + t] = x[n - 1 - t];
}

/* Two threads read a word, then one of them writes to it: the other's read must not be forgotten,
** be it by a lane of the same warp or by another warp. */
template <int PARTNER, bool WRONG> __device__ __forceinline__ void overwrite(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x, v = 0;
  if (t == 0) shared[0] = x[0];
  __syncthreads();
  if (blockIdx.x == 0 && (t == 0 || t == PARTNER)) v = shared[0] - x[0];
  if (!WRONG) __syncthreads();
  if (t == 0) shared[0] = -1;
  y[blockIdx.x * n + t] = x[n - 1 - t] + v;
}
template <bool WRONG> __global__ void overwrite_lane(const int *x, int *y) {
  overwrite<1, WRONG>(x, y);
}
template <bool WRONG> __global__ void overwrite_warp(const int *x, int *y) {
  overwrite<32, WRONG>(x, y);
}

template <bool WRONG> __global__ void no_syncwarp(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[t] = -1;
  __syncthreads();
  shared[t ^ 31] = x[n - 1 - (t ^ 31)];
  if (!WRONG) __syncwarp();
  y[blockIdx.x * n + t] = shared[t];
}

/* Two lanes that do not meet each other, but each somebody else: that orders nothing. */
template <bool WRONG> __global__ void meet_others(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x, v = 0;
  shared[t] = x[n - 1];
  __syncthreads();
  if (blockIdx.x == 0 && t == 0) shared[0] = x[n - 1 - 16];
  __syncwarp(!WRONG ? ALL : t % 32 < 16 ? 0xffffu : 0xffff0000u);
  if (blockIdx.x == 0 && t == 16) v = shared[0] - x[n - 1 - 16];
  y[blockIdx.x * n + t] = x[n - 1 - t] + v;
}

template <bool WRONG> __global__ void shared_overrun(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[t + WRONG] = x[t];
  y[blockIdx.x * n + t] = x[n - 1 - t];
}

template <bool WRONG> __global__ void shared_unwritten(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  if (!WRONG || t != 5) shared[t] = x[t];
  __syncthreads();
  y[blockIdx.x * n + t] = shared[n - 1 - t];
}

template <bool WRONG> __global__ void global_overrun(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x;
  y[blockIdx.x * n + t] = x[n - 1 - t + (WRONG && t == 0)];
}

template <bool WRONG> __global__ void write_input(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x;
  y[blockIdx.x * n + t] = x[n - 1 - t];
  if (WRONG && t == 9) const_cast<int *>(x)[t] = t;
}

template <bool WRONG> __global__ void blocks_collide(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x;
  y[(WRONG && t == 9 ? 0 : blockIdx.x) * n + t] = x[n - 1 - t];
}

/* All blocks read what block 0 then overwrites: too late for those before, too early for the
** rest. */
template <bool WRONG> __global__ void block_reads_block(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  if (WRONG && t == 9 && y[t] < -1) v = 0;
  y[blockIdx.x * n + t] = v;
}

/* Line numbers differ: the same barrier for a GPU, which would go on. */
template <bool WRONG> __global__ void two_barriers(const int *x, int *y) {
  int *shared = (int *)kf_shared, t = threadIdx.x, n = blockDim.x;
  shared[t] = x[t];
  if (WRONG && t >= 32)
    __syncthreads();
  else
    __syncthreads();
  y[blockIdx.x * n + t] = shared[n - 1 - t];
}

template <bool WRONG> __global__ void barrier_or_shuffle(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  if (WRONG && t == 40) __syncthreads();
  y[blockIdx.x * n + t] = __shfl_xor_sync(ALL, __shfl_xor_sync(ALL, v, 1), 1);
  if (!WRONG || t != 40) __syncthreads();
}

/* The same instruction at two lines: a GPU may or may not let the lanes meet. */
template <bool WRONG> __global__ void two_shuffles(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  if (WRONG && t == 40) v = __shfl_xor_sync(ALL, v, 0);
  if (!WRONG || t != 40) v = __shfl_xor_sync(ALL, v, 0);
  y[blockIdx.x * n + t] = v;
}

template <bool WRONG> __global__ void odd_width(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x;
  y[blockIdx.x * n + t] = __shfl_xor_sync(ALL, x[n - 1 - t], 0, WRONG ? 12 : 8);
}

template <bool WRONG> __global__ void exited_lane(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  if (WRONG && t == 40) return;
  y[blockIdx.x * n + t] = __shfl_sync(ALL, v, t % 32);
}

template <bool WRONG> __global__ void not_in_mask(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  y[blockIdx.x * n + t] = __shfl_sync(WRONG && t == 40 ? ALL & ~(1u << 8) : ALL, v, t % 32);
}

template <bool WRONG> __global__ void source_not_in_mask(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x, v = x[n - 1 - t];
  unsigned mask = t % 32 < 16 ? 0xffffu : 0xffff0000u;
  y[blockIdx.x * n + t] = __shfl_sync(mask, v, t % 32 ^ (WRONG && t == 40 ? 16 : 0));
}

template <bool WRONG> __global__ void misaligned(const int *x, int *y) {
  int t = threadIdx.x, n = blockDim.x;
  y[blockIdx.x * n + t] = x[n - 1 - t];
  if (t == 0) kf_shared[0] = *(const float4 *)(x + WRONG);
}

/* How the build without the race check finds it out. */
enum evidence {
  RESULT, /* y is wrong under at least one schedule */
  FAULT,  /* it is reported, as in the other build */
  DEATH,  /* a sanitizer ends the program */
  NONE    /* not at all */
};
struct mistake {
  const char *name;
  broken_kernel wrong, right;
  const char *sentence; /* of the race build, and of both where the evidence is FAULT */
  evidence asan;
  const char *report; /* of the sanitizer */
};
#define MISTAKE(kernel, ...)                                                                       \
  { #kernel, kernel < true>, kernel < false>, __VA_ARGS__ }
static const mistake mistakes[] = {
  MISTAKE(read_early, "of shared memory, which thread ", RESULT, ""),
  MISTAKE(read_early, "no barrier orders the two", RESULT, ""),
  MISTAKE(write_early, "no barrier orders the two", RESULT, ""),
  MISTAKE(write_twice, "has written, and no barrier orders the two", NONE, ""),
  MISTAKE(overwrite_lane, "no barrier orders the two", RESULT, ""),
  MISTAKE(overwrite_warp, "no barrier orders the two", RESULT, ""),
  MISTAKE(no_syncwarp, "no barrier orders the two", RESULT, ""),
  MISTAKE(meet_others, "no barrier orders the two", RESULT, ""),
  MISTAKE(shared_overrun, "thread 63: overrun: writes bytes 256 to 259 of shared memory", DEATH,
          "use-after-poison"),
  MISTAKE(shared_unwritten, "uninitialised: reads byte 20 of shared memory", RESULT, ""),
  MISTAKE(global_overrun, "thread 0: overrun: reads 4 bytes at byte 256 of x, which has only 256",
          DEATH, "heap-buffer-overflow"),
  MISTAKE(write_input, "thread 9: writes byte 36 of x, which may only be read", NONE, ""),
  MISTAKE(blocks_collide, "thread 9: race: writes byte 36 of y, which block ", NONE, ""),
  MISTAKE(blocks_collide, "thread 9 has written, and nothing orders the two", NONE, ""),
  MISTAKE(block_reads_block, "nothing orders the two", NONE, ""),
  MISTAKE(two_barriers, "thread 32: waits at __syncthreads (test_emulator.cu:", FAULT, ""),
  MISTAKE(barrier_or_shuffle, "for thread 40, which waits at __syncthreads", FAULT, ""),
  MISTAKE(two_shuffles, "for thread 40, which waits at __shfl_xor_sync with mask 0xffff", FAULT,
          ""),
  MISTAKE(odd_width, "with width 12, not a power of two", FAULT, ""),
  MISTAKE(exited_lane, "waits forever at __shfl_sync with mask 0xffffffff", FAULT, ""),
  MISTAKE(exited_lane, "for thread 40, which has exited", FAULT, ""),
  MISTAKE(not_in_mask, "thread 40: calls __shfl_sync", FAULT, ""),
  MISTAKE(not_in_mask, "with mask 0xfffffeff, which does not name its own lane 8", FAULT, ""),
  MISTAKE(source_not_in_mask, "from lane 24, which mask 0x0000ffff does not name", FAULT, ""),
  MISTAKE(misaligned, "thread 0: misaligned: reads 16 bytes", DEATH, "misaligned address"),
};

enum { THREADS = 64, BLOCKS = 3 };

/* Is y right? */
static bool run(broken_kernel kernel, unsigned seed) {
  std::vector<int> x(THREADS), y(BLOCKS * THREADS, -1);
  bool right = true;
  for (int i = 0; i < THREADS; i++) x[i] = 1000 + i;
  emulator_forget_all();
  emulator_watch("x", x.data(), 4 * THREADS, false);
  emulator_watch("y", y.data(), 4 * BLOCKS * THREADS, true);
  emulator_reset(seed);
  cudaError_t error = launch(kernel, BLOCKS, THREADS, 4 * THREADS, x.data(), y.data());
  CHECK(error == (emulator_fault() ? cudaErrorLaunchFailure : cudaSuccess));
  CHECK(cudaDeviceSynchronize() == error && cudaPeekAtLastError() == error);
  if (emulator_fault()) CHECK(launch(nothing, 1, 1, 0) == cudaErrorLaunchFailure);
  for (int i = 0; i < BLOCKS * THREADS; i++) right &= y[i] == x[THREADS - 1 - i % THREADS];
  emulator_forget_all();
  return right;
}

/* What a child that runs the kernel says before it dies; "" if it does not die. */
static std::string last_words(broken_kernel kernel) {
  int ends[2], status, n;
  char part[4096];
  std::string words;
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], 2);
    run(kernel, 0);
    _exit(0);
  }
  close(ends[1]);
  while ((n = (int)read(ends[0], part, sizeof part)) > 0) words.append(part, n);
  close(ends[0]);
  CHECK(waitpid(child, &status, 0) == child);
  return status ? words : "";
}

static void test_mistake(const mistake *m) {
  unsigned n_wrong = 0;
  evidence how = EMULATOR_RACE ? FAULT : m->asan;
  printf("%s\n", m->name);
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    CHECK(run(m->right, seed));
    CHECK(!emulator_fault());
    if (how == DEATH) continue;
    n_wrong += !run(m->wrong, seed);
    if (how == FAULT) CHECK(fault_has(m->sentence));
    if (how != FAULT) CHECK(!emulator_fault());
  }
  if (how == RESULT) CHECK(n_wrong > 0);
  if (how == DEATH) CHECK(last_words(m->wrong).find(m->report) != std::string::npos);
}

/* ---- numbers of 16 bits ---- */

static uint64_t dice = 1;
static unsigned dice_bits(void) {
  dice = dice * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(dice >> 32);
}

/* The nearest of the numbers in the table, of two the even one. Its last one stands for
** infinity. */
static unsigned nearest(const std::vector<double> &table, double value) {
  size_t above = std::lower_bound(table.begin(), table.end(), value) - table.begin();
  if (above == table.size()) return (unsigned)above - 1;
  if (above == 0) return 0;
  double up = table[above] - value, down = value - table[above - 1];
  return (unsigned)(up < down || (up == down && above % 2 == 0) ? above : above - 1);
}

template <class NUMBER>
static void test_numbers(NUMBER (*narrow)(float), float (*widen)(NUMBER),
                         NUMBER (*from_bits)(unsigned short), unsigned short (*bits_of)(NUMBER),
                         int exponent_bits) {
  int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  unsigned infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  std::vector<double> table(infinity + 1);
  for (unsigned i = 0; i <= infinity; i++) {
    int exponent = (int)(i >> fraction_bits);
    double fraction = i & ((1u << fraction_bits) - 1);
    if (exponent) fraction += 1 << fraction_bits;
    table[i] = ldexp(fraction, (exponent ? exponent : 1) - bias - fraction_bits);
  }
  for (unsigned i = 0; i < 65536; i++) {
    unsigned magnitude = i & 0x7fff;
    float value = widen(from_bits((unsigned short)i));
    CHECK(bits_of(from_bits((unsigned short)i)) == i);
    CHECK(std::isnan(value) == (magnitude > infinity));
    if (std::isnan(value)) {
      CHECK(std::isnan(widen(narrow(value))));
      continue;
    }
    CHECK(bits_of(narrow(value)) == i && std::signbit(value) == (i > 0x7fff));
    CHECK(magnitude == infinity ? std::isinf(value) : std::fabs(value) == table[magnitude]);
    for (int step = -2; magnitude < infinity && step <= 2; step++) { /* around the halfway point */
      float half = (float)((table[magnitude] + table[magnitude + 1]) / 2);
      float near = __uint_as_float(__float_as_uint(half) + (half > 0 ? step : 0));
      CHECK(bits_of(narrow(near)) == nearest(table, near));
      CHECK(bits_of(narrow(-near)) == (nearest(table, near) | 0x8000));
    }
  }
  for (int i = 0; i < 2000000; i++) {
    float value = __uint_as_float(i % 2 ? dice_bits() : 0x33000000 + dice_bits() % 0x15000000);
    if (std::isnan(value)) {
      CHECK(std::isnan(widen(narrow(value))));
    } else {
      unsigned sign = std::signbit(value) ? 0x8000 : 0;
      CHECK(bits_of(narrow(value)) == (sign | nearest(table, std::fabs(value))));
    }
  }
}

int main(void) {
  test_sum();
  test_few();
  test_place();
  test_shuffles();
  test_schedule();
  test_limits();
  test_counts();
  for (const mistake &m : mistakes) test_mistake(&m);
  test_numbers(__float2half_rn, __half2float, __ushort_as_half, __half_as_ushort, 5);
  test_numbers(__float2bfloat16_rn, __bfloat162float, __ushort_as_bfloat16, __bfloat16_as_ushort,
               8);
  return 0;
}
