/* SPDX-License-Identifier: Apache-2.0 */
/* How fibers, launches and the watch fit together (emulator.h). */
#ifndef EMULATOR_FIBERS_H
#define EMULATOR_FIBERS_H

#include "cuda_runtime.h"
#include "emulator.h"

enum {
  MAX_THREADS = 1024,
  MAX_WARPS = MAX_THREADS / 32,
  DEFAULT_SHARED_BYTES = 48 << 10,
  MAX_SHARED_BYTES = 227 << 10
};

/* ---- fiber.cu: stacks. The host's own is number HOST; the others are those of threads ---- */

enum { HOST = MAX_THREADS, STACK_BYTES = 256 << 10 };

void fiber_prepare(unsigned fiber, void (*entry)(void)); /* entry never returns */
void fiber_switch(unsigned to);                          /* leaves the current one waiting */
[[noreturn]] void fiber_leave(unsigned to);              /* the current one is never resumed */
void fiber_abandon(unsigned fiber);                      /* nor this one, left in the middle */
extern uintptr_t fiber_stack;                            /* lowest byte of the current one's */

/* ---- launch.cu ---- */

struct running {
  bool inside; /* of a kernel: what is loaded and stored now is the kernel's doing */
  unsigned thread, block;
  unsigned n_threads, shared_bytes;
  uintptr_t parameters, parameter_bytes;
};
extern running now;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char *format, ...);
unsigned dice_below(unsigned n);
void let_others_run(void);

/* ---- access.cu: told of every event that orders accesses ---- */

void watch_launch(void);
void watch_block(void);
void watch_syncthreads(void);
void watch_meet(unsigned warp, unsigned mask);

#endif
