/* SPDX-License-Identifier: Apache-2.0 */
/*
** Run CUDA kernels on the CPU, and find what a GPU would hide. What tests call; kernels need only
** <cuda_runtime.h>, <cuda_bf16.h> and <cuda_fp16.h>, which this folder provides:
**
**   emulator/cuda_runtime.h   the part of CUDA that the kernels use: add what they need, no more
**   emulator/cuda_bf16.h      __nv_bfloat16, and emulator/cuda_fp16.h __half
**   emulator/fibers.h         how these three fit together:
**   emulator/fiber.cu           one stack for each thread of a block, and the switch between them
**   emulator/launch.cu          blocks, barriers, shuffles, the schedule, the host's calls
**   emulator/access.cu          who touched which byte: races, overruns, counts
**
** One block runs at a time, the blocks in random order. Each of its threads is a fiber; wherever
** one waits, the next is drawn at random, so that a missing barrier shows. The seed alone decides.
** Streams are in order and done at once. Global memory is the host's own memory.
**
** There are two builds of each test (tests/CMakeLists.txt), for two kinds of mistake:
**
**   asan    with AddressSanitizer and UBSan, which see overruns of global and of shared memory
**   race    with -fsanitize=thread, but without its library: the calls that the compiler puts before
**           every load and store end in access.cu. EMULATOR_RACE is 1. Threads are also switched
**           between two accesses, now and then.
**
** Both builds report: a barrier or a shuffle that somebody does not reach (a deadlock), a
** __syncthreads reached at two different lines, a lane outside of its own mask, a shuffle that
** reads from a lane outside of the mask. A mask must name only lanes that live: this is stricter
** than a GPU, which forgives lanes that have exited.
** The race build also reports: two accesses to one byte, at least one of them a write, that nothing
** orders (exact: __syncthreads orders a block, __syncwarp and shuffles order the lanes of their
** mask, nothing orders blocks; whatever the schedule was); shared memory that is read before it is
** written; shared memory beyond the launch's dynamicSmemBytes; vectors at odd addresses; and, once
** a buffer is declared, every access to global memory outside of all of them.
**
** The counts (race build; they stay 0 in the other) are of what the source says: a float4, uint4,
** float2, .. that is copied, through __ldg, __ldcs, __stcs or `*p`, is one access of its size,
** because these types report their own copies. A scalar is one access, but the compiler may spare a
** second load of the same address with no write or barrier in between. `p->x` of a vector is 4
** bytes. Structs of plain scalars, when a function that is not inlined returns them right into
** memory, and memcpy of more than 16 bytes are not seen.
*/
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __SANITIZE_THREAD__
#define EMULATOR_RACE 1
#else
#define EMULATOR_RACE 0
#endif

/* Begin anew: no fault, no error, counts at 0, and the schedule that the seed decides. */
void emulator_reset(uint64_t seed);

/* The first fault since the last reset, one sentence, or NULL. A fault stops its kernel, and all
** later launches fail with cudaErrorLaunchFailure until the next reset. */
const char *emulator_fault(void);

/* Declare a buffer of global memory. Kernels may not touch any other, once there is one, and may
** not write to this one unless may_write. No two may overlap. */
void emulator_watch(const char *name, const void *memory, size_t bytes, bool may_write);
void emulator_forget_all(void);

/* What kernels did to a buffer since the last reset. */
struct emulator_counts {
  uint64_t loads, stores;                    /* accesses */
  uint64_t loads_16, stores_16;              /* of these, 16 bytes wide */
  uint64_t bytes_loaded, bytes_stored;       /* in all */
  uint64_t distinct_loaded, distinct_stored; /* bytes touched at least once */
};
emulator_counts emulator_count(const char *name); /* of a declared buffer */
void emulator_reset_counts(void);

/* A hash of all choices since the last reset: differs where schedules differ. */
uint64_t emulator_schedule(void);

#endif
