/* SPDX-License-Identifier: Apache-2.0 */
/*
** Loops between matrix products in plain C, slow and obvious: the specification of the vector loops
** in pointwise_loops.h; and the choice among them. pointwise.h says in which order sums are made.
*/
#include "pointwise.h"

#include <stddef.h>

/* ------------------------------------------------------------------------------ rows */

static void add_bias(float *x, const float *bias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) x[r * cols + c] += bias[c];
}

static void add_rows(const float *x, int64_t rows, int64_t cols, float *out) {
  for (int64_t first = 0; first < rows; first += TRAIN_SLAB)
    for (int64_t c = 0; c < cols; c++) {
      float sum = 0;
      for (int64_t r = first; r < rows && r < first + TRAIN_SLAB; r++) sum += x[r * cols + c];
      out[c] += sum;
    }
}

/* ------------------------------------------------------------------------------ GELU */

/*
** 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3). In double, where
** neither x^3 overflows nor 1 - share loses what the gradient is made of.
*/
static const double twice_root = 2 * 0.7978845608, cubic = 0.044715;

/* Of x: 1 / (1 + exp(-2 u)). */
static double share_of(double x) { return 1 / (1 + exp(-twice_root * (x + cubic * x * x * x))); }

static float gelu(float x) { return (float)(x * share_of(x)); }

static float gelu_slope(float x) {
  double wide = x, share = share_of(wide);
  return (float)(share + wide * share * (1 - share) * twice_root * (1 + 3 * cubic * wide * wide));
}

static void bias_gelu(float *h, const float *bias, float *g, int64_t rows, int64_t cols) {
  add_bias(h, bias, rows, cols);
  for (int64_t i = 0; i < rows * cols; i++) g[i] = gelu(h[i]);
}

static void gelu_backward(const float *h, float *g, float *d, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float x = h[i];
    g[i] = gelu(x);
    d[i] *= gelu_slope(x);
  }
}

/* ------------------------------------------------------------------------------ RoPE */

static void rope(float *x, const float *cos_sin, int64_t rows, int64_t heads, int64_t head_dim,
                 int64_t stride, bool back) {
  int64_t half = head_dim / 2;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < half; i++) {
        float *head = x + r * stride + h * head_dim, a = head[i], b = head[half + i];
        float c = cos_sin[r * head_dim + i], s = cos_sin[r * head_dim + half + i];
        if (back) s = -s;
        head[i] = a * c - b * s;
        head[half + i] = b * c + a * s;
      }
}

/* ----------------------------------------------------------------------------- AdamW */

static double sum_squares(const float *x, int64_t n) {
  double strand[TRAIN_STRANDS] = {0};
  for (int64_t i = 0; i < n; i++) strand[i % TRAIN_STRANDS] += (double)x[i] * x[i];
  return train_fold(strand);
}

/* As torch.optim.AdamW: weight decay is of p, not of its gradient, and comes first. */
static void adamw(const train_adamw *a, int64_t n, const float *g, float *p, float *m, float *v,
                  float *ema) {
  train_adamw_factors f = train_adamw_factors_of(a);
  for (int64_t i = 0; i < n; i++) {
    float grad = g[i] * f.grad;
    m[i] = f.beta1 * m[i] + f.rest1 * grad;
    v[i] = f.beta2 * v[i] + f.rest2 * (grad * grad);
    p[i] = f.keep * p[i] - f.step * m[i] / (sqrtf(v[i]) * f.unbias + f.eps);
    if (ema) ema[i] = f.ema * ema[i] + f.ema_rest * p[i];
  }
}

/* ---------------------------------------------------------------------------- choice */

static const train_pointwise portable = {add_bias, bias_gelu,   gelu_backward, add_rows,
                                         rope,     sum_squares, adamw};

/* The builtin asks the CPU and whether the operating system saves the registers. */
static const train_pointwise *table_of(kf_isa isa) {
  if (isa == KF_ISA_PORTABLE) return &portable;
#ifdef KF_HAVE_AVX
  if (isa == KF_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return &train_pointwise_avx2;
  if (isa == KF_ISA_AVX512 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return &train_pointwise_avx512;
#endif
  return NULL;
}

const train_pointwise *train_pointwise_of(kf_isa isa) {
  if (isa != KF_ISA_BEST) return table_of(isa);
  const train_pointwise *table = NULL;
  for (int i = KF_ISA_AVX512; !table; i--) table = table_of((kf_isa)i);
  return table;
}
