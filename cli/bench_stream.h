/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory can do: the reference of kernels that move more than they compute. */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H

#include <stdint.h>

enum { BENCH_STREAM_UNIT = 16, BENCH_STREAM_MAX_THREADS = 256 };

/*
** to = a, or a + b where b is not NULL: AVX2 loads, and stores past the caches. n floats, rounded
** up to units of 16; all three aligned to 64 bytes. Plain C where there is no AVX2.
**
** The array is cut into n_threads contiguous parts. The caller's thread does the first; the others
** start and end with the call, as those of the kernels do.
*/
void bench_stream(int n_threads, int64_t n, const float *a, const float *b, float *to);

#endif
