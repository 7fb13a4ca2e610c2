/* SPDX-License-Identifier: Apache-2.0 */
/*
** The linker's --wrap sends every malloc, calloc, realloc and aligned_alloc of the program and
** of the static library through here. Shared libraries (libc, cmocka) keep their own.
*/
#include "fail_alloc.h"

#include <stddef.h>

/* Names that begin with two underscores are the linker's choice. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

static _Thread_local long fail_at, n_calls;

long fail_alloc(long k) {
  long n = n_calls;
  fail_at = k;
  n_calls = 0;
  return n;
}

static int fails(void) { return ++n_calls == fail_at; }

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }

void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }

void *__wrap_realloc(void *old, size_t size) { return fails() ? NULL : __real_realloc(old, size); }

void *__wrap_aligned_alloc(size_t align, size_t size) {
  return fails() ? NULL : __real_aligned_alloc(align, size);
}
