/* SPDX-License-Identifier: Apache-2.0 */
/*
** How near kf_adaln comes to the formulas in double (tools/adaln_reference.h, which also says what
** each error is measured by), and these formulas' gradients against finite differences.
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
#include "adaln_reference.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const int64_t lens[] = {5, 0, 70, 1, 33};

static void print_worst(const double *worst) {
  for (int i = 0; i < N_TENSORS; i++)
    if (worst[i] > 0) print_message("  %s %.2f", tensor_names[i], worst[i]);
  print_message("  of the bound\n");
}

/* --------------------------------------------------------------------- the reference */

/* What dy and dx_add are the gradients of. */
static double loss(const reference *r) {
  double sum = 0;
  naive_x(r, r->v[X]);
  naive_forward(r);
  for (int64_t i = 0; i < r->n_tokens * r->dim; i++)
    sum += r->v[DY][i] * r->v[Y][i] + r->v[DX_ADD][i] * r->v[X][i];
  return sum;
}

static void test_finite_differences(void **state) {
  (void)state;
  static const int64_t len[] = {3, 0, 2};
  static const int in[] = {RESIDUAL, U, GATE, SCALE, SHIFT};
  static const int out[] = {DX, DU, DGATE, DSCALE, DSHIFT};
  static const double step = 1e-5;
  form f = {.dim = 6, .n_seqs = 3, .len = len, .gate = true, .dx_add = true, .eps = 0.1f};
  problem *p = make(&f, 3);
  reference r = reference_of(p);
  loss(&r);
  naive_dx(&r);
  naive_sums(&r, (given){r.v[MEAN], r.v[RSTD], r.v[DX], NULL});
  for (int64_t k = 0; k < N(in); k++)
    for (int64_t i = 0; i < p->t[in[k]].n_rows * 6; i++) {
      double *at = &r.v[in[k]][i], kept = *at;
      *at = kept + step;
      double above = loss(&r);
      *at = kept - step;
      double slope = (above - loss(&r)) / (2 * step);
      *at = kept;
      if (fabs(slope - r.v[out[k]][i]) > 1e-8)
        fail_msg("%s %lld: %.10g, by differences %.10g", tensor_names[out[k]], (long long)i,
                 r.v[out[k]][i], slope);
    }
  reference_drop(&r);
  drop(p);
}

/* --------------------------------------------------------------------- fp32 */

static void test_fp32(void **state) {
  (void)state;
  static const int64_t dims[] = {1, 2, 3, 16, 63, 65, 100, 256, 500, 1152, 3072, 8200};
  double worst[N_TENSORS] = {0};
  for (int64_t i = 0; i < N(dims); i++)
    for (int n = 0; n < (dims[i] < 3000 ? 8 : 2); n++) {
      form f = {.dim = dims[i], .n_seqs = N(lens), .len = lens};
      f.rounding = n % 2 ? KF_ROUND_EACH : KF_ROUND_ONCE;
      f.gate = n / 2 % 2 || dims[i] >= 3000, f.dx_add = n / 4 % 2;
      problem *p = make(&f, (uint64_t)n);
      run(p, KF_ISA_BEST, 1);
      expect_close(p, worst);
      drop(p);
    }
  print_worst(worst);
}

/* Rows whose mean is 100 times their deviation: a one-pass variance would be lost here. */
static void test_far_from_zero(void **state) {
  (void)state;
  static const int64_t dims[] = {16, 100, 3072, 8192};
  double worst[N_TENSORS] = {0};
  for (int64_t i = 0; i < N(dims); i++)
    for (int n = 0; n < (dims[i] < 3000 ? 4 : 1); n++) {
      form f = {.dim = dims[i], .n_seqs = N(lens), .len = lens, .mean = n % 2 ? 100 : -100};
      f.rounding = n / 2 ? KF_ROUND_EACH : KF_ROUND_ONCE;
      problem *p = make(&f, 1);
      run(p, KF_ISA_BEST, 1);
      expect_close(p, worst);
      drop(p);
    }
  print_worst(worst);
}

static void scale_tensor(problem *p, int i, double by) {
  for (int64_t r = 0; r < p->t[i].n_rows; r++)
    for (int64_t c = 0; c < p->t[i].dim; c++) put(&p->t[i], r, c, by * at(&p->t[i], r, c));
}

/* Small deviations, where eps decides, to squares just below the largest float. */
static void test_sizes_and_eps(void **state) {
  (void)state;
  static const double sizes[] = {1e-30, 1e-15, 1e-4, 1e-3, 1e-2, 30, 1e6, 1e17};
  static const float epss[] = {0, 1e-12f, 1e-5f, 0.5f};
  double worst[N_TENSORS] = {0};
  for (int64_t i = 0; i < N(sizes); i++)
    for (int64_t e = 0; e < N(epss); e++) {
      form f = {.dim = 100, .n_seqs = N(lens), .len = lens, .eps = epss[e]};
      problem *p = make(&f, 1);
      scale_tensor(p, X, sizes[i]);
      scale_tensor(p, DY, sizes[N(sizes) - 1 - i] > 1e9 ? 1e9 : sizes[N(sizes) - 1 - i]);
      settle(p);
      run(p, KF_ISA_BEST, 1);
      expect_close(p, worst);
      drop(p);
    }
  print_worst(worst);
}

/*
** All columns the same: LN(x) is 0, and y is shift but for the rounding of the mean (in a row sum
** of dim/256 runs, some 12 + dim/256 roundings deep), which 1/sqrt(eps) makes larger.
*/
static void test_constant_rows(void **state) {
  (void)state;
  static const int64_t dims[] = {1, 3, 64, 100, 3072};
  static const double values[] = {0, 1, -0.1, 3e4, 1e30, 1e-40};
  for (int64_t i = 0; i < N(dims) * N(values); i++) {
    int64_t dim = dims[i % N(dims)];
    double v = (float)values[i / N(dims)];
    form f = {.dim = dim, .n_seqs = N(lens), .len = lens};
    problem *p = make(&f, 1);
    for (int64_t t = 0; t < p->n_tokens; t++)
      for (int64_t c = 0; c < dim; c++) put(&p->t[X], t, c, v);
    settle(p);
    run(p, KF_ISA_BEST, 1);
    for (int64_t t = 0; t < p->n_tokens; t++)
      for (int64_t c = 0; c < dim; c++) {
        double shift = at(&p->t[SHIFT], p->seq_index[t], c);
        double factor = 1 + at(&p->t[SCALE], p->seq_index[t], c);
        double room = (12 + dim / 256) * 0x1p-24 * fabs(v) * fabs(factor) / sqrt(1e-6);
        double error = fabs(at(&p->t[Y], t, c) - shift);
        if (!(error <= room + 1e-7 * fabs(shift)))
          fail_msg("dim %lld of %g: y - shift is %g", (long long)dim, v, error);
        if (dim == 1 || v == 0) assert_true(error == 0);
      }
    drop(p);
  }
}

/* --------------------------------------------------------------------- long sums */

/* 65,536 tokens of one sequence, whose dy is a row of the table, again and again. */
static double worst_sum(const double *dy, int n_dy) {
  static const int64_t len = 65536;
  form f = {.dim = 3, .n_seqs = 1, .len = &len, .gate = true};
  problem *p = make(&f, 1);
  for (int64_t t = 0; t < len; t++)
    for (int64_t c = 0; c < 3; c++) {
      put(&p->t[DY], t, c, dy[t % n_dy]);
      put(&p->t[RESIDUAL], t, c, c - 1); /* x the same everywhere, so that terms are too */
      put(&p->t[U], t, c, 0.3);
    }
  settle(p);
  run(p, KF_ISA_BEST, 2);
  reference r = naive(p);
  double worst = 0;
  for (int i = DSCALE; i <= DGATE; i++) worst = fmax(worst, worst_of(p, &r, i));
  reference_drop(&r);
  drop(p);
  return worst;
}

/* Of all floats, 0x1.e1e22p+0 added to itself 32 times is the least exact: 5.1e-7 of the sum. */
static void test_long_sums(void **state) {
  (void)state;
  static const double same[] = {0x1.e1e22p+0}, tenth[] = {0.1}, mixed[] = {1, 1e-3, -0.7, 3e-5, 9};
  double worst = fmax(worst_sum(same, 1), fmax(worst_sum(tenth, 1), worst_sum(mixed, 5)));
  print_message("  sums of 65,536 tokens %.2f of the bound\n", worst);
  assert_true(worst <= 1);
}

/*
** The worst there is: the first of a chunk's 32 terms is so large that each of the others is half a
** unit in its last place, and lost. 31 * 2^-24 is 1.85e-6, and nothing can be worse.
*/
static void test_lost_terms(void **state) {
  (void)state;
  double dy[KF_ADALN_CHUNK] = {1};
  for (int i = 1; i < KF_ADALN_CHUNK; i++) dy[i] = 0x1p-24;
  double worst = worst_sum(dy, KF_ADALN_CHUNK);
  print_message("  lost terms %.2f of the bound\n", worst);
  assert_true(worst <= 1.9);
}

/* --------------------------------------------------------------------- 16 bits */

static void test_rounded_once(void **state) {
  (void)state;
  static const int64_t dims[] = {1, 5, 64, 100, 1152};
  for (int64_t i = 0; i < N(dims); i++)
    for (int n = 0; n < 16; n++) {
      form f = {.dim = dims[i], .n_seqs = N(lens), .len = lens};
      f.dtype = n % 2 ? KF_F16 : KF_BF16;
      f.gate = n / 2 % 2, f.dx_add = n / 4 % 2, f.mod_fp32 = n / 8;
      problem *p = make(&f, (uint64_t)n);
      run(p, KF_ISA_BEST, 1);
      expect_close(p, NULL);
      drop(p);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_finite_differences), cmocka_unit_test(test_fp32),
    cmocka_unit_test(test_far_from_zero),      cmocka_unit_test(test_sizes_and_eps),
    cmocka_unit_test(test_constant_rows),      cmocka_unit_test(test_long_sums),
    cmocka_unit_test(test_lost_terms),         cmocka_unit_test(test_rounded_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
