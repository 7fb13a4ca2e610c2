/* SPDX-License-Identifier: Apache-2.0 */
/*
** The loops between matrix products. Every table that this machine has is held against formulas in
** double, and against the portable one: the same bits, but for GELU, where the vector tables have
** the same bits among themselves. Sizes lie around vectors and slabs of rows, arrays begin
** anywhere, and what lies around them is compared afterwards.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dice.h"
#include "train/train.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const int64_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000};

/* ---------------------------------------------------------------------- guarded arrays */

enum { MARGIN = 40 }; /* floats on both sides that nobody may write, more than two vectors */

typedef struct array {
  int64_t n;
  float *block, *x; /* x (n) begins `shift` floats after the margin */
  int64_t shift;
} array;

static float mark(int64_t i) { return -12345.0f - (float)(i % 1000); }

static array array_of(int64_t n, int64_t shift) {
  array a = {.n = n, .shift = shift};
  int64_t all = n + shift + 2 * MARGIN;
  a.block = malloc((size_t)all * sizeof *a.block);
  assert_non_null(a.block);
  a.x = a.block + MARGIN + shift;
  for (int64_t i = 0; i < all; i++) a.block[i] = mark(i);
  return a;
}

static array random_array(int64_t n, int64_t shift, dice *d) {
  array a = array_of(n, shift);
  for (int64_t i = 0; i < n; i++) a.x[i] = (float)dice_real(d, -2, 2);
  return a;
}

static array copy_of(const array *from, int64_t shift) {
  array a = array_of(from->n, shift);
  memcpy(a.x, from->x, (size_t)from->n * sizeof *a.x);
  return a;
}

static void drop(array *a) {
  int64_t begin = MARGIN + a->shift, end = begin + a->n;
  for (int64_t i = 0; i < end + MARGIN; i++)
    if ((i < begin || i >= end) && a->block[i] != mark(i))
      fail_msg("%lld floats at shift %lld: place %lld was written", (long long)a->n,
               (long long)a->shift, (long long)(i - begin));
  free(a->block);
}

static void expect_bits(const char *what, const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(got + i, want + i, sizeof *got))
      fail_msg("%s[%lld] of %lld is %a, expected %a", what, (long long)i, (long long)n, got[i],
               want[i]);
}

static void expect_near(const char *what, int64_t i, double got, double want, double most) {
  if (!(fabs(got - want) <= most))
    fail_msg("%s[%lld] is %.9g, expected %.9g within %g", what, (long long)i, got, want, most);
}

/* ---------------------------------------------------------------------------- choice */

/* The vector tables, and the portable one if `from` is KF_ISA_PORTABLE. */
#define FOR_TABLES(t, from)                                                                        \
  for (int isa = (from); isa <= KF_ISA_AVX512; isa++)                                              \
    for (const train_pointwise *t = train_pointwise_of((kf_isa)isa); t; t = NULL)

static const train_pointwise *portable(void) { return train_pointwise_of(KF_ISA_PORTABLE); }

static void test_choice(void **state) {
  (void)state;
  const train_pointwise *last = NULL;
  assert_non_null(portable());
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    assert_ptr_not_equal(t, last);
    last = t;
  }
  assert_ptr_equal(train_pointwise_of(KF_ISA_BEST), last);
  assert_null(train_pointwise_of((kf_isa)(KF_ISA_AVX512 + 1)));
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) assert_non_null(train_pointwise_of(KF_ISA_AVX2));
  if (__builtin_cpu_supports("avx512bw")) assert_non_null(train_pointwise_of(KF_ISA_AVX512));
#endif
}

/* Nothing to do: nothing is touched, not even looked at. */
static void test_nothing(void **state) {
  (void)state;
  train_adamw a = {.correction1 = 1, .correction2 = 1};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    t->add_bias(NULL, NULL, 0, 5);
    t->bias_gelu(NULL, NULL, NULL, 0, 5);
    t->gelu_backward(NULL, NULL, NULL, 0);
    t->add_rows(NULL, 0, 5, NULL);
    t->rope(NULL, NULL, 0, 2, 4, 8, false);
    assert_true(t->sum_squares(NULL, 0) == 0);
    t->adamw(&a, 0, NULL, NULL, NULL, NULL, NULL);
  }
}

/* ------------------------------------------------------------------------------ rows */

static void check_bias(const train_pointwise *t, int64_t rows, int64_t cols, dice *d) {
  array x = random_array(rows * cols, cols % 3, d), bias = random_array(cols, rows % 5, d);
  array got = copy_of(&x, rows % 4), same = copy_of(&bias, 1);
  t->add_bias(got.x, bias.x, rows, cols);
  for (int64_t i = 0; i < x.n; i++) x.x[i] += bias.x[i % cols];
  expect_bits("x + bias", got.x, x.x, x.n);
  expect_bits("bias", bias.x, same.x, cols);
  drop(&x), drop(&bias), drop(&got), drop(&same);
}

static void test_add_bias(void **state) {
  (void)state;
  dice d = {1};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(sizes); i++)
      for (int64_t rows = 0; rows < 4; rows++) check_bias(t, rows, sizes[i], &d);
  }
}

static void check_rows(const train_pointwise *t, int64_t rows, int64_t cols, dice *d) {
  array x = random_array(rows * cols, cols % 3, d), out = random_array(cols, rows % 5, d);
  array want = copy_of(&out, 0), got = copy_of(&out, cols % 7), same = copy_of(&x, 1);
  portable()->add_rows(x.x, rows, cols, want.x);
  t->add_rows(x.x, rows, cols, got.x);
  expect_bits("sum of rows", got.x, want.x, cols);
  expect_bits("rows", x.x, same.x, x.n);
  for (int64_t c = 0; c < cols; c++) {
    double sum = out.x[c];
    for (int64_t r = 0; r < rows; r++) sum += (double)x.x[r * cols + c];
    expect_near("sum of rows", c, got.x[c], sum, 1e-5 * sqrt((double)rows + 1));
  }
  drop(&x), drop(&out), drop(&want), drop(&got), drop(&same);
}

static void test_add_rows(void **state) {
  (void)state;
  static const int64_t rows[] = {0, 1, 15, 16, 17, 40};
  dice d = {2};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(sizes); i++)
      for (int64_t r = 0; r < N(rows); r++) check_rows(t, rows[r], sizes[i], &d);
    check_rows(t, 5000, 19, &d);
  }
}

/* ------------------------------------------------------------------------------ GELU */

/* Both sides of 1 / (1 + exp(-2u)) = 1 - 1 / (1 + exp(2u)): neither is a difference. */
static double twice_u(double x) { return 2 * 0.7978845608 * (x + 0.044715 * x * x * x); }
static double share(double x) { return 1 / (1 + exp(-twice_u(x))); }
static double exact_gelu(double x) { return x * share(x); }
static double exact_slope(double x) {
  double slope_u = 0.7978845608 * (1 + 3 * 0.044715 * x * x);
  return share(x) + 2 * slope_u * x * share(x) * share(-x);
}

/* The formula as one knows it. */
static double known_gelu(double x) { return 0.5 * x * (1 + tanh(twice_u(x) / 2)); }

/* gelu(x) and its slope as this table has them, one value alone. */
static float gelu_at(const train_pointwise *t, float x, float *slope) {
  float g = 0, d = 1;
  t->gelu_backward(&x, &g, &d, 1);
  if (slope) *slope = d;
  return g;
}

/* The relative error is below 1.2e-6, but that of the slope at its zero, -0.7518, where it is the
** difference of two terms. From x = -9.98 on down both may be 0. */
static void check_gelu(const train_pointwise *t, float x) {
  float slope, g = gelu_at(t, x, &slope);
  double bound = t == portable() ? 1e-7 : 1.2e-6, want = exact_slope(x);
  double near_zero = fabs(x + 0.7518) < 0.2 ? 1e-7 : 0;
  if (isnan(g) || isnan(slope)) fail_msg("gelu(%a) is %g, its slope %g", x, g, slope);
  expect_near("gelu", 0, g, exact_gelu(x), bound * fabs(exact_gelu(x)) + 3e-37 * (x < -9.97f));
  expect_near("slope", 0, slope, want, bound * fabs(want) + near_zero + 5e-36 * (x < -9.97f));
}

/* Every value that a float of up to 12 bits of its own can have, and its neighbours. */
static void test_gelu_values(void **state) {
  (void)state;
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int power = -100; power < 127; power += power >= -20 && power < 5 ? 1 : 9)
      for (int i = 1024; i < 2048; i++) {
        float x = ldexpf((float)i, power - 10), up = x * 1.0000003f;
        check_gelu(t, x);
        check_gelu(t, -x);
        check_gelu(t, up);
        check_gelu(t, -up);
      }
  }
}

static void test_gelu_special(void **state) {
  (void)state;
  static const float large[] = {9.98f, 10, 11, 30, 1e5f, 1e10f, 1e20f, 1e30f, 3.4e38f};
  float slope;
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(large); i++) {
      assert_true(gelu_at(t, large[i], &slope) == large[i]);
      assert_true(slope == 1);
      assert_true(fabsf(gelu_at(t, -large[i], &slope)) < 3e-37f);
      assert_true(fabsf(slope) < 5e-36f);
    }
    assert_true(isnan(gelu_at(t, NAN, &slope)) && isnan(slope));
    assert_true(isnan(gelu_at(t, -NAN, &slope)) && isnan(slope));
    assert_true(gelu_at(t, INFINITY, &slope) == INFINITY && isnan(slope));
    assert_true(isnan(gelu_at(t, -INFINITY, &slope)) && isnan(slope));
    assert_true(gelu_at(t, 0, &slope) == 0 && slope == 0.5f);
    assert_true(gelu_at(t, -0.0f, &slope) == 0 && slope == 0.5f);
    assert_true(gelu_at(t, 1e-40f, &slope) >= 0.49e-40f && slope == 0.5f);
  }
}

/* What the other tests take for granted: it is GELU, and the slope is its slope. */
static void test_gelu_formula(void **state) {
  (void)state;
  for (double x = -8; x < 8; x += 0.01) {
    const double h = 1e-4;
    double steep = (known_gelu(x + h) - known_gelu(x - h)) / (2 * h);
    expect_near("gelu", 0, exact_gelu(x), known_gelu(x), 1e-15 * (1 + fabs(x)));
    expect_near("slope", 0, exact_slope(x), steep, 1e-8);
    FOR_TABLES(t, KF_ISA_PORTABLE) {
      float slope;
      expect_near("gelu", 0, gelu_at(t, (float)x, &slope), known_gelu((float)x),
                  1e-6 * fabs(x) + 1e-9);
      expect_near("slope", 0, slope, steep, 1e-6);
    }
  }
}

/* Values from -12 to 12, some of them special. */
static array wild_array(int64_t n, int64_t shift, dice *d) {
  static const float special[] = {0, -0.0f, 1e30f, -1e30f, 1e-40f, -9.98f, 9.98f};
  array a = array_of(n, shift);
  for (int64_t i = 0; i < n; i++)
    a.x[i] =
      dice_one_in(d, 9) ? special[dice_int(d, N(special))] : (float)dice_real(d, -12.0, 12.0);
  return a;
}

/* A value alone, and the same value anywhere: the same bits, and those of every vector table. */
static void check_gelu_rows(const train_pointwise *t, int64_t rows, int64_t cols, dice *d) {
  const train_pointwise *alone = t == portable() ? t : train_pointwise_of(KF_ISA_AVX2);
  array h = wild_array(rows * cols, rows % 4, d), bias = random_array(cols, cols % 3, d);
  array g = array_of(h.n, 1), g_again = array_of(h.n, 2), slope = random_array(h.n, cols % 5, d);
  array made = copy_of(&h, 0), dg = copy_of(&slope, 3), both = copy_of(&h, 1);
  for (int64_t i = 0; i < h.n; i++) made.x[i] += bias.x[i % cols];
  t->bias_gelu(h.x, bias.x, g.x, rows, cols);
  expect_bits("h + bias", h.x, made.x, h.n);
  t->gelu_backward(h.x, g_again.x, slope.x, h.n);
  expect_bits("h", h.x, made.x, h.n);
  for (int64_t i = 0; i < h.n; i++) {
    float want_slope, want = gelu_at(alone, made.x[i], &want_slope);
    want_slope *= dg.x[i];
    expect_bits("gelu", g.x + i, &want, 1);
    expect_bits("gelu of backward", g_again.x + i, &want, 1);
    expect_bits("gradient", slope.x + i, &want_slope, 1);
  }
  t->bias_gelu(both.x, bias.x, both.x, rows, cols); /* g may take the place of h */
  expect_bits("gelu in place", both.x, g.x, h.n);
  drop(&h), drop(&bias), drop(&g), drop(&g_again), drop(&slope), drop(&made), drop(&dg),
    drop(&both);
}

static void test_gelu_rows(void **state) {
  (void)state;
  dice d = {3};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(sizes); i++)
      for (int64_t rows = 0; rows < 5; rows++) check_gelu_rows(t, rows, sizes[i], &d);
  }
}

/* ------------------------------------------------------------------------------ RoPE */

typedef struct turn {
  int64_t rows, heads, head_dim, stride;
  array angle; /* (rows, head_dim) cosines, sines */
} turn;

static turn turn_of(int64_t rows, int64_t heads, int64_t head_dim, dice *d) {
  turn u = {rows, heads, head_dim, heads * head_dim + dice_int(d, 40), {0}};
  u.angle = array_of(rows * head_dim, dice_int(d, 4));
  for (int64_t i = 0; i < rows * head_dim; i++) {
    double angle = dice_real(d, -4, 4);
    if (i % head_dim >= head_dim / 2) continue;
    u.angle.x[i] = (float)cos(angle);
    u.angle.x[i + head_dim / 2] = (float)sin(angle);
  }
  return u;
}

static void rotate(const train_pointwise *t, const turn *u, array *x, bool back) {
  t->rope(x->x, u->angle.x, u->rows, u->heads, u->head_dim, u->stride, back);
}

/* Rows end with their last head, but for what the stride leaves between them. */
static int64_t reach(const turn *u) {
  return u->rows > 0 ? (u->rows - 1) * u->stride + u->heads * u->head_dim : 0;
}

/* Is place i of x in a head, and where: the other half, in pair with it, is at *other. */
static bool in_head(const turn *u, int64_t i, int64_t *other, double *c, double *s) {
  int64_t row = i / u->stride, col = i % u->stride, half = u->head_dim / 2;
  if (col >= u->heads * u->head_dim) return false;
  int64_t at = col % u->head_dim;
  *other = at < half ? i + half : i - half;
  *c = u->angle.x[row * u->head_dim + at % half];
  *s = u->angle.x[row * u->head_dim + half + at % half];
  if (at < half) *s = -*s;
  return true;
}

static void check_rope(const train_pointwise *t, const turn *u, dice *d) {
  array x = random_array(reach(u), dice_int(d, 4), d), y = random_array(reach(u), 0, d);
  array got = copy_of(&x, dice_int(d, 4)), want = copy_of(&x, 1), back = copy_of(&y, 2);
  double forward_dot = 0, back_dot = 0;
  rotate(t, u, &got, false);
  rotate(portable(), u, &want, false);
  rotate(t, u, &back, true);
  expect_bits("rope", got.x, want.x, x.n);
  for (int64_t i = 0, other; i < x.n; i++) {
    double c, s;
    if (!in_head(u, i, &other, &c, &s)) {
      expect_bits("between rows", got.x + i, x.x + i, 1);
      continue;
    }
    expect_near("rope", i, got.x[i], c * x.x[i] + s * x.x[other], 1e-6);
    forward_dot += (double)got.x[i] * y.x[i];
    back_dot += (double)x.x[i] * back.x[i];
  }
  expect_near("dot product", 0, forward_dot, back_dot, 1e-6 * (double)x.n);
  rotate(t, u, &got, true);
  rotate(portable(), u, &want, true);
  expect_bits("rope back", got.x, want.x, x.n);
  for (int64_t i = 0; i < x.n; i++) expect_near("there and back", i, got.x[i], x.x[i], 1e-6);
  drop(&x), drop(&y), drop(&got), drop(&want), drop(&back);
}

static void test_rope(void **state) {
  (void)state;
  static const int64_t dims[] = {2, 6, 14, 16, 18, 30, 32, 34, 64, 66, 128, 256};
  dice d = {4};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(dims); i++)
      for (int64_t rows = 0; rows < 4; rows++)
        for (int64_t heads = 1; heads <= 3; heads++) {
          turn u = turn_of(rows, heads, dims[i], &d);
          check_rope(t, &u, &d);
          drop(&u.angle);
        }
  }
}

/* ----------------------------------------------------------------------------- AdamW */

static void check_squares(const train_pointwise *t, int64_t n, dice *d) {
  array x = random_array(n, n % 5, d);
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x.x[i] * x.x[i];
  double got = t->sum_squares(x.x, n), want = portable()->sum_squares(x.x, n);
  assert_memory_equal(&got, &want, sizeof got);
  expect_near("sum of squares", n, got, sum, 1e-11 * sum);
  drop(&x);
}

static void test_sum_squares(void **state) {
  (void)state;
  dice d = {5};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(sizes); i++) check_squares(t, sizes[i], &d);
    check_squares(t, 2000003, &d);
    float large[40] = {[3] = 3e38f, [37] = 1e-30f};
    assert_true(t->sum_squares(large, 3) == 0);
    assert_true(t->sum_squares(large, 40) == (double)3e38f * 3e38f);
    assert_true(t->sum_squares(large + 4, 36) == (double)1e-30f * 1e-30f);
    large[39] = NAN;
    assert_true(isnan(t->sum_squares(large, 40)));
  }
}

/* One number, in double. */
typedef struct twin {
  double p, m, v, ema;
} twin;

static void twin_step(twin *w, const train_adamw *a, double g) {
  g *= a->grad_scale;
  w->p *= 1 - (double)a->lr * a->weight_decay;
  w->m = a->beta1 * w->m + (1 - (double)a->beta1) * g;
  w->v = a->beta2 * w->v + (1 - (double)a->beta2) * g * g;
  w->p -= a->lr / a->correction1 * w->m / (sqrt(w->v) / sqrt(a->correction2) + a->eps);
  w->ema = a->ema_decay * w->ema + (1 - (double)a->ema_decay) * w->p;
}

enum { P, M, V, EMA, N_STATES };

static void expect_twin(const array s[N_STATES], const twin *w, const train_adamw *a, bool ema) {
  for (int64_t i = 0; i < s[P].n; i++) {
    double most_p = 50 * 6e-8 * (fabs(w[i].p) + 1) + 50 * 1e-6 * a->lr;
    expect_near("p", i, s[P].x[i], w[i].p, most_p);
    expect_near("m", i, s[M].x[i], w[i].m, 1e-6);
    expect_near("v", i, s[V].x[i], w[i].v, 1e-5 * w[i].v);
    if (ema) expect_near("ema", i, s[EMA].x[i], w[i].ema, most_p);
  }
}

/* 50 steps of n numbers: the double twin's within rounding, and the bits of the portable table. */
static void check_adamw(const train_pointwise *t, int64_t n, bool ema, dice *d) {
  train_adamw a = {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.1f};
  array got[N_STATES], want[N_STATES], g = array_of(n, n % 3), same = array_of(n, 0);
  twin *w = calloc((size_t)n, sizeof *w);
  assert_non_null(w);
  a.ema_decay = 0.95f, a.grad_scale = 0.25f;
  for (int i = 0; i < N_STATES; i++) {
    got[i] = random_array(n, (n + i) % 4, d);
    if (i == M || i == V) memset(got[i].x, 0, (size_t)n * sizeof(float));
    want[i] = copy_of(&got[i], i);
  }
  for (int64_t i = 0; i < n; i++) w[i] = (twin){got[P].x[i], 0, 0, got[EMA].x[i]};
  for (int step = 1; step <= 50; step++) {
    a.correction1 = (float)(1 - pow(a.beta1, step));
    a.correction2 = (float)(1 - pow(a.beta2, step));
    for (int64_t i = 0; i < n; i++) g.x[i] = same.x[i] = (float)dice_real(d, -4, 4);
    t->adamw(&a, n, g.x, got[P].x, got[M].x, got[V].x, ema ? got[EMA].x : NULL);
    portable()->adamw(&a, n, g.x, want[P].x, want[M].x, want[V].x, ema ? want[EMA].x : NULL);
    for (int64_t i = 0; i < n; i++) twin_step(&w[i], &a, g.x[i]);
    expect_bits("g", g.x, same.x, n);
  }
  expect_twin(got, w, &a, ema);
  for (int i = 0; i < N_STATES; i++) {
    expect_bits("state", got[i].x, want[i].x, n);
    drop(&got[i]), drop(&want[i]);
  }
  drop(&g), drop(&same);
  free(w);
}

static void test_adamw(void **state) {
  (void)state;
  dice d = {6};
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    for (int64_t i = 0; i < N(sizes); i++) {
      check_adamw(t, sizes[i], true, &d);
      check_adamw(t, sizes[i], false, &d);
    }
  }
}

/* What lies between tensors is 0 and stays 0; a first step goes lr against the sign of g. */
static void test_adamw_first(void **state) {
  (void)state;
  train_adamw a = {.lr = 0.5f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .grad_scale = 1};
  a.correction1 = 1 - a.beta1, a.correction2 = 1 - a.beta2, a.weight_decay = 0.01f;
  FOR_TABLES(t, KF_ISA_PORTABLE) {
    float g[20] = {[4] = 1e-3f, [5] = -30, [17] = 7}, p[20] = {0}, m[20] = {0}, v[20] = {0};
    t->adamw(&a, 20, g, p, m, v, NULL);
    for (int i = 0; i < 20; i++) {
      double want = g[i] > 0 ? -0.5 : g[i] < 0 ? 0.5 : 0;
      expect_near("p", i, p[i], want, want == 0 ? 0 : 1e-5);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choice),       cmocka_unit_test(test_nothing),
    cmocka_unit_test(test_add_bias),     cmocka_unit_test(test_add_rows),
    cmocka_unit_test(test_gelu_values),  cmocka_unit_test(test_gelu_special),
    cmocka_unit_test(test_gelu_formula), cmocka_unit_test(test_gelu_rows),
    cmocka_unit_test(test_rope),         cmocka_unit_test(test_sum_squares),
    cmocka_unit_test(test_adamw),        cmocka_unit_test(test_adamw_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
