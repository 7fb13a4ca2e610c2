/* SPDX-License-Identifier: Apache-2.0 */
/*
** Loops between matrix products in vectors, written once for all instruction sets: the including
** file brings the name of the TABLE.
**
** The end of a row is a vector with fewer lanes: the same operations, so that a value does not
** depend on its place. Nothing is asked of alignment. Loops are plain: one turn does not wait for
** the one before, and the processor overlaps several of them.
*/
#include <string.h>

#include "pointwise_vec.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
  WIDE = LANES / 2,
  STRAND_WIDES = TRAIN_STRANDS / WIDE,
  SUMS = 4 /* vectors of columns that are summed up at once */
};

#define INLINE static inline __attribute__((always_inline))

/* n lanes; where all of them are meant it is a constant. */
INLINE vec take(const float *p, int64_t n) { return n == LANES ? load(p) : load_part(p, n); }
INLINE void put(float *p, int64_t n, vec a) { n == LANES ? store(p, a) : store_part(p, n, a); }

/* Do `call` for i = 0, LANES, 2 LANES .. and n lanes, of `count` values. */
#define FOR_LANES(count, call)                                                                     \
  do {                                                                                             \
    int64_t i = 0;                                                                                 \
    for (; i + LANES <= (count); i += LANES) {                                                     \
      enum { n = LANES };                                                                          \
      call;                                                                                        \
    }                                                                                              \
    if (i < (count)) {                                                                             \
      int64_t n = (count) % LANES;                                                                 \
      call;                                                                                        \
    }                                                                                              \
  } while (0)

/* ------------------------------------------------------------------------------ rows */

INLINE void bias_lanes(float *x, const float *bias, int64_t n) {
  put(x, n, take(x, n) + take(bias, n));
}

static void add_bias(float *x, const float *bias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++, x += cols) FOR_LANES(cols, bias_lanes(x + i, bias + i, n));
}

/* out += the sum of `rows` rows, of nv vectors of n lanes. */
INLINE void sum_lanes(const float *x, int64_t rows, int64_t cols, float *out, int nv, int64_t n) {
  vec sum[SUMS];
  UNROLL for (int j = 0; j < nv; j++) sum[j] = all(0);
  for (int64_t r = 0; r < rows; r++) {
    UNROLL for (int j = 0; j < nv; j++) sum[j] += take(x + r * cols + j * LANES, n);
  }
  UNROLL for (int j = 0; j < nv; j++) {
    put(out + j * LANES, n, take(out + j * LANES, n) + sum[j]);
  }
}

/*
** A slab of rows at a time, from left to right: as many streams as the slab has rows, which the
** processor fetches ahead, and out stays in the cache. From memory, slabs of 4, 8 and 16 rows take
** the same time, 32 twice as long (Zen 4).
*/
static void add_rows(const float *x, int64_t rows, int64_t cols, float *out) {
  const int64_t whole = cols / (SUMS * LANES) * (SUMS * LANES);
  for (int64_t first = 0; first < rows; first += TRAIN_SLAB) {
    const float *slab = x + first * cols;
    int64_t n_rows = rows - first < TRAIN_SLAB ? rows - first : TRAIN_SLAB;
    for (int64_t c = 0; c < whole; c += SUMS * LANES)
      sum_lanes(slab + c, n_rows, cols, out + c, SUMS, LANES);
    FOR_LANES(cols - whole, sum_lanes(slab + whole + i, n_rows, cols, out + whole + i, 1, n));
  }
}

/* ------------------------------------------------------------------------------ GELU */

/*
** x / (1 + exp(-2 u)) and its slope, with e = exp(-2 |u|), which never overflows, r = 1 / (1 + e):
**
**     share = 1 / (1 + exp(-2 u)) = x < 0 ? e r : r
**     1 - share                   = x < 0 ? r : e r     so share (1 - share) = e r r
**
** Far to the left gelu(x) is x e, where an error of the exponent is one of the result: at x = -9,
** e is 2^-96, and three roundings on the way to that 96 would cost 1e-5. So the exponent
** y (A + B y^2), y = |x|, keeps what y^2 and the sum in brackets lose. What the sum loses is a
** difference that is exact because A is a multiple of 2^-20; that rounding and B's move the
** exponent by 1.1e-6 at most. All in all gelu has a relative error of 1e-6 at most on the left,
** 2e-7 on the right.
**
** From y = 9.98 on e is 0, instead of less than 2^-125; gelu(-y) is less than 3e-37 there. The
** formula multiplies 0 by x: -inf gives NaN, as does the slope at either infinity. A NaN that e
** forgets is still in x.
*/
#define EXPONENT_A (-0x1.26aecp+1f)  /* -2 sqrt(2/pi) log2(e) */
#define EXPONENT_B (-0x1.a5a7d0p-4f) /* times 0.044715 */
#define SLOPE_A 0x1.988454p+0f       /* 2 sqrt(2/pi) */
#define SLOPE_B 0x1.b6676cp-3f       /* times 3 * 0.044715 */
#define FARTHEST 9.98f

typedef struct sigmoid {
  vec y2; /* y^2, y = |x| or FARTHEST */
  vec e, r, share;
} sigmoid;

/* 2^x for x = n + f, n whole and f from -0.5 to 0.5, within 1.5 units in the last place. */
INLINE vec power_of_two(vec n, vec f) {
  vec p = muladd(muladd(all(0x1.5bba14p-10f), f, all(0x1.3cea88p-7f)), f, all(0x1.c6b752p-5f));
  p = muladd(muladd(p, f, all(0x1.ebf9bcp-3f)), f, all(0x1.62e42ap-1f));
  return times_power(muladd(p, f, all(1)), n);
}

INLINE sigmoid sigmoid_of(vec x) {
  const vec a = all(EXPONENT_A), b = all(EXPONENT_B);
  sigmoid s;
  vec y = smaller(all(FARTHEST), magnitude(x));
  s.y2 = y * y;
  vec y2_rest = mulsub(y, y, s.y2);
  vec q = muladd(b, s.y2, a);
  vec q_rest = muladd(b, y2_rest, mulsub(b, s.y2, q - a));
  vec n = nearest(y * q);
  vec f = muladd(y, q_rest, mulsub(y, q, n));
  s.e = if_below(y, all(FARTHEST), power_of_two(n, f));
  s.r = 1.0f / (1.0f + s.e);
  s.share = by_sign(x, s.r, s.e * s.r);
  return s;
}

INLINE void bias_gelu_lanes(float *h, const float *bias, float *g, int64_t n) {
  vec x = take(h, n) + take(bias, n);
  put(h, n, x);
  put(g, n, x * sigmoid_of(x).share);
}

static void bias_gelu(float *h, const float *bias, float *g, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++, h += cols, g += cols)
    FOR_LANES(cols, bias_gelu_lanes(h + i, bias + i, g + i, n));
}

/* The slope is share + x 2u' share (1-share). x meets e first: it may be large where e is 0. */
INLINE void backward_lanes(const float *h, float *g, float *d, int64_t n) {
  vec x = take(h, n), dg = take(d, n);
  sigmoid s = sigmoid_of(x);
  vec both = x * s.e * (s.r * s.r);
  vec slope = muladd(both, muladd(all(SLOPE_B), s.y2, all(SLOPE_A)), s.share);
  put(g, n, x * s.share);
  put(d, n, dg * slope);
}

static void gelu_backward(const float *h, float *g, float *d, int64_t n_values) {
  FOR_LANES(n_values, backward_lanes(h + i, g + i, d + i, n));
}

/* ------------------------------------------------------------------------------ RoPE */

/* The same lanes of all heads: cosines and sines are loaded once. sign: of the angle. */
INLINE void rope_lanes(float *x, const float *cos_sin, int64_t heads, int64_t half, float sign,
                       int64_t n) {
  vec c = take(cos_sin, n), s = take(cos_sin + half, n) * sign;
  for (int64_t h = 0; h < heads; h++) {
    float *at_a = x + h * 2 * half, *at_b = at_a + half;
    vec a = take(at_a, n), b = take(at_b, n);
    put(at_a, n, a * c - b * s);
    put(at_b, n, b * c + a * s);
  }
}

static void rope(float *x, const float *cos_sin, int64_t rows, int64_t heads, int64_t head_dim,
                 int64_t stride, bool back) {
  int64_t half = head_dim / 2;
  float sign = back ? -1 : 1;
  for (int64_t r = 0; r < rows; r++) {
    float *row = x + r * stride;
    const float *angles = cos_sin + r * head_dim;
    FOR_LANES(half, rope_lanes(row + i, angles + i, heads, half, sign, n));
  }
}

/* ----------------------------------------------------------------------------- AdamW */

INLINE void add_squares(wide strand[STRAND_WIDES], const float *x) {
  UNROLL for (int j = 0; j < STRAND_WIDES; j++) {
    wide values = wide_load(x + j * WIDE);
    strand[j] = wide_muladd(values, values, strand[j]);
  }
}

static double sum_squares(const float *x, int64_t n) {
  wide strand[STRAND_WIDES];
  float rest[TRAIN_STRANDS] = {0};
  double folded[TRAIN_STRANDS];
  int64_t i = 0;
  UNROLL for (int j = 0; j < STRAND_WIDES; j++) strand[j] = wide_zero();
  for (; i + TRAIN_STRANDS <= n; i += TRAIN_STRANDS) add_squares(strand, x + i);
  if (i < n) {
    memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
    add_squares(strand, rest);
  }
  UNROLL for (int j = 0; j < STRAND_WIDES; j++) wide_store(folded + j * WIDE, strand[j]);
  return train_fold(folded);
}

typedef struct moving {
  const float *g;
  float *p, *m, *v, *ema;
} moving;

INLINE void adamw_lanes(train_adamw_factors f, moving t, int64_t i, int64_t n, bool with_ema) {
  vec grad = take(t.g + i, n) * f.grad;
  vec m = f.beta1 * take(t.m + i, n) + f.rest1 * grad;
  vec v = f.beta2 * take(t.v + i, n) + f.rest2 * (grad * grad);
  vec size = root(v) * f.unbias + f.eps;
  vec p = f.keep * take(t.p + i, n) - f.step * m / size;
  put(t.m + i, n, m);
  put(t.v + i, n, v);
  put(t.p + i, n, p);
  if (with_ema) put(t.ema + i, n, f.ema * take(t.ema + i, n) + f.ema_rest * p);
}

/* Every line that is written was read before, so stores past the caches gain nothing: they take
** 1.6 to 14 times as long (Zen 4). */
static void adamw(const train_adamw *a, int64_t n_values, const float *g, float *p, float *m,
                  float *v, float *ema) {
  train_adamw_factors f = train_adamw_factors_of(a);
  moving t = {g, p, m, v, ema};
  if (ema)
    FOR_LANES(n_values, adamw_lanes(f, t, i, n, true));
  else
    FOR_LANES(n_values, adamw_lanes(f, t, i, n, false));
}

const train_pointwise TABLE = {add_bias, bias_gelu,   gelu_backward, add_rows,
                               rope,     sum_squares, adamw};
