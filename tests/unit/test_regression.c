/* SPDX-License-Identifier: Apache-2.0 */
/*
** Least squares with rank effects against its slow twin: all rows are kept, the whole system of
** n + n_ranks unknowns is built from them each time, and solved by Gauss with pivots.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "learn/regression.h"

enum { P = KFI_PARAMS, RANKS = 7, ROWS = 400, UNKNOWNS = P + RANKS };

/* -------------------------------------------------------------------- the twin */

typedef struct row {
  int32_t rank;
  double weight, rank_weight; /* forgotten by the rank's own level */
  double x[P], a, z;
} row;

typedef struct twin {
  int n, n_rows;
  int32_t n_ranks;
  row rows[ROWS];
} twin;

/* m (n, n) x = g, by elimination with pivots. */
static void gauss(int n, double m[UNKNOWNS][UNKNOWNS], double *g, double *x) {
  for (int i = 0; i < n; i++) {
    int best = i;
    for (int k = i + 1; k < n; k++)
      if (fabs(m[k][i]) > fabs(m[best][i])) best = k;
    for (int k = 0; k < n; k++) {
      double t = m[i][k];
      m[i][k] = m[best][k];
      m[best][k] = t;
    }
    double t = g[i];
    g[i] = g[best];
    g[best] = t;
    for (int k = i + 1; k < n; k++) {
      double f = m[k][i] / m[i][i];
      for (int c = i; c < n; c++) m[k][c] -= f * m[i][c];
      g[k] -= f * g[i];
    }
  }
  for (int i = n - 1; i >= 0; i--) {
    x[i] = g[i];
    for (int k = i + 1; k < n; k++) x[i] -= m[i][k] * x[k];
    x[i] /= m[i][i];
  }
}

/* The normal equations of all rows and beliefs. */
static void build(const twin *t, const kfi_belief *b, double m[UNKNOWNS][UNKNOWNS], double *g) {
  int n = t->n;
  memset(m, 0, sizeof(double[UNKNOWNS][UNKNOWNS]));
  memset(g, 0, UNKNOWNS * sizeof *g);
  for (int k = 0; k < t->n_rows; k++) {
    const row *r = &t->rows[k];
    int u = n + r->rank;
    for (int i = 0; i < n; i++) {
      for (int j = 0; j < n; j++) m[i][j] += r->weight * r->x[i] * r->x[j];
      m[i][u] += r->weight * r->rank_weight * r->x[i] * r->a;
      m[u][i] += r->weight * r->rank_weight * r->x[i] * r->a;
      g[i] += r->weight * r->x[i] * r->z;
    }
    m[u][u] += r->weight * r->rank_weight * r->a * r->a;
    g[u] += r->weight * r->rank_weight * r->a * r->z;
  }
  for (int i = 0; i < n; i++) {
    m[i][i] += b->precision[i];
    g[i] += b->precision[i] * b->mean[i];
  }
  for (int32_t r = 0; r < t->n_ranks; r++) {
    m[n + r][n + r] += b->rank_precision[r];
    g[n + r] += b->rank_precision[r] * b->rank_mean[r];
  }
}

/* Solve with some parameters held; `variance` of the free ones by inverting, column by column. */
static void solve_free(const twin *t, const kfi_belief *b, const bool *held, double *x,
                       double *variance) {
  static double m[UNKNOWNS][UNKNOWNS], part[UNKNOWNS][UNKNOWNS];
  double g[UNKNOWNS], rest[UNKNOWNS], solved[UNKNOWNS];
  int free_one[UNKNOWNS], n_free = 0, all = t->n + t->n_ranks;
  build(t, b, m, g);
  for (int i = 0; i < all; i++)
    if (i >= t->n || !held[i]) free_one[n_free++] = i;
  for (int column = -1; column < n_free; column++) {
    for (int i = 0; i < n_free; i++) {
      rest[i] = column < 0 ? g[free_one[i]] : i == column;
      for (int k = 0; k < t->n && column < 0; k++)
        if (held[k]) rest[i] -= m[free_one[i]][k] * x[k];
      for (int k = 0; k < n_free; k++) part[i][k] = m[free_one[i]][free_one[k]];
    }
    gauss(n_free, part, rest, solved);
    if (column >= 0 && free_one[column] < t->n) variance[free_one[column]] = solved[column];
    for (int i = 0; i < n_free && column < 0; i++) x[free_one[i]] = solved[i];
  }
}

/* Variances are those without limits; only what has nowhere to go has none. */
static void twin_solve(const twin *t, const kfi_belief *b, double *x, double *variance) {
  bool held[P] = {false}, again = true;
  double unused[P];
  for (int i = 0; i < t->n; i++) {
    variance[i] = 0;
    if (b->low[i] == b->high[i]) held[i] = true, x[i] = b->low[i];
  }
  solve_free(t, b, held, x, variance);
  while (again) {
    again = false;
    solve_free(t, b, held, x, unused);
    for (int i = 0; i < t->n; i++) {
      if (held[i] || (x[i] >= b->low[i] && x[i] <= b->high[i])) continue;
      x[i] = x[i] < b->low[i] ? b->low[i] : b->high[i];
      held[i] = again = true;
    }
  }
}

static void twin_shift(twin *t, const double *delta, const double *u) {
  for (int k = 0; k < t->n_rows; k++) {
    row *r = &t->rows[k];
    for (int i = 0; i < t->n; i++) r->z -= r->x[i] * delta[i];
    r->z -= r->a * u[r->rank];
  }
}

/* -------------------------------------------------------------------- problems */

typedef struct problem {
  kfi_regression regression;
  kfi_buffer memory;
  twin twin;
  kfi_belief belief;
  double rank_mean[RANKS], rank_precision[RANKS];
} problem;

static problem *problem_create(dice *d, int n, int32_t n_ranks) {
  problem *p = calloc(1, sizeof *p);
  kfi_layout lay = {0};
  assert_non_null(p);
  p->regression.n = p->twin.n = n;
  p->regression.n_ranks = p->twin.n_ranks = n_ranks;
  kfi_regression_lay(&p->regression, &lay);
  lay.base = kfi_buffer_reserve(&p->memory, lay.n_bytes);
  assert_non_null(lay.base);
  memset(lay.base, 0, p->memory.n_bytes);
  lay.n_bytes = 0;
  kfi_regression_lay(&p->regression, &lay);
  for (int i = 0; i < n; i++) {
    p->belief.mean[i] = dice_real(d, -1, 1);
    p->belief.precision[i] = dice_one_in(d, 3) ? 1e-3 : dice_real(d, 0.01, 5);
    p->belief.low[i] = -1e9;
    p->belief.high[i] = 1e9;
  }
  for (int32_t r = 0; r < n_ranks; r++) {
    p->rank_mean[r] = dice_real(d, -0.5, 0.5);
    p->rank_precision[r] = dice_real(d, 0.1, 20);
  }
  p->belief.rank_mean = p->rank_mean;
  p->belief.rank_precision = p->rank_precision;
  return p;
}

static void problem_free(problem *p) {
  kfi_buffer_free(&p->memory);
  free(p);
}

/* Rows of ranks below `ranks`; now and then with a weight of 0. */
static void add_rows(dice *d, problem *p, int n_rows, int32_t ranks) {
  for (int k = 0; k < n_rows; k++) {
    row *r = &p->twin.rows[p->twin.n_rows++];
    *r = (row){.rank = (int32_t)dice_int(d, ranks), .rank_weight = 1};
    r->weight = dice_one_in(d, 10) ? 0 : dice_real(d, 0.1, 1);
    r->a = dice_real(d, 0.2, 1);
    r->z = dice_real(d, -2, 2);
    for (int i = 0; i < p->twin.n; i++) r->x[i] = dice_one_in(d, 4) ? 0 : dice_real(d, -0.5, 1);
    kfi_regression_add(&p->regression, r->rank, r->weight, r->x, r->a, r->z);
  }
}

static void near(const char *what, int i, double got, double want) {
  if (!(fabs(got - want) <= 1e-8 * fmax(1, fabs(want))))
    fail_msg("%s %d is %.17g, expected %.17g", what, i, got, want);
}

/* Both solve; leaves the fast one's result where it is wanted. */
static void compare(problem *p, double *delta, double *u) {
  double own_delta[P], own_u[RANKS], variance[P], x[UNKNOWNS], twin_variance[P];
  if (!delta) delta = own_delta;
  if (!u) u = own_u;
  kfi_regression_solve(&p->regression, &p->belief, delta, variance, u);
  twin_solve(&p->twin, &p->belief, x, twin_variance);
  for (int i = 0; i < p->twin.n; i++) {
    near("parameter", i, delta[i], x[i]);
    near("variance", i, variance[i], twin_variance[i]);
    assert_true(delta[i] >= p->belief.low[i] && delta[i] <= p->belief.high[i]);
  }
  for (int32_t r = 0; r < p->twin.n_ranks; r++) near("rank", r, u[r], x[p->twin.n + r]);
}

/* ----------------------------------------------------------------------- tests */

static void test_solve(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    dice d = {seed};
    int n = 1 + (int)dice_int(&d, seed < 50 ? 9 : P);
    int32_t n_ranks = 1 + (int32_t)dice_int(&d, RANKS);
    problem *p = problem_create(&d, n, n_ranks);
    add_rows(&d, p, (int)dice_int(&d, 80), n_ranks);
    compare(p, NULL, NULL);
    problem_free(p);
  }
}

static void test_one_rank(void **state) {
  (void)state;
  dice d = {5};
  problem *p = problem_create(&d, 4, 1);
  p->rank_precision[0] = 1e12; /* one rank has nobody to be slower than */
  add_rows(&d, p, 30, 1);
  double u;
  compare(p, NULL, &u);
  near("rank", 0, u, p->rank_mean[0]);
  problem_free(p);
}

/* Without rows, everything is as believed; ranks without rows are, whatever the others say. */
static void test_no_rows(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 10; seed++) {
    dice d = {seed + 100};
    double delta[P], u[RANKS];
    problem *p = problem_create(&d, 6, RANKS);
    compare(p, delta, u);
    for (int i = 0; i < 6; i++) near("parameter", i, delta[i], p->belief.mean[i]);
    for (int32_t r = 0; r < RANKS; r++) near("rank", r, u[r], p->rank_mean[r]);
    add_rows(&d, p, 40, 3);
    compare(p, delta, u);
    for (int32_t r = 3; r < RANKS; r++) near("rank", r, u[r], p->rank_mean[r]);
    problem_free(p);
  }
}

/* Whoever would leave its limits stands on them, and the others make the best of it. */
static void test_limits(void **state) {
  (void)state;
  int n_held = 0;
  for (uint64_t seed = 0; seed < 100; seed++) {
    dice d = {seed + 200};
    int n = 2 + (int)dice_int(&d, 7);
    double delta[P];
    problem *p = problem_create(&d, n, 3);
    add_rows(&d, p, 5 + (int)dice_int(&d, 60), 3);
    for (int i = 0; i < n; i++) {
      p->belief.low[i] = dice_real(&d, -0.5, 0);
      p->belief.high[i] = dice_one_in(&d, 5) ? p->belief.low[i] : dice_real(&d, 0, 0.5);
    }
    compare(p, delta, NULL);
    for (int i = 0; i < n; i++)
      n_held += delta[i] == p->belief.low[i] || delta[i] == p->belief.high[i];
    problem_free(p);
  }
  assert_true(n_held > 100);
}

/* A limit far away changes nothing; all held leaves the ranks alone to be solved. */
static void test_all_held(void **state) {
  (void)state;
  dice d = {7};
  double delta[P], u[RANKS];
  problem *p = problem_create(&d, 5, 2);
  add_rows(&d, p, 30, 2);
  for (int i = 0; i < 5; i++) p->belief.low[i] = p->belief.high[i] = 0.1 * i;
  compare(p, delta, u);
  for (int i = 0; i < 5; i++) assert_true(delta[i] == 0.1 * i);
  problem_free(p);
}

/* Two parameters that no row can tell apart share what they are believed to, and nothing explodes:
** precisions far below a row's are where the factorisation loses its digits. */
static void test_no_information(void **state) {
  (void)state;
  dice d = {8};
  double delta[P], variance[P], u[RANKS];
  problem *p = problem_create(&d, 2, 2);
  for (int i = 0; i < 2; i++) {
    p->belief.mean[i] = p->rank_mean[i] = 0;
    p->belief.precision[i] = 1e-14;
  }
  for (int k = 0; k < 50; k++) {
    double x[P] = {0.5, 0.5};
    kfi_regression_add(&p->regression, k % 2, 1, x, 1, 1);
  }
  kfi_regression_solve(&p->regression, &p->belief, delta, variance, u);
  for (int i = 0; i < 2; i++) assert_true(isfinite(delta[i]) && variance[i] >= 0);
  near("sum", 0, 0.5 * (delta[0] + delta[1]) + u[0], 1);
  problem_free(p);
}

static void test_forget(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 20; seed++) {
    dice d = {seed + 300};
    problem *p = problem_create(&d, 5, 4);
    for (int turn = 0; turn < 6; turn++) {
      double keep = dice_one_in(&d, 6) ? 0 : dice_real(&d, 0.2, 1);
      add_rows(&d, p, 20, 4);
      kfi_regression_forget(&p->regression, keep);
      for (int k = 0; k < p->twin.n_rows; k++) p->twin.rows[k].weight *= keep;
      compare(p, NULL, NULL);
    }
    problem_free(p);
  }
}

/* A rank whose level is forgotten is as believed, with what its rows say of the others kept. */
static void test_forget_rank(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 20; seed++) {
    dice d = {seed + 400};
    double keep = seed % 4 ? dice_real(&d, 0.05, 0.9) : 0, u[RANKS];
    int32_t rank = (int32_t)dice_int(&d, 4);
    problem *p = problem_create(&d, 3, 4);
    add_rows(&d, p, 60, 4);
    kfi_regression_forget_rank(&p->regression, rank, keep);
    for (int k = 0; k < p->twin.n_rows; k++)
      if (p->twin.rows[k].rank == rank) p->twin.rows[k].rank_weight = keep;
    compare(p, NULL, u);
    if (keep == 0) near("rank", rank, u[rank], p->rank_mean[rank]);
    problem_free(p);
  }
}

/* After a shift by anything, the solution is the rest; after one by the solution, nothing is left.
** Beliefs move along. */
static void test_shift(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 40; seed++) {
    dice d = {seed + 500};
    double before[P], before_u[RANKS], after[P], after_u[RANKS], by[P], by_u[RANKS];
    bool whole = seed % 2;
    problem *p = problem_create(&d, 6, 4);
    add_rows(&d, p, 100, 4);
    if (seed % 3 == 0) kfi_regression_forget(&p->regression, 0.5);
    for (int k = 0; seed % 3 == 0 && k < p->twin.n_rows; k++) p->twin.rows[k].weight *= 0.5;
    compare(p, before, before_u);
    for (int i = 0; i < 6; i++) {
      by[i] = whole ? before[i] : dice_real(&d, -1, 1);
      p->belief.mean[i] -= by[i];
    }
    for (int32_t r = 0; r < 4; r++) {
      by_u[r] = whole ? before_u[r] : dice_real(&d, -1, 1);
      p->rank_mean[r] -= by_u[r];
    }
    kfi_regression_shift(&p->regression, by, by_u);
    twin_shift(&p->twin, by, by_u);
    compare(p, after, after_u);
    for (int i = 0; i < 6; i++) near("rest", i, after[i], before[i] - by[i]);
    for (int32_t r = 0; r < 4; r++) near("rest of rank", r, after_u[r], before_u[r] - by_u[r]);
    problem_free(p);
  }
}

/* Parameters may come later: rows before have nothing of them. */
static void test_more_parameters(void **state) {
  (void)state;
  dice d = {9};
  problem *p = problem_create(&d, 8, 3);
  p->regression.n = p->twin.n = 5;
  add_rows(&d, p, 40, 3);
  kfi_regression_forget(&p->regression, 0.9);
  for (int k = 0; k < p->twin.n_rows; k++) p->twin.rows[k].weight *= 0.9;
  p->regression.n = p->twin.n = 8;
  add_rows(&d, p, 40, 3);
  compare(p, NULL, NULL);
  problem_free(p);
}

/* Row by row, the squared errors by an explanation less those by none. */
static void test_squares(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    dice d = {seed};
    problem *p = problem_create(&d, 6, 4);
    double delta[KFI_PARAMS], u[4], want = 0;
    add_rows(&d, p, 50, 4);
    for (int i = 0; i < 6; i++) delta[i] = dice_real(&d, -1, 1);
    for (int r = 0; r < 4; r++) u[r] = dice_real(&d, -1, 1);
    for (int k = 0; k < p->twin.n_rows; k++) {
      double e = p->twin.rows[k].z - p->twin.rows[k].a * u[p->twin.rows[k].rank];
      for (int i = 0; i < 6; i++) e -= p->twin.rows[k].x[i] * delta[i];
      want += p->twin.rows[k].weight * (e * e - p->twin.rows[k].z * p->twin.rows[k].z);
    }
    near("squares", (int)seed, kfi_regression_squares(&p->regression, delta, u), want);
    problem_free(p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_solve),    cmocka_unit_test(test_one_rank),
    cmocka_unit_test(test_no_rows),  cmocka_unit_test(test_limits),
    cmocka_unit_test(test_all_held), cmocka_unit_test(test_no_information),
    cmocka_unit_test(test_forget),   cmocka_unit_test(test_forget_rank),
    cmocka_unit_test(test_shift),    cmocka_unit_test(test_more_parameters),
    cmocka_unit_test(test_squares),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
