/* SPDX-License-Identifier: Apache-2.0 */
/*
** A step in which, on one rank, the k-th call of the backend or the k-th allocation fails, for
** every k: all ranks return an error, none waits for ever, nothing leaks (the clang build looks).
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "fail_alloc.h"
#include "ranks.h"
#include "train_job.h"

#include <assert.h>

enum { MOST_RANKS = 4 };
static const double LONG = 60;

/* ------------------------------------------------- a backend that fails on purpose */

/* Each rank is a thread, so each has its own. */
static _Thread_local struct {
  const kfi_comm_ops *real;
  long n_calls, fail_at;
  bool lose_alarms;
} fault;

static bool fails(void) { return ++fault.n_calls == fault.fail_at; }

static kf_status refuse(void) { return kfi_fail(KF_ECOMM, "call %ld was to fail", fault.n_calls); }

static kf_status gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all) {
  return fails() ? refuse() : fault.real->gather(comm, record, n_bytes, all);
}

static kf_status exchange(kf_comm *comm, const kfi_transfer *x) {
  return fails() ? refuse() : fault.real->exchange(comm, x);
}

static kf_status reduce(kf_comm *comm, kf_reduction reduction, kf_dtype type, int64_t n,
                        void *data) {
  return fails() ? refuse() : fault.real->reduce(comm, reduction, type, n, data);
}

static void sound_alarm(kf_comm *comm, const char *reason) {
  if (!fault.lose_alarms) fault.real->alarm(comm, reason);
}

static const kfi_comm_ops faulty = {gather, exchange, reduce, sound_alarm, NULL};

/* -------------------------------------------------------------------- trials */

typedef struct trial {
  int32_t rank; /* the one that fails */
  long k;
  bool allocation;  /* the k-th of it; else the k-th call of the backend */
  bool lose_alarms; /* and then the others are not told */
  double timeout_s;
  bool passed; /* there was no k-th: all went well */
  kf_status status[MOST_RANKS];
  char said[MOST_RANKS][512];
} trial;

static void take_step(kf_comm *comm, void *arg) {
  trial *t = arg;
  int32_t me = kf_comm_rank(comm);
  bool mine = me == t->rank;
  job j;
  assert(job_create(&j, comm));
  job_draw(&j, 5);
  EXPECT_OK(kf_comm_barrier(comm)); /* all are there, with the long timeout still */
  EXPECT_OK(kf_comm_set_timeout(comm, t->timeout_s));
  fault.real = comm->ops;
  fault.n_calls = 0;
  fault.fail_at = mine && !t->allocation ? t->k : 0;
  fault.lose_alarms = mine && t->lose_alarms;
  comm->ops = &faulty;
  fail_alloc(mine && t->allocation ? t->k : 0);
  kf_status status = job_step(&j);
  long n_allocations = fail_alloc(0);
  comm->ops = fault.real;
  if (mine) t->passed = (t->allocation ? n_allocations : fault.n_calls) < t->k;
  t->status[me] = status;
  snprintf(t->said[me], sizeof t->said[me], "%s", status ? kf_last_error() : "");
  if (!status && job_wrong(&j)) abort();
  job_free(&j);
}

/* Returns whether there was a k-th. */
static bool run_trial(trial *t, int32_t n_ranks) {
  ranks_run(n_ranks, LONG, take_step, t);
  for (int32_t r = 0; r < n_ranks; r++)
    if (t->passed != (t->status[r] == KF_OK))
      fail_msg("rank %d of %d fails at %ld: rank %d returned %d, \"%s\"", (int)t->rank,
               (int)n_ranks, t->k, (int)r, (int)t->status[r], t->said[r]);
  return !t->passed;
}

static void expect_said(const trial *t, int32_t n_ranks, const char *part) {
  for (int32_t r = 0; r < n_ranks; r++)
    if (!strstr(t->said[r], part))
      fail_msg("rank %d fails at %ld: rank %d says \"%s\", expected \"%s\"", (int)t->rank, t->k,
               (int)r, t->said[r], part);
}

static void test_failing_calls(void **state) {
  (void)state;
  for (int32_t n = 1; n <= MOST_RANKS; n++)
    for (int32_t r = 0; r < n; r++) {
      trial t = {.rank = r, .timeout_s = LONG};
      for (t.k = 1; run_trial(&t, n); t.k++) {
        expect_said(&t, n, "was to fail");
        char who[40];
        snprintf(who, sizeof who, "rank %d failed: call %ld", (int)r, t.k);
        for (int32_t q = 0; q < n; q++) assert_int_equal(q == r, !strstr(t.said[q], who));
      }
      assert_true(t.k > 9); /* create, gather, plan, 4 exchanges, reduce, barrier */
    }
}

/* Nobody is told: then the others find out by waiting. */
static void test_lost_alarms(void **state) {
  (void)state;
  trial t = {.rank = 1, .timeout_s = 0.15, .lose_alarms = true};
  for (t.k = 1; t.k <= 9; t.k++) {
    assert_true(run_trial(&t, 3));
    assert_int_equal(t.status[1], KF_ECOMM);
    assert_int_equal(t.status[0], KF_ETIMEOUT);
    assert_int_equal(t.status[2], KF_ETIMEOUT);
  }
}

static void test_failing_allocations(void **state) {
  (void)state;
  for (int32_t n = 1; n <= MOST_RANKS; n++)
    for (int32_t r = 0; r < n; r++) {
      trial t = {.rank = r, .timeout_s = LONG, .allocation = true};
      for (t.k = 1; run_trial(&t, n); t.k++) {
        expect_said(&t, n, "out of memory");
        assert_int_equal(t.status[r], KF_ENOMEM);
      }
      assert_true(t.k > 8); /* the step's 5, the planner's, the comm's 2 */
    }
}

/* --------------------------------------------------------- nothing is allocated */

/* Steps of other sizes in turn: once all have been there, nothing grows. */
static void count_allocations(kf_comm *comm, void *arg) {
  enum { SIZES = 3, STEPS = 5 * SIZES };
  job j;
  (void)arg;
  assert(job_create(&j, comm));
  for (int i = 0; i < STEPS; i++) {
    job_draw(&j, (uint64_t)(i % SIZES));
    fail_alloc(0);
    EXPECT_OK(job_step(&j));
    long n = fail_alloc(0);
    if (i >= SIZES && n > 0) {
      fprintf(stderr, "rank %d allocates %ld times in step %d\n", (int)kf_comm_rank(comm), n, i);
      abort();
    }
    assert(!job_wrong(&j));
  }
  job_free(&j);
}

static void test_no_allocations(void **state) {
  (void)state;
  for (int32_t n = 1; n <= 5; n++) ranks_run(n, LONG, count_allocations, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_failing_calls),
    cmocka_unit_test(test_lost_alarms),
    cmocka_unit_test(test_failing_allocations),
    cmocka_unit_test(test_no_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
