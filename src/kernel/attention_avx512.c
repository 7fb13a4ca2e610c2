/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with AVX-512: 24 of the 32 registers hold a tile of 8 x 3 vectors of 16. */
#include "attention.h"

#ifdef KF_HAVE_AVX
#include "simd.h"

enum { TILE = 8 };

static inline vec nearest(vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for a whole n from -126 to 127 */
static inline vec times_power(vec a, vec n) { return _mm512_scalef_ps(a, n); }

#define FORWARD kfi_forward_avx512
#define BACKWARD kfi_backward_avx512
#include "attention_tile.h"
#endif
