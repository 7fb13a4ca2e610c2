/* SPDX-License-Identifier: Apache-2.0 */
/* The cost that is measured, and the clock it is measured with. Nothing is said of how fast. */
#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cblas.h>
#include <cmocka.h>

#include "fail_alloc.h"
#include "ranks.h"
#include "train/train.h"

enum { TIMEOUT_S = 60 };

/* ------------------------------------------------------------------------ the clock */

static double spin(double x, int n) {
  for (int i = 0; i < n; i++) x = sqrt(x + i);
  return x;
}

/* Every second belongs to the phase that is named after it; sleeping is not being busy. */
static void test_clock(void **state) {
  (void)state;
  train_clock c;
  volatile double sink = 1;
  train_clock_start(&c);
  assert_true(train_clock_busy(&c) == 0 && train_clock_wall(&c) == 0);
  for (int i = 0; i < 3; i++) {
    sink = spin(sink, 300000);
    train_clock_lap(&c, TRAIN_PHASE_COMPUTE);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    train_clock_lap(&c, TRAIN_PHASE_MOVE);
    sink = spin(sink, 300000);
    train_clock_lap(&c, TRAIN_PHASE_WAIT);
  }
  double wall = 0, cpu = 0;
  for (int i = 0; i < TRAIN_N_PHASES; i++) wall += c.wall_s[i], cpu += c.cpu_s[i];
  assert_true(c.wall_s[TRAIN_PHASE_PLAN] == 0 && c.cpu_s[TRAIN_PHASE_PLAN] == 0);
  assert_true(c.cpu_s[TRAIN_PHASE_COMPUTE] > 0 && c.cpu_s[TRAIN_PHASE_WAIT] > 0);
  assert_true(c.wall_s[TRAIN_PHASE_MOVE] >= 0.015);
  assert_true(c.cpu_s[TRAIN_PHASE_MOVE] < 0.5 * c.wall_s[TRAIN_PHASE_MOVE]);
  assert_true(fabs(train_clock_wall(&c) - wall) < 1e-6);
  assert_true(fabs(train_clock_busy(&c) - (cpu - c.cpu_s[TRAIN_PHASE_WAIT])) < 1e-9);
  train_clock_start(&c); /* begins anew */
  assert_true(train_clock_busy(&c) == 0 && c.wall_s[TRAIN_PHASE_MOVE] == 0);
}

/* ------------------------------------------------------------------------- the cost */

typedef struct trial {
  kf_model model;
  bool links;
  kf_cost cost[2];
} trial;

/* What is known of a cluster before. */
static const kf_cluster known = {.n_ranks = 2,
                                 .ranks_per_node = 2,
                                 .flops = 5,
                                 .passes = 3,
                                 .elem_bytes = 4,
                                 .intra_Bps = 11,
                                 .inter_Bps = 12,
                                 .latency_s = 13};

static void run_trial(kf_comm *comm, void *arg) {
  trial *t = arg;
  kf_cost *cost = &t->cost[kf_comm_rank(comm)];
  memset(cost, 0, sizeof *cost);
  cost->cluster = known;
  cost->layers = t->model.layers, cost->heads = t->model.heads;
  cost->ulysses_bytes = 77;
  EXPECT_OK(train_measure(comm, &t->model, KF_ISA_BEST, t->links, cost));
}

static trial measure(int32_t n_ranks, kf_model model, bool links) {
  trial t = {.model = model, .links = links};
  ranks_run(n_ranks, TIMEOUT_S, run_trial, &t);
  return t;
}

static void assert_positive(double x) { assert_true(x > 0 && x < 1e3); }

static void check_coefficients(const kf_cost *c, const kf_model *model) {
  assert_positive(c->linear_s);
  assert_positive(c->quadratic_s);
  assert_positive(c->constant_s);
  assert_true(TRAIN_ROUTE_BYTES == 88 + 64); /* a row, and what is predicted of it */
  assert_true(c->ulysses_bytes == 77);       /* what is not measured is left alone */
  assert_int_equal(c->layers, model->layers);
  assert_int_equal(c->heads, model->heads);
}

/* Links are measured where that is asked for and there are any: for the narrow model. */
static void test_cost(void **state) {
  (void)state;
  static const kf_model narrow = {32, 2, 2}, wide = {128, 2, 2}, deep = {32, 10, 2};
  trial n = measure(2, narrow, true), w = measure(2, wide, false), d = measure(1, deep, true);
  check_coefficients(&n.cost[0], &narrow);
  check_coefficients(&w.cost[0], &wide);
  check_coefficients(&d.cost[0], &deep);
  for (int64_t len = 100; len <= 1000; len += 900) { /* measured: 5 times, and as deep */
    assert_true(kf_cost_work(&n.cost[0], len) < 0.7 * kf_cost_work(&w.cost[0], len));
    assert_true(kf_cost_work(&n.cost[0], len) < 0.5 * kf_cost_work(&d.cost[0], len));
  }
  assert_memory_equal(&n.cost[0], &n.cost[1],
                      sizeof n.cost[0]); /* to the bit: plans depend on it */
  assert_memory_equal(&w.cost[0], &w.cost[1], sizeof w.cost[0]);
  const kf_cluster *c = &n.cost[0].cluster;
  assert_true(c->intra_Bps > 1e6 && c->intra_Bps < 1e15 && c->inter_Bps == c->intra_Bps);
  assert_true(c->latency_s > 0 && c->latency_s < 1);
  assert_true(c->n_ranks == 2 && c->ranks_per_node == 2 && c->flops == 5 && c->passes == 3);
  assert_memory_equal(&w.cost[0].cluster, &known, sizeof known);
  assert_memory_equal(&d.cost[0].cluster, &known, sizeof known);
}

/* --------------------------------------------------------------------- what goes wrong */

static void run_refusals(kf_comm *comm, void *arg) {
  (void)arg;
  kf_cost cost = {.linear_s = 5};
  EXPECT(train_measure(comm, &(kf_model){32, 1, 3}, KF_ISA_BEST, true, &cost), KF_EINVAL,
         "width 32 with 3 heads");
  EXPECT(train_measure(comm, &(kf_model){32, 1, 2}, (kf_isa)9, true, &cost), KF_EINVAL, "isa");
  assert(cost.linear_s == 5);       /* written only on success */
  EXPECT_OK(kf_comm_barrier(comm)); /* all ranks have found the same: nothing is broken */
}

static void test_refusals(void **state) {
  (void)state;
  ranks_run(2, TIMEOUT_S, run_refusals, NULL);
}

/* The last rank's k-th allocation fails. */
typedef struct failure {
  long k, n_allocations;
  bool failed[2];
} failure;

static void run_failure(kf_comm *comm, void *arg) {
  failure *f = arg;
  int32_t me = kf_comm_rank(comm);
  bool victim = me == kf_comm_size(comm) - 1;
  kf_cost cost = {.linear_s = 5};
  if (victim) fail_alloc(f->k);
  kf_status status = train_measure(comm, &(kf_model){32, 1, 2}, KF_ISA_BEST, true, &cost);
  if (victim) f->n_allocations = fail_alloc(0);
  f->failed[me] = status != KF_OK;
  assert((cost.linear_s == 5) == f->failed[me]);
  if (status && victim) {
    EXPECT(status, KF_ENOMEM, "out of memory");
    kf_comm_fail(comm, kf_last_error());
  } else if (status) {
    EXPECT(status, KF_ECOMM, "rank 1 failed: out of memory");
  }
}

static bool fails(int32_t n_ranks, long k, long *n_allocations) {
  failure f = {.k = k};
  ranks_run(n_ranks, TIMEOUT_S, run_failure, &f);
  bool failed = f.n_allocations >= k;
  for (int32_t r = 0; r < n_ranks; r++) assert_int_equal(f.failed[r], failed);
  *n_allocations = f.n_allocations;
  return failed;
}

/* A rank that cannot measure says so, and no one waits for it: at the first allocation, or at that
** of the megabyte that ranks send, which a rank alone does not need. */
static void test_memory(void **state) {
  (void)state;
  long k = 1, n = 0;
  while (fails(1, k, &n)) k++;
  assert_true(n >= 8);
  assert_true(fails(2, 1, &k));
  assert_true(fails(2, n + 1, &k));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_clock),
    cmocka_unit_test(test_cost),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_memory),
  };
  openblas_set_num_threads(1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
