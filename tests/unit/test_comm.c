/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the collectives, and that a wrong one on one rank is an error on all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "dice.h"
#include "fail_alloc.h"
#include "ranks.h"

static void test_local_create(void **state) {
  (void)state;
  kf_comm *comm[2] = {NULL, NULL};
  EXPECT(kf_comm_local_create(2, NULL), KF_EINVAL, "out is NULL");
  EXPECT(kf_comm_local_create(0, comm), KF_EINVAL, "0 local ranks, expected 1 to 1048576");
  EXPECT(kf_comm_local_create(-3, comm), KF_EINVAL, "-3 local ranks");
  EXPECT(kf_comm_local_create(KF_MAX_RANKS + 1, comm), KF_EINVAL, "1048577 local ranks");
  fail_alloc(1);
  EXPECT(kf_comm_local_create(2, comm), KF_ENOMEM, "out of memory");
  fail_alloc(0);
  assert_null(comm[0]);
  EXPECT_OK(kf_comm_local_create(2, comm));
  kf_comm_free(comm[0]);
  kf_comm_free(comm[1]);
  kf_comm_free(NULL);
}

static void test_null_comm(void **state) {
  (void)state;
  assert_int_equal(kf_comm_rank(NULL), 0);
  assert_int_equal(kf_comm_size(NULL), 0);
  EXPECT(kf_comm_set_timeout(NULL, 1), KF_EINVAL, "comm is NULL");
  EXPECT(kf_comm_fail(NULL, "reason"), KF_EINVAL, "comm is NULL");
  EXPECT(kf_comm_barrier(NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_comm_gather(NULL, NULL, 0, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_comm_alltoallv(NULL, NULL, NULL, NULL, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_comm_reduce(NULL, KF_SUM, KF_F32, 0, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_step_create(NULL, 0, &(kf_step *){NULL}), KF_EINVAL, "comm is NULL");
  EXPECT(kf_route_forward(NULL, NULL, 0, NULL, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_route_reverse(NULL, NULL, 0, NULL, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_ulysses_out(NULL, NULL, 0, NULL, NULL), KF_EINVAL, "comm is NULL");
  EXPECT(kf_ulysses_back(NULL, NULL, 0, NULL, NULL), KF_EINVAL, "comm is NULL");
}

static void test_timeout_range(void **state) {
  (void)state;
  static const double good[] = {0.01, 0.5, KF_DEFAULT_TIMEOUT_S, 1e6};
  static const double bad[] = {0, -1, 0.009, 1.1e6, INFINITY, -INFINITY, NAN};
  kf_comm *comm;
  EXPECT_OK(kf_comm_local_create(1, &comm));
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    EXPECT_OK(kf_comm_set_timeout(comm, good[i]));
    EXPECT_OK(kf_comm_barrier(comm));
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    EXPECT(kf_comm_set_timeout(comm, bad[i]), KF_EINVAL, "expected 0.01 to 1e6");
    EXPECT_OK(kf_comm_barrier(comm)); /* not a failure of the comm */
  }
  kf_comm_free(comm);
}

/* There only if the library was linked with an MPI. */
extern int MPI_Initialized(int *flag) __attribute__((weak));

static void test_without_mpi(void **state) {
  (void)state;
  kf_comm *comm = NULL;
  if (MPI_Initialized) return; /* the tsan build has none */
  EXPECT(kf_comm_mpi_create(NULL, &comm), KF_ENOTBUILT, "built without MPI");
  assert_null(comm);
}

/* ------------------------------------------------------------ wrong arguments */

/* Rank 1's wrong call, number `which`. Returns what its sentence says; NULL: there is none. */
static const char *wrong_call(kf_comm *comm, int which, kf_status *status) {
  int64_t none[2] = {0, 0}, some[2] = {3, 0}, less[2] = {-4, 0}, own[2] = {0, 5};
  char byte[8] = "", all[16];
  switch (which) {
  case 0:
    *status = kf_comm_gather(comm, byte, -1, all);
    return "gather: a record of -1 bytes, expected 0 to 2147475455 on 2 ranks";
  case 1:
    *status = kf_comm_gather(comm, byte, (int64_t)1 << 31, all);
    return "gather: a record of 2147483648 bytes";
  case 2: *status = kf_comm_gather(comm, NULL, 1, all); return "gather: record is NULL";
  case 3: *status = kf_comm_gather(comm, byte, 1, NULL); return "gather: all is NULL";
  case 4:
    *status = kf_comm_alltoallv(comm, byte, NULL, all, none);
    return "alltoallv: send_bytes is NULL";
  case 5:
    *status = kf_comm_alltoallv(comm, byte, none, all, NULL);
    return "alltoallv: recv_bytes is NULL";
  case 6:
    *status = kf_comm_alltoallv(comm, byte, less, all, none);
    return "alltoallv: send_bytes[0] is -4, expected 0 or more";
  case 7:
    *status = kf_comm_alltoallv(comm, byte, none, all, less);
    return "alltoallv: recv_bytes[0] is -4, expected 0 or more";
  case 8:
    *status = kf_comm_alltoallv(comm, NULL, some, all, none);
    return "alltoallv: send is NULL";
  case 9:
    *status = kf_comm_alltoallv(comm, byte, none, NULL, some);
    return "alltoallv: recv is NULL";
  case 10:
    *status = kf_comm_alltoallv(comm, byte, own, all, none);
    return "alltoallv: rank 1 sends itself 5 bytes and receives 0";
  case 11:
    *status = kf_comm_reduce(comm, (kf_reduction)3, KF_F32, 0, NULL);
    return "reduce: reduction 3, expected 0 to 2";
  case 12:
    *status = kf_comm_reduce(comm, KF_SUM, KF_BF16, 0, NULL);
    return "reduce: dtype 1 (bf16), expected 0 (f32), 3 (f64) or 4 (i64)";
  case 13:
    *status = kf_comm_reduce(comm, KF_SUM, KF_F32, -1, byte);
    return "reduce: -1 elements, expected 0 or more and their data";
  case 14:
    *status = kf_comm_reduce(comm, KF_SUM, KF_F32, INT64_MAX, byte);
    return "reduce: 9223372036854775807 elements";
  case 15:
    *status = kf_comm_reduce(comm, KF_SUM, KF_F32, 3, NULL);
    return "reduce: 3 elements and data is NULL";
  case 16: *status = kf_step_create(comm, 0, NULL); return "kf_step_create: out is NULL";
  default: return NULL;
  }
}

typedef struct wrong {
  int which;
  bool done;
  char said[2][512];
} wrong;

/* Rank 0 makes a proper call meanwhile, and hears of rank 1's. */
static void one_is_wrong(kf_comm *comm, void *arg) {
  wrong *w = arg;
  int32_t me = kf_comm_rank(comm);
  kf_status status = KF_OK;
  if (me == 1) {
    const char *sentence = wrong_call(comm, w->which, &status);
    if (!sentence) {
      w->done = true;
      kf_comm_fail(comm, "that was all");
      return;
    }
    EXPECT(status, KF_EINVAL, sentence);
    EXPECT(kf_comm_barrier(comm), KF_EINVAL, sentence);
  } else {
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "rank 1 failed: ");
  }
  snprintf(w->said[me], sizeof w->said[me], "%s", kf_last_error());
}

static void test_wrong_arguments(void **state) {
  (void)state;
  wrong w = {0};
  for (;; w.which++) {
    ranks_run(2, 60, one_is_wrong, &w);
    if (w.done) break;
    assert_string_equal(w.said[0] + strlen("rank 1 failed: "), w.said[1]);
  }
  assert_int_equal(w.which, 17);
}

/* ------------------------------------------------------------ naming ranks */

static void test_names(void **state) {
  (void)state;
  enum { N = KF_MAX_RANKS };
  static const struct {
    int marked, from, step;
    const char *names;
  } cases[] = {
    {1, 7, 1, "rank 7 was"},
    {2, 0, 1, "ranks 0 and 1 were"},
    {3, 2, 3, "ranks 2, 5 and 8 were"},
    {4, 0, 2, "ranks 0, 2, 4 and 6 were"},
    {5, 0, 1, "ranks 0, 1, 2, 3 and 1 other were"},
    {15, 1, 1, "ranks 1, 2, 3, 4 and 11 others were"},
    {5, N - 5, 1, "ranks 1048571, 1048572, 1048573, 1048574 and 1 other were"},
  };
  char names[KFI_NAMES];
  bool *marked = malloc(N);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    memset(marked, 0, N);
    for (int k = 0; k < cases[i].marked; k++) marked[cases[i].from + k * cases[i].step] = true;
    kfi_name_ranks(marked, N, names);
    assert_string_equal(names, cases[i].names);
  }
  memset(marked, 1, N); /* the longest there is: it fits */
  kfi_name_ranks(marked, N, names);
  assert_string_equal(names, "ranks 0, 1, 2, 3 and 1048572 others were");
  free(marked);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_local_create),    cmocka_unit_test(test_null_comm),
    cmocka_unit_test(test_timeout_range),   cmocka_unit_test(test_without_mpi),
    cmocka_unit_test(test_wrong_arguments), cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
