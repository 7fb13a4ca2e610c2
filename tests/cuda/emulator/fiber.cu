/* SPDX-License-Identifier: Apache-2.0 */
/*
** Fibers: a stack for each thread of a block, used again by the next block. A test switches many
** millions of times, and swapcontext calls the system each time, so x86-64 has its own switch: push
** what a callee must keep, change the stack pointer, pop. Twelve times faster, all told.
*/
#include "fibers.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define OWN_SWITCH 1
#else
#define OWN_SWITCH 0
#include <ucontext.h>
#endif

struct context {
#if OWN_SWITCH
  void **top;
#else
  ucontext_t state;
#endif
  void *fake;         /* of AddressSanitizer */
  const void *bottom; /* of the stack */
  size_t bytes;
};
static context contexts[MAX_THREADS + 1];
static unsigned current = HOST;
static char *stacks;
uintptr_t fiber_stack;

#if OWN_SWITCH
extern "C" void emulator_switch(void ***save, void **resume);
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size emulator_switch, .-emulator_switch\n");
#endif

static void map_stacks(void) {
  size_t bytes = (size_t)MAX_THREADS * STACK_BYTES;
  void *memory =
    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("emulator: no memory for stacks");
    abort();
  }
  stacks = (char *)memory;
  for (unsigned i = 0; i < MAX_THREADS; i++) {
    contexts[i].bottom = stacks + (size_t)i * STACK_BYTES + 4096; /* above a page that traps */
    contexts[i].bytes = STACK_BYTES - 4096;
    if (mprotect(stacks + (size_t)i * STACK_BYTES, 4096, PROT_NONE)) abort();
  }
}

/* The first thing on a new stack. */
static void (*entry_of_all)(void);
static void begin(void) {
#ifdef __SANITIZE_ADDRESS__
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
  if (!contexts[HOST].bottom) contexts[HOST].bottom = bottom, contexts[HOST].bytes = bytes;
#endif
  entry_of_all();
  abort();
}

void fiber_prepare(unsigned fiber, void (*entry)(void)) {
  context *c = &contexts[fiber];
  if (!stacks) map_stacks();
  entry_of_all = entry;
  c->fake = NULL;
  /* Stacks at equal distances would all lie in the same few lines of the cache. */
  size_t bytes = STACK_BYTES - (fiber * 17 % 64 + 1) * 64;
#if OWN_SWITCH
  void **top = (void **)(stacks + (size_t)fiber * STACK_BYTES + bytes);
  *--top = NULL; /* as if `begin` had been called: aligned, and nobody to return to */
  *--top = (void *)begin;
  for (int i = 0; i < 6; i++) *--top = NULL;
  c->top = top;
#else
  getcontext(&c->state);
  c->state.uc_stack.ss_sp = stacks + (size_t)fiber * STACK_BYTES;
  c->state.uc_stack.ss_size = bytes;
  c->state.uc_link = NULL;
  makecontext(&c->state, begin, 0);
#endif
}

static void change(unsigned to, bool forever) {
  context *from = &contexts[current];
  current = to;
  fiber_stack = to == HOST ? 0 : (uintptr_t)stacks + (uintptr_t)to * STACK_BYTES;
#ifdef __SANITIZE_ADDRESS__
  void **save = forever ? NULL : &from->fake;
  __sanitizer_start_switch_fiber(save, contexts[to].bottom, contexts[to].bytes);
#endif
  (void)forever;
#if OWN_SWITCH
  emulator_switch(&from->top, contexts[to].top);
#else
  swapcontext(&from->state, &contexts[to].state);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

void fiber_switch(unsigned to) { change(to, false); }

void fiber_leave(unsigned to) {
  change(to, true);
  abort();
}

/* What AddressSanitizer knows of the functions on this stack must not outlive them. */
void fiber_abandon(unsigned fiber) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(contexts[fiber].bottom, contexts[fiber].bytes);
#endif
  (void)fiber;
}
