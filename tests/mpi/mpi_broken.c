/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n N broken SEED: ranks that fail, make mistakes, come late or call other things than the
** others, all while every process lives, so that each can say what it was told. Every case has a
** comm of its own, which is broken afterwards; comms that MPI lost track of are never freed, so
** that the job as a whole ends well.
*/
#include "comm/comm.h"
#include "ranks.h"
#include "sleep.h"

#include <assert.h>

static const double SHORT = 0.5, LONG = 60;

static kf_comm *world; /* stays in order: it initialised MPI, and finalises it */

static kf_comm *fresh(double timeout_s) {
  kf_comm *comm;
  EXPECT_OK(kf_comm_mpi_create(NULL, &comm));
  EXPECT_OK(kf_comm_set_timeout(comm, timeout_s));
  EXPECT_OK(kf_comm_barrier(world)); /* who leaves it first may break the fresh one, not this */
  return comm;
}

/* The last rank gives up; the others are in some call. */
static void check_fail(int32_t me, int32_t n) {
  for (int call = 0; call < 4; call++) {
    kf_comm *comm = fresh(LONG);
    static char record[8], all[8 * RANKS_MOST]; /* static: MPI may write to them after a failure */
    static float x[2] = {1, 1};
    char sentence[80];
    int64_t each[RANKS_MOST];
    for (int32_t q = 0; q < n; q++) each[q] = 1;
    snprintf(sentence, sizeof sentence, "rank %d failed: no more disk", (int)n - 1);
    if (me == n - 1)
      EXPECT(kf_comm_fail(comm, "no more disk"), KF_ECOMM, "no more disk");
    else if (call == 0)
      EXPECT(kf_comm_barrier(comm), KF_ECOMM, sentence);
    else if (call == 1)
      EXPECT(kf_comm_gather(comm, record, 8, all), KF_ECOMM, sentence);
    else if (call == 2)
      EXPECT(kf_comm_reduce(comm, KF_SUM, KF_F32, 2, x), KF_ECOMM, sentence);
    else
      EXPECT(kf_comm_alltoallv(comm, all, each, record, each), KF_ECOMM, sentence);
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "no more disk");
    kf_comm_free(comm);
  }
}

/* One rank's wrong argument is every rank's error. */
static void check_mistake(int32_t me) {
  kf_comm *comm = fresh(LONG);
  if (me == 0)
    EXPECT(kf_comm_gather(comm, NULL, 7, NULL), KF_EINVAL, "gather: record is NULL");
  else
    EXPECT(kf_comm_barrier(comm), KF_ECOMM, "rank 0 failed: gather: record is NULL");
  kf_comm_free(comm);
}

/* Rank 0 comes when the others have waited too long, but still listen for who is missing. */
static void check_too_late(int32_t me) {
  kf_comm *comm = fresh(4 * SHORT); /* they listen for a quarter of it */
  if (me == 0) sleep_s(4.5 * SHORT);
  EXPECT(kf_comm_barrier(comm), KF_ETIMEOUT,
         me == 0 ? "barrier: rank 0 came too late, after more than 2 s" : "barrier: rank 0 ");
  kf_comm_free(comm);
}

/* Rank 0 comes when all others have given up. It may find what they had sent, but not twice. */
static void check_late(int32_t me) {
  kf_comm *comm = fresh(SHORT);
  if (me == 0) {
    sleep_s(3 * SHORT);
    kf_status status = kf_comm_barrier(comm);
    if (!status) status = kf_comm_barrier(comm);
    assert(status == KF_ETIMEOUT || status == KF_EMISMATCH);
  } else {
    EXPECT(kf_comm_barrier(comm), KF_ETIMEOUT, "barrier: rank 0 was silent for 0.5 s");
    EXPECT(kf_comm_barrier(comm), KF_ETIMEOUT, "barrier: rank 0 was silent for 0.5 s");
  }
  kf_comm_free(comm);
}

/* Rank 0 waits for the last rank in an exchange, everybody else for all in a barrier. */
static void check_other_call(int32_t me, int32_t n) {
  kf_comm *comm = fresh(SHORT);
  int64_t none[RANKS_MOST] = {0}, some[RANKS_MOST] = {0};
  static char byte; /* MPI may write to it later */
  some[n - 1] = 1;
  kf_status status =
    me == 0 ? kf_comm_alltoallv(comm, NULL, none, &byte, some) : kf_comm_barrier(comm);
  if (status != KF_EMISMATCH) EXPECT(status, KF_ECOMM, "ranks make different calls");
  kf_comm_free(comm);
}

/* Rank 0 sends rank 1 another number of bytes than that expects: 0 is the worst, nothing
** arrives. */
static void check_counts(int32_t me, int64_t sent, int64_t expected) {
  kf_comm *comm = fresh(SHORT);
  char *buffer = calloc(1, 1 << 20);
  int64_t to[RANKS_MOST] = {0}, from[RANKS_MOST] = {0};
  if (me == 0) to[1] = sent;
  if (me == 1) from[0] = expected;
  kf_status status = kf_comm_alltoallv(comm, buffer, to, buffer, from);
  if (!status) status = kf_comm_barrier(comm); /* the sender may learn of it a call later */
  if (me == 1 && sent && sent < expected) EXPECT(status, KF_EMISMATCH, "alltoallv: rank 0 sent");
  if (!status || status == KF_ENOMEM || status == KF_EINVAL) {
    fprintf(stderr, "%lld bytes where %lld were expected: rank %d returned \"%s\"\n",
            (long long)sent, (long long)expected, (int)me, kf_status_string(status));
    abort();
  }
  kf_comm_free(comm); /* the buffer is MPI's from here on */
}

/* All route by one plan, but rank 1 hands over its tensors in another order, or makes another call:
** as many bytes, so that only what is meant tells them apart. */
static void check_other_tensors(int32_t me, int32_t n, bool other_call) {
  enum { LEN = 40, NARROW = 4, WIDE = 12 };
  const int64_t len[] = {LEN, LEN};
  const kf_rank_batch mine = {.n_seqs = me < 2 ? 2 : 0, .len = len};
  kf_planner_options options = {.max_chunk_size = n > 1 ? (LEN + n - 1) / n : 0};
  kf_planner *planner;
  kf_step *step;
  const kf_batch *batch;
  const kf_plan *plan;
  kf_comm *comm = fresh(4 * SHORT); /* the machine may be busy */
  EXPECT_OK(kf_cost_preset("d=64,layers=1,heads=8", "free", n, 0.4, &options.cost));
  EXPECT_OK(kf_planner_create(&options, &planner));
  EXPECT_OK(kf_step_create(comm, 0, &step));
  EXPECT_OK(kf_step_gather(step, &mine, &batch, NULL));
  EXPECT_OK(kf_step_plan(step, planner, &plan));
  int64_t rows[2] = {plan->home_rows[me], plan->hold_rows[me]};
  bool swapped = me == 1 && !other_call;
  kf_tensor tensor[2][2];
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < 2; i++)
      tensor[side][i] = (kf_tensor){calloc((size_t)rows[side] + 1, WIDE), rows[side],
                                    (i == 0) != swapped ? NARROW : WIDE, 0};
  kf_status status;
  if (me == 1 && other_call)
    status = kf_route_reverse(comm, plan, 2, tensor[1], tensor[0]);
  else
    status = kf_route_forward(comm, plan, 2, tensor[0], tensor[1]);
  if (!status) status = kf_comm_barrier(comm); /* who has nothing of rank 1 learns it here */
  if (status != KF_EMISMATCH && status != KF_ECOMM && status != KF_ETIMEOUT) {
    fprintf(stderr, "rank %d: other tensors or calls passed: %s\n", (int)me, kf_last_error());
    abort();
  }
  if (n == 2)
    EXPECT(status, KF_EMISMATCH, other_call ? "calls reverse" : "another plan or other tensors");
  kf_step_free(step);
  kf_planner_free(planner);
  kf_comm_free(comm); /* the tensors are MPI's from here on */
}

/* Ranks that free their comms do not wait for one that has failed. */
static void check_free(int32_t me, int32_t n) {
  kf_comm *comm = fresh(LONG);
  if (me == n - 1) EXPECT(kf_comm_fail(comm, "no more disk"), KF_ECOMM, "no more disk");
  kf_comm_free(comm);
}

int main(void) {
  EXPECT_OK(kf_comm_mpi_create(NULL, &world));
  int32_t me = kf_comm_rank(world), n = kf_comm_size(world);
  check_fail(me, n);
  if (n > 1) {
    check_mistake(me);
    check_late(me);
    check_too_late(me);
    check_other_call(me, n);
    check_counts(me, 10, 20);
    check_counts(me, 20, 10);
    check_counts(me, 500000, 600000);
    check_counts(me, 600000, 500000);
    check_counts(me, 0, 10);
    check_other_tensors(me, n, false);
    check_other_tensors(me, n, true);
    check_free(me, n);
  }
  EXPECT_OK(kf_comm_barrier(world));
  kf_comm_free(world);
  return 0;
}
