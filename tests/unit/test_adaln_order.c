/* SPDX-License-Identifier: Apache-2.0 */
/*
** The order of every operation that doc/adaln.md promises, written down once more in scalars: all
** outputs have exactly these bits. With KF_ROUND_EACH this is also the sequence of roundings of a
** model that runs in bf16 or fp16. Conversions are the tests' own.
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

#include <knapformer.h>

#define FAIL fail_msg
#include "adaln_problem.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* --------------------------------------------------------------------- the model */

typedef struct model {
  const problem *p;
  bool each;
  float *v[N_TENSORS]; /* dense */
} model;

/* Storing, and reading again. */
static float R(const model *m, float v) { return (float)nearest(m->p->f.dtype, v); }

/* An operation between that only an eager model rounds. */
static float E(const model *m, float v) { return m->each ? R(m, v) : v; }

/* a * b + c */
static float combine(const model *m, float a, float b, float c) {
  return m->each ? R(m, a * b) + c : fmaf(a, b, c);
}

/* The sum of n <= 256 columns of a, or of a * b: 4 terms in each of 64 strands, then a tree. */
static float sum_run(int64_t n, const float *a, const float *b) {
  float strand[64] = {0};
  for (int64_t c = 0; c < n; c++)
    strand[c % 64] = b ? fmaf(a[c], b[c], strand[c % 64]) : strand[c % 64] + a[c];
  for (int64_t k = 64; k > 1; k /= 2)
    for (int64_t i = 0; i < k / 2; i++) strand[i] = strand[2 * i] + strand[2 * i + 1];
  return strand[0];
}

static int64_t run_of(int64_t dim, int64_t first) { return dim - first < 256 ? dim - first : 256; }

static float sum_row(int64_t dim, const float *a, const float *b) {
  float total = 0;
  for (int64_t c = 0; c < dim; c += 256) total += sum_run(run_of(dim, c), a + c, b ? b + c : NULL);
  return total;
}

/* 4 terms in each of 64 strands, and fours of these, in float; the sixteen fours in double. */
static double sum_exactly(int64_t n, const float *a) {
  float strand[64] = {0};
  double four[16];
  for (int64_t c = 0; c < n; c++) strand[c % 64] += a[c];
  for (int i = 0; i < 16; i++)
    four[i] = (strand[4 * i] + strand[4 * i + 1]) + (strand[4 * i + 2] + strand[4 * i + 3]);
  for (int64_t k = 16; k > 1; k /= 2)
    for (int64_t i = 0; i < k / 2; i++) four[i] = four[2 * i] + four[2 * i + 1];
  return four[0];
}

static float mean_of_run(int64_t dim, const float *x, int64_t c) {
  return (float)sum_exactly(run_of(dim, c), x + c) / (float)run_of(dim, c);
}

/* A first mean, then what all columns lie off it. */
static float mean_of(int64_t dim, const float *x) {
  float sum = 0, rest = 0;
  for (int64_t c = 0; c < dim; c += 256) sum += (float)sum_exactly(run_of(dim, c), x + c);
  float rough = sum / (float)dim;
  for (int64_t c = 0; c < dim; c += 256) {
    double n = (double)run_of(dim, c), own = mean_of_run(dim, x, c);
    float left = (float)(sum_exactly(run_of(dim, c), x + c) - n * own);
    rest += fmaf((float)n, (float)own - rough, left);
  }
  return rough + rest / (float)dim;
}

/* The squares of a run are about the run's own mean; then they are moved to the row's. */
static float sum_squares(int64_t dim, const float *x, float mean, float *work) {
  float total = 0;
  for (int64_t c = 0; c < dim; c += 256) {
    int64_t n = run_of(dim, c);
    float own = mean_of_run(dim, x, c), off = own - mean;
    for (int64_t i = 0; i < n; i++) work[i] = x[c + i] - own;
    total = fmaf((float)n * off, off, total + sum_run(n, work, work));
  }
  return total;
}

static model model_of(const problem *p) {
  model m = {p, p->f.rounding == KF_ROUND_EACH, {0}};
  for (int i = 0; i < N_TENSORS; i++) {
    const tensor *t = &p->t[i];
    if (!t->data) continue;
    m.v[i] = checked(calloc((size_t)(t->n_rows * t->dim) + 1, sizeof(float)));
    for (int64_t r = 0; i < Y && r < t->n_rows; r++)
      for (int64_t c = 0; c < t->dim; c++) m.v[i][r * t->dim + c] = (float)at(t, r, c);
  }
  return m;
}

static void forward_row(const model *m, int64_t t, float *work) {
  int64_t dim = m->p->f.dim, s = m->p->seq_index[t] * dim;
  float *x = m->v[X] + t * dim, *y = m->v[Y] + t * dim;
  if (m->p->f.gate)
    for (int64_t c = 0; c < dim; c++)
      x[c] = R(m, combine(m, m->v[GATE][s + c], m->v[U][t * dim + c], m->v[RESIDUAL][t * dim + c]));
  float mean = mean_of(dim, x);
  float eps = m->p->f.eps != 0 ? m->p->f.eps : 1e-6f;
  float rstd = 1 / sqrtf(sum_squares(dim, x, mean, work) / (float)dim + eps);
  for (int64_t c = 0; c < dim; c++) {
    float factor = E(m, 1 + m->v[SCALE][s + c]);
    y[c] = R(m, combine(m, E(m, (x[c] - mean) * rstd), factor, m->v[SHIFT][s + c]));
  }
  m->v[MEAN][t] = mean;
  m->v[RSTD][t] = rstd;
}

/* dx and du, and what the row adds to sums (3, dim). */
static void backward_row(const model *m, int64_t t, float *work, float *sums) {
  int64_t dim = m->p->f.dim, s = m->p->seq_index[t] * dim;
  float *g = work, *x_ = work + dim;
  const float *dy = m->v[DY] + t * dim;
  for (int64_t c = 0; c < dim; c++) {
    g[c] = E(m, dy[c] * E(m, 1 + m->v[SCALE][s + c]));
    x_[c] = (m->v[X][t * dim + c] - m->v[MEAN][t]) * m->v[RSTD][t];
  }
  float c1 = sum_row(dim, g, NULL) / (float)dim, c2 = sum_row(dim, g, x_) / (float)dim;
  for (int64_t c = 0; c < dim; c++) {
    float d = E(m, m->v[RSTD][t] * fmaf(-x_[c], c2, g[c] - c1));
    if (m->p->f.dx_add) d = E(m, d + m->v[DX_ADD][t * dim + c]);
    m->v[DX][t * dim + c] = R(m, d);
    sums[c] = combine(m, dy[c], E(m, x_[c]), sums[c]);
    sums[dim + c] += dy[c];
    if (!m->p->f.gate) continue;
    m->v[DU][t * dim + c] = R(m, m->v[GATE][s + c] * d);
    sums[2 * dim + c] = combine(m, d, m->v[U][t * dim + c], sums[2 * dim + c]);
  }
}

/* Sums of 32 neighbours in fp32, these in double. */
static void backward_seq(const model *m, int64_t s, float *work, float *sums, double *total) {
  int64_t dim = m->p->f.dim, n = 0;
  const int32_t *seq = m->p->seq_index;
  memset(total, 0, (size_t)(3 * dim) * sizeof *total);
  for (int64_t t = 0; t < m->p->n_tokens; t++) {
    if (seq[t] != s) continue;
    if (n == 0) memset(sums, 0, (size_t)(3 * dim) * sizeof *sums);
    backward_row(m, t, work, sums);
    bool last = ++n == 32 || t + 1 == m->p->n_tokens || seq[t + 1] != s;
    for (int64_t i = 0; last && i < 3 * dim; i++) total[i] += sums[i];
    if (last) n = 0;
  }
  for (int i = DSCALE; i <= (m->p->f.gate ? DGATE : DSHIFT); i++)
    for (int64_t c = 0; c < dim; c++)
      m->v[i][s * dim + c] = (float)nearest(m->p->t[i].dtype, (float)total[(i - DSCALE) * dim + c]);
}

static model solve(const problem *p) {
  model m = model_of(p);
  int64_t dim = p->f.dim;
  float *work = checked(calloc((size_t)(5 * dim), sizeof *work));
  double *total = checked(calloc((size_t)(3 * dim), sizeof *total));
  for (int64_t t = 0; t < p->n_tokens; t++) forward_row(&m, t, work);
  for (int64_t s = 0; s < p->f.n_seqs; s++) backward_seq(&m, s, work, work + 2 * dim, total);
  free(total);
  free(work);
  return m;
}

/* --------------------------------------------------------------------- the same bits */

static void expect_model(problem *p) {
  model m = solve(p);
  run(p, KF_ISA_PORTABLE, 1);
  for (int i = 0; i < N_TENSORS; i++) {
    const tensor *t = &p->t[i];
    for (int64_t r = 0; is_written(p, i) && r < t->n_rows; r++)
      for (int64_t c = 0; c < t->dim; c++) {
        double got = at(t, r, c), want = m.v[i][r * t->dim + c];
        if (got != want || !signbit(got) != !signbit(want))
          fail_msg("%s[%lld][%lld] is %a, expected %a; dim %lld, dtype %d, rounding %d, gate %d",
                   tensor_names[i], (long long)r, (long long)c, got, want, (long long)p->f.dim,
                   (int)p->f.dtype, (int)p->f.rounding, (int)p->f.gate);
      }
  }
  for (int i = 0; i < N_TENSORS; i++) free(m.v[i]);
}

static void test_order(void **state) {
  (void)state;
  static const int64_t dims[] = {1, 7, 64, 65, 255, 256, 257, 520, 1100};
  static const int64_t lens[] = {3, 0, 65, 32};
  for (int64_t i = 0; i < N(dims); i++)
    for (int n = 0; n < 48; n++) {
      form f = {.dim = dims[i], .n_seqs = N(lens), .len = lens};
      f.dtype = (kf_dtype)(n % 3), f.rounding = n / 3 % 2 ? KF_ROUND_EACH : KF_ROUND_ONCE;
      f.gate = n / 6 % 2, f.dx_add = n / 12 % 2, f.index = f.scatter = n / 24;
      f.mod_fp32 = f.rounding == KF_ROUND_ONCE && n / 6 % 4 == 1, f.eps = n % 7 ? 0 : 1e-5f;
      if (dims[i] > 300 && n % 4) continue;
      problem *p = make(&f, (uint64_t)n);
      expect_model(p);
      drop(p);
    }
}

/* Sums that depend on the order of chunks even in double: one is lost between two large ones. */
static void test_order_of_chunks(void **state) {
  (void)state;
  static const int64_t len = 5 * KF_ADALN_CHUNK;
  static const float first[] = {1e20f, 3, -1e20f, 5, 0.5f};
  form f = {.dim = 6, .n_seqs = 1, .len = &len, .gate = true};
  for (int n = 0; n < 2; n++) {
    f.index = n;
    problem *p = make(&f, 1);
    for (int64_t t = 0; t < len; t++)
      for (int64_t c = 0; c < 6; c++)
        put(&p->t[DY], t, c, t % KF_ADALN_CHUNK ? 0 : first[t / KF_ADALN_CHUNK]);
    settle(p);
    expect_model(p);
    for (int64_t c = 0; c < 6; c++) assert_true(at(&p->t[DSHIFT], 0, c) == 5.5);
    drop(p);
  }
}

/* The same within a chunk, in fp32: tokens are added in order. */
static void test_order_of_tokens(void **state) {
  (void)state;
  static const int64_t len = 5;
  static const float dy[] = {1e9f, 3, -1e9f, 5, 0.5f};
  form f = {.dim = 6, .n_seqs = 1, .len = &len};
  problem *p = make(&f, 1);
  for (int64_t t = 0; t < len; t++)
    for (int64_t c = 0; c < 6; c++) put(&p->t[DY], t, c, dy[t]);
  settle(p);
  expect_model(p);
  for (int64_t c = 0; c < 6; c++) assert_true(at(&p->t[DSHIFT], 0, c) == 5.5);
  drop(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_order_of_chunks),
    cmocka_unit_test(test_order_of_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
