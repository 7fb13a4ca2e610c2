/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "collectives.h"
#include "sleep.h"

/* Long enough that only a rank that never comes runs into it, short enough to wait for. */
static const double SHORT = 0.3, LONG = 60;

/* --------------------------------------------------------------- collectives */

static void all_collectives(kf_comm *comm, void *count) {
  check_gather(comm);
  check_barrier(comm, count);
  check_alltoallv(comm);
  check_reduce(comm);
  check_reduce_specials(comm);
}

static void test_collectives(void **state) {
  (void)state;
  for (int32_t n = 1; n <= 9; n++) {
    _Atomic int count = 0;
    ranks_run(n, LONG, all_collectives, &count);
  }
}

static void some_exchanges(kf_comm *comm, void *arg) {
  (void)arg;
  check_exchanges(comm, 0, 2);
}

static void test_exchanges(void **state) {
  (void)state;
  ranks_run(2, LONG, some_exchanges, NULL);
}

/* Sums are taken in the order of ranks: that, and not only agreement, makes a run repeatable. */
static void sum_in_order(kf_comm *comm, void *arg) {
  float x = (float)element(kf_comm_rank(comm), 5), want = (float)element(0, 5);
  (void)arg;
  for (int32_t r = 1; r < kf_comm_size(comm); r++) want += (float)element(r, 5);
  EXPECT_OK(kf_comm_reduce(comm, KF_SUM, KF_F32, 1, &x));
  assert(memcmp(&x, &want, sizeof x) == 0);
}

static void sum_wraps(kf_comm *comm, void *arg) {
  int64_t x = INT64_MAX;
  (void)arg;
  EXPECT_OK(kf_comm_reduce(comm, KF_SUM, KF_I64, 1, &x));
  assert(x == (int64_t)((uint64_t)INT64_MAX * (uint64_t)kf_comm_size(comm)));
}

static void test_sums(void **state) {
  (void)state;
  for (int32_t n = 1; n <= 9; n++) {
    ranks_run(n, LONG, sum_in_order, NULL);
    ranks_run(n, LONG, sum_wraps, NULL);
  }
}

/* ------------------------------------------------------------ different calls */

/* A broken comm says the same sentence for ever, whatever it is asked. */
static void expect_broken(kf_comm *comm, kf_status status, const char *part) {
  char sentence[512], record = 0, all[RANKS_MOST];
  int64_t none[RANKS_MOST] = {0};
  kf_step *step = NULL;
  EXPECT(kf_comm_barrier(comm), status, part);
  snprintf(sentence, sizeof sentence, "%s", kf_last_error());
  EXPECT(kf_comm_gather(comm, &record, 1, all), status, sentence);
  EXPECT(kf_comm_gather(comm, NULL, -1, NULL), status, sentence);
  EXPECT(kf_comm_alltoallv(comm, NULL, none, NULL, none), status, sentence);
  EXPECT(kf_comm_reduce(comm, KF_SUM, KF_F32, 0, NULL), status, sentence);
  EXPECT(kf_step_create(comm, 0, &step), status, sentence);
  EXPECT(kf_route_forward(comm, NULL, 0, NULL, NULL), status, sentence);
  EXPECT(kf_ulysses_back(comm, NULL, 0, NULL, NULL), status, sentence);
  EXPECT(kf_comm_fail(comm, "another reason"), status, sentence);
  EXPECT(kf_comm_barrier(comm), status, sentence);
  assert(strcmp(kf_last_error(), sentence) == 0 && step == NULL);
}

static void barrier_or_reduce(kf_comm *comm, void *arg) {
  double x = 1;
  const char *sentence = "rank 1 calls reduce, but rank 0 calls barrier";
  (void)arg;
  if (kf_comm_rank(comm) == 0)
    EXPECT(kf_comm_barrier(comm), KF_EMISMATCH, sentence);
  else
    EXPECT(kf_comm_reduce(comm, KF_SUM, KF_F64, 1, &x), KF_EMISMATCH, sentence);
  assert(x == 1); /* nothing was reduced */
  expect_broken(comm, KF_EMISMATCH, sentence);
}

/* Only the last rank differs, so that several find it. */
static void other_size(kf_comm *comm, void *arg) {
  bool last = kf_comm_rank(comm) == kf_comm_size(comm) - 1;
  char record[8] = "", all[8 * RANKS_MOST], sentence[80];
  (void)arg;
  snprintf(sentence, sizeof sentence, "gather: rank %d has 8 bytes, but rank 0 has 4",
           (int)kf_comm_size(comm) - 1);
  EXPECT(kf_comm_gather(comm, record, last ? 8 : 4, all), KF_EMISMATCH, sentence);
  expect_broken(comm, KF_EMISMATCH, sentence);
}

static void other_reduction(kf_comm *comm, void *arg) {
  float x[2] = {1, 1};
  (void)arg;
  EXPECT(kf_comm_reduce(comm, kf_comm_rank(comm) == 1 ? KF_MAX : KF_SUM, KF_F32, 2, x),
         KF_EMISMATCH, "reduce: rank 1 wants the maximum of 2 f32, but rank 0 the sum of 2 f32");
  assert(x[0] == 1 && x[1] == 1);
}

/* Rank 0 sends what rank 1 does not expect: no rank may return KF_OK. */
static void other_counts(kf_comm *comm, void *arg) {
  const int64_t *bytes = arg; /* that rank 0 sends to rank 1, and that rank 1 expects */
  int64_t to[RANKS_MOST] = {0}, from[RANKS_MOST] = {0};
  char send[64] = "", recv[64];
  int32_t me = kf_comm_rank(comm);
  if (me == 0) to[1] = bytes[0];
  if (me == 1) from[0] = bytes[1];
  kf_status status = kf_comm_alltoallv(comm, send, to, recv, from);
  EXPECT(status, me == 1 ? KF_EMISMATCH : KF_ECOMM, "alltoallv: rank 0 sends");
  EXPECT(kf_comm_barrier(comm), status, "where rank 1 expects");
}

static void test_mismatch(void **state) {
  (void)state;
  for (int32_t n = 2; n <= 5; n++) {
    for (int i = 0; i < 20; i++) { /* whoever comes first */
      ranks_run(n, LONG, barrier_or_reduce, NULL);
      ranks_run(n, LONG, other_size, NULL);
      ranks_run(n, LONG, other_reduction, NULL);
    }
    ranks_run(n, LONG, other_counts, (int64_t[]){5, 6});
    ranks_run(n, LONG, other_counts, (int64_t[]){6, 5});
    ranks_run(n, LONG, other_counts, (int64_t[]){5, 0});
    ranks_run(n, LONG, other_counts, (int64_t[]){0, 5});
  }
}

/* -------------------------------------------------------------- silent ranks */

typedef struct silence {
  bool silent[RANKS_MOST];
  const char *names;
  _Atomic int n_gone; /* ranks that have given up */
  int n_live;
} silence;

/* The silent ranks come when the others have given up; they are told the same. */
static void come_late(kf_comm *comm, void *arg) {
  silence *s = arg;
  char sentence[120];
  snprintf(sentence, sizeof sentence, "barrier: %s silent for %g s", s->names, SHORT);
  EXPECT_OK(kf_comm_barrier(comm)); /* all threads run */
  EXPECT_OK(kf_comm_set_timeout(comm, SHORT));
  if (s->silent[kf_comm_rank(comm)])
    while (s->n_gone < s->n_live) sleep_s(0.01);
  EXPECT(kf_comm_barrier(comm), KF_ETIMEOUT, sentence);
  s->n_gone++;
  expect_broken(comm, KF_ETIMEOUT, sentence);
}

static void test_silent_rank(void **state) {
  (void)state;
  ranks_run(2, LONG, come_late, &(silence){{[0] = true}, "rank 0 was", 0, 1});
  ranks_run(4, LONG, come_late, &(silence){{[2] = true}, "rank 2 was", 0, 3});
  ranks_run(5, LONG, come_late,
            &(silence){{[1] = true, [2] = true, [4] = true}, "ranks 1, 2 and 4 were", 0, 2});
  ranks_run(9, LONG, come_late,
            &(silence){{0, 1, 1, 1, 1, 1, 1}, "ranks 1, 2, 3, 4 and 2 others were", 0, 3});
}

/* In any call, the silent rank is named with the call. */
static void in_any_call(kf_comm *comm, void *arg) {
  int call = *(int *)arg;
  int64_t none[RANKS_MOST] = {0};
  char record = 1, all[RANKS_MOST];
  double x = 1;
  EXPECT_OK(kf_comm_barrier(comm));
  EXPECT_OK(kf_comm_set_timeout(comm, SHORT));
  if (kf_comm_rank(comm) == 1) return;
  if (call == 0)
    EXPECT(kf_comm_gather(comm, &record, 1, all), KF_ETIMEOUT, "gather: rank 1 was silent");
  else if (call == 1)
    EXPECT(kf_comm_alltoallv(comm, NULL, none, NULL, none), KF_ETIMEOUT,
           "alltoallv: rank 1 was silent");
  else
    EXPECT(kf_comm_reduce(comm, KF_MAX, KF_F64, 1, &x), KF_ETIMEOUT, "reduce: rank 1 was silent");
}

static void test_silent_in_any_call(void **state) {
  (void)state;
  for (int call = 0; call < 3; call++) ranks_run(3, LONG, in_any_call, &call);
}

/* ------------------------------------------------------------- failing ranks */

/* Rank 1 gives up, before or while the others wait. */
static void give_up(kf_comm *comm, void *arg) {
  bool late = *(bool *)arg;
  if (kf_comm_rank(comm) == (late ? 0 : 1)) sleep_s(0.02);
  if (kf_comm_rank(comm) == 1) {
    EXPECT(kf_comm_fail(comm, "the disk is full"), KF_ECOMM, "the disk is full");
    expect_broken(comm, KF_ECOMM, "the disk is full");
  } else {
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "rank 1 failed: the disk is full");
    expect_broken(comm, KF_ECOMM, "rank 1 failed: the disk is full");
  }
}

/* Of two that give up, all others hear of the same one. */
static void both_give_up(kf_comm *comm, void *arg) {
  char(*heard)[512] = arg;
  int32_t me = kf_comm_rank(comm);
  if (me < 2)
    EXPECT(kf_comm_fail(comm, me ? "one" : "zero"), KF_ECOMM, me ? "one" : "zero");
  else
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "failed: ");
  snprintf(heard[me], sizeof heard[me], "%s", kf_last_error());
}

static void no_reason(kf_comm *comm, void *arg) {
  (void)arg;
  if (kf_comm_rank(comm) == 0)
    EXPECT(kf_comm_fail(comm, NULL), KF_ECOMM, "no reason given");
  else
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "rank 0 failed: no reason given");
}

/* A reason of any length, and with signs that printf would act upon. */
static void long_reason(kf_comm *comm, void *arg) {
  char reason[2000] = "%s%n%d ";
  (void)arg;
  memset(reason + 7, 'x', sizeof reason - 8);
  reason[sizeof reason - 1] = 0;
  if (kf_comm_rank(comm) == 0)
    EXPECT(kf_comm_fail(comm, reason), KF_ECOMM, "%s%n%d xxx");
  else
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "rank 0 failed: %s%n%d xxx");
}

static void test_failing_rank(void **state) {
  (void)state;
  for (int i = 0; i < 10; i++)
    for (int late = 0; late < 2; late++) ranks_run(2 + i % 4, LONG, give_up, &(bool){late});
  for (int i = 0; i < 20; i++) {
    char heard[4][512];
    ranks_run(4, LONG, both_give_up, heard);
    assert_string_equal(heard[2], heard[3]);
  }
  ranks_run(2, LONG, no_reason, NULL);
  ranks_run(2, LONG, long_reason, NULL);
  ranks_run(1, LONG, no_reason, NULL);
}

/* --------------------------------------------------------------- the object */

static void test_free_in_any_order(void **state) {
  (void)state;
  static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  kf_comm *comm[3];
  for (int i = 0; i < 6; i++) {
    assert_int_equal(kf_comm_local_create(3, comm), KF_OK);
    for (int k = 0; k < 3; k++) {
      assert_int_equal(kf_comm_rank(comm[order[i][k]]), order[i][k]);
      assert_int_equal(kf_comm_size(comm[order[i][k]]), 3);
      kf_comm_free(comm[order[i][k]]);
    }
  }
}

/* One that has freed its end is silent to the others. */
static void test_freed_rank_is_silent(void **state) {
  (void)state;
  kf_comm *comm[2];
  assert_int_equal(kf_comm_local_create(2, comm), KF_OK);
  kf_comm_free(comm[1]);
  assert_int_equal(kf_comm_set_timeout(comm[0], 0.02), KF_OK);
  EXPECT(kf_comm_barrier(comm[0]), KF_ETIMEOUT, "barrier: rank 1 was silent for 0.02 s");
  kf_comm_free(comm[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_collectives),
    cmocka_unit_test(test_exchanges),
    cmocka_unit_test(test_sums),
    cmocka_unit_test(test_mismatch),
    cmocka_unit_test(test_silent_rank),
    cmocka_unit_test(test_silent_in_any_call),
    cmocka_unit_test(test_failing_rank),
    cmocka_unit_test(test_free_in_any_order),
    cmocka_unit_test(test_freed_rank_is_silent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
