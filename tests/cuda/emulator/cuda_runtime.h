/* SPDX-License-Identifier: Apache-2.0 */
/*
** The part of CUDA that the kernels use, for the emulator (emulator.h). Vectors are not aggregates
** here: their copies are functions, so that the race build can count a copy as one access.
*/
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* ---- vectors ---- */

#ifdef __SANITIZE_THREAD__
/* Moves the bytes and reports both accesses. */
void emulator_copy(void *to, const void *from, size_t bytes);
#define EMULATOR_COPY_BYTES(from) emulator_copy(this, &from, sizeof from)
#define EMULATOR_COPIER __attribute__((noinline, no_sanitize("thread")))
#else
#define EMULATOR_COPY_BYTES(from) __builtin_memcpy((void *)this, (const void *)&from, sizeof from)
#define EMULATOR_COPIER
#endif
#define EMULATOR_COPIES(name)                                                                      \
  name() = default;                                                                                \
  EMULATOR_COPIER name(const name &from) { EMULATOR_COPY_BYTES(from); }                            \
  EMULATOR_COPIER name &operator=(const name &from) {                                              \
    EMULATOR_COPY_BYTES(from);                                                                     \
    return *this;                                                                                  \
  }

/* A number of 16 bits, and what makes bits of it and the other way round. */
#define EMULATOR_HALF(name, bits_of, from_bits)                                                    \
  struct name {                                                                                    \
    unsigned short bits;                                                                           \
    EMULATOR_COPIES(name)                                                                          \
  };                                                                                               \
  inline unsigned short bits_of(name value) { return value.bits; }                                 \
  inline name from_bits(unsigned short bits) {                                                     \
    name value;                                                                                    \
    value.bits = bits;                                                                             \
    return value;                                                                                  \
  }

#define EMULATOR_VECTOR_2(name, type)                                                              \
  struct alignas(2 * sizeof(type)) name {                                                          \
    type x, y;                                                                                     \
    EMULATOR_COPIES(name)                                                                          \
    name(type a, type b) : x(a), y(b) {}                                                           \
  };                                                                                               \
  inline name make_##name(type a, type b) { return name(a, b); }
#define EMULATOR_VECTOR_4(name, type)                                                              \
  struct alignas(4 * sizeof(type)) name {                                                          \
    type x, y, z, w;                                                                               \
    EMULATOR_COPIES(name)                                                                          \
    name(type a, type b, type c, type d) : x(a), y(b), z(c), w(d) {}                               \
  };                                                                                               \
  inline name make_##name(type a, type b, type c, type d) { return name(a, b, c, d); }

EMULATOR_VECTOR_2(float2, float)
EMULATOR_VECTOR_2(int2, int)
EMULATOR_VECTOR_2(uint2, unsigned)
EMULATOR_VECTOR_4(float4, float)
EMULATOR_VECTOR_4(int4, int)
EMULATOR_VECTOR_4(uint4, unsigned)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* ---- a thread's place ---- */

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* All dynamic shared memory has this name. */
extern float4 kf_shared[];

/* ---- barriers and shuffles ---- */

enum emulator_kind {
  EMULATOR_SYNCWARP,
  EMULATOR_SHFL,
  EMULATOR_SHFL_XOR,
  EMULATOR_SHFL_DOWN,
  EMULATOR_SHFL_UP
};

struct emulator_place { /* in the source, for the sentences */
  const char *file;
  int line;
};
void emulator_syncthreads(emulator_place place);
/* Wait for the lanes of the mask, and give each the value of the lane that it asks for. */
uint64_t emulator_meet(emulator_kind kind, unsigned mask, uint64_t value, int argument, int width,
                       emulator_place place);

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator_syncthreads({file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emulator_meet(EMULATOR_SYNCWARP, mask, 0, 0, 32, {file, line});
}

#define EMULATOR_SHUFFLE(name, kind, argument)                                                     \
  template <class T>                                                                               \
  T name(unsigned mask, T value, argument, int width = 32, const char *file = __builtin_FILE(),    \
         int line = __builtin_LINE()) {                                                            \
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "a number");                     \
    uint64_t bits = 0;                                                                             \
    memcpy(&bits, &value, sizeof value);                                                           \
    bits = emulator_meet(kind, mask, bits, (int)lane, width, {file, line});                        \
    memcpy(&value, &bits, sizeof value);                                                           \
    return value;                                                                                  \
  }
EMULATOR_SHUFFLE(__shfl_sync, EMULATOR_SHFL, int lane)
EMULATOR_SHUFFLE(__shfl_xor_sync, EMULATOR_SHFL_XOR, int lane)
EMULATOR_SHUFFLE(__shfl_down_sync, EMULATOR_SHFL_DOWN, unsigned lane)
EMULATOR_SHUFFLE(__shfl_up_sync, EMULATOR_SHFL_UP, unsigned lane)

/* ---- loads and stores: always inlined, so that the compiler sees (and reports) the access ---- */

template <class T> __forceinline__ T __ldg(const T *p) { return *p; }
template <class T> __forceinline__ T __ldcs(const T *p) { return *p; }
template <class T> __forceinline__ void __stcs(T *p, std::decay_t<T> value) { *p = value; }
template <class T> __forceinline__ void __stwb(T *p, std::decay_t<T> value) { *p = value; }

/* ---- arithmetic that rounds once, to nearest; -ffp-contract=off keeps it so ---- */

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_rn(double a) { return (float)a; }

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- the host ---- */

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801
};
typedef struct CUstream_st *cudaStream_t;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
struct cudaLaunchAttribute; /* none is supported */
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = 0);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream = 0);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);

typedef void (*emulator_kernel)(void); /* of any type */
struct emulator_call {
  emulator_kernel kernel;
  void (*run)(emulator_kernel, void *parameters); /* one thread */
  void *parameters;
  size_t parameter_bytes;
};
cudaError_t emulator_launch(const cudaLaunchConfig_t *config, const emulator_call *call);
cudaError_t emulator_set_attribute(emulator_kernel kernel, cudaFuncAttribute attribute, int value);

template <class F>
cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value) {
  return emulator_set_attribute(reinterpret_cast<emulator_kernel>(kernel), attribute, value);
}

/* Passing parameters is not the kernel's doing: nothing of it is reported. */
template <class... P, size_t... I>
__attribute__((no_sanitize("thread"))) void
emulator_pass(void (*kernel)(P...), [[maybe_unused]] std::tuple<P...> *parameters,
              std::index_sequence<I...>) {
  kernel(std::get<I>(*parameters)...);
}
template <class... P>
__attribute__((no_sanitize("thread"))) void emulator_run(emulator_kernel kernel, void *parameters) {
  emulator_pass(reinterpret_cast<void (*)(P...)>(kernel),
                static_cast<std::tuple<P...> *>(parameters), std::index_sequence_for<P...>());
}

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                               A &&...arguments) {
  std::tuple<P...> parameters(std::forward<A>(arguments)...);
  emulator_call call = {reinterpret_cast<emulator_kernel>(kernel), emulator_run<P...>, &parameters,
                        sizeof parameters};
  return emulator_launch(config, &call);
}

#endif
