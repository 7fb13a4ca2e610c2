/* SPDX-License-Identifier: Apache-2.0 */
/*
** Copy and sum of arrays far larger than the caches, as fast as vector code can. A store past the
** caches (non-temporal) saves reading what is overwritten: a copy moves 2 bytes for each byte, not
** 3. The loop is compiled for AVX2 by an attribute and chosen at run time.
**
** Tried and rejected, on Zen 4: AVX-512 (the copy is the same, the sum of two arrays 3 to 10%
** slower), four lines at a time (the same), prefetching 1 KB ahead (the sum is slower by more).
*/
#include "bench_stream.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef void stream_loop(int64_t n, const float *a, const float *b, float *to);

static void loop_portable(int64_t n, const float *a, const float *b, float *to) {
  if (b)
    for (int64_t i = 0; i < n; i++) to[i] = a[i] + b[i];
  else
    memcpy(to, a, (size_t)n * sizeof *to);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static void loop_avx2(int64_t n, const float *a, const float *b,
                                                      float *to) {
  for (int64_t i = 0; b && i < n; i += 16) {
    __m256 low = _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i));
    __m256 high = _mm256_add_ps(_mm256_load_ps(a + i + 8), _mm256_load_ps(b + i + 8));
    _mm256_stream_ps(to + i, low);
    _mm256_stream_ps(to + i + 8, high);
  }
  for (int64_t i = 0; !b && i < n; i += 16) {
    __m256 low = _mm256_load_ps(a + i), high = _mm256_load_ps(a + i + 8);
    _mm256_stream_ps(to + i, low);
    _mm256_stream_ps(to + i + 8, high);
  }
  _mm_sfence();
}

static stream_loop *choose_loop(void) {
  return __builtin_cpu_supports("avx2") ? loop_avx2 : loop_portable;
}

#else

static stream_loop *choose_loop(void) { return loop_portable; }

#endif

typedef struct part {
  pthread_t id;
  stream_loop *loop;
  int64_t n;
  const float *a, *b;
  float *to;
} part;

static void *run_part(void *self) {
  part *p = self;
  p->loop(p->n, p->a, p->b, p->to);
  return NULL;
}

void bench_stream(int n_threads, int64_t n, const float *a, const float *b, float *to) {
  part parts[BENCH_STREAM_MAX_THREADS];
  int64_t n_units = (n + BENCH_STREAM_UNIT - 1) / BENCH_STREAM_UNIT;
  int n_started = 1;
  for (int i = 0; i < n_threads; i++) {
    int64_t first = n_units * i / n_threads * BENCH_STREAM_UNIT;
    int64_t end = n_units * (i + 1) / n_threads * BENCH_STREAM_UNIT;
    parts[i] = (part){.loop = choose_loop(), .n = end - first, .a = a + first, .to = to + first};
    if (b) parts[i].b = b + first;
  }
  while (n_started < n_threads &&
         !pthread_create(&parts[n_started].id, NULL, run_part, &parts[n_started]))
    n_started++;
  run_part(&parts[0]);
  for (int i = n_started; i < n_threads; i++) run_part(&parts[i]); /* those that did not start */
  for (int i = 1; i < n_started; i++) pthread_join(parts[i].id, NULL);
}
