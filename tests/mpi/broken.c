/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n N broken SEED: ranks that fail, make mistakes, come late or call other things than the
** others, all while every process lives, so that each can say what it was told. Every case has a
** comm of its own, which is broken afterwards; comms that MPI lost track of are never freed, so
** that the job as a whole ends well.
*/
#include "comm/comm.h"
#include "ranks.h"

#include <assert.h>
#include <time.h>

static const double SHORT = 0.5, LONG = 60;

static void sleep_s(double seconds) {
  struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&t, NULL);
}

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
    char record[8] = "", all[8 * RANKS_MOST], sentence[80];
    int64_t each[RANKS_MOST];
    float x[2] = {1, 1};
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
  char byte;
  some[n - 1] = 1;
  kf_status status =
    me == 0 ? kf_comm_alltoallv(comm, NULL, none, &byte, some) : kf_comm_barrier(comm);
  if (status != KF_EMISMATCH) EXPECT(status, KF_ECOMM, "ranks make different calls");
  kf_comm_free(comm);
}

/* Rank 0 sends rank 1 another number of bytes than that expects: 0 is the worst, nothing arrives. */
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

int main(void) {
  EXPECT_OK(kf_comm_mpi_create(NULL, &world));
  int32_t me = kf_comm_rank(world), n = kf_comm_size(world);
  check_fail(me, n);
  if (n > 1) {
    check_mistake(me);
    check_late(me);
    check_other_call(me, n);
    check_counts(me, 10, 20);
    check_counts(me, 20, 10);
    check_counts(me, 500000, 600000);
    check_counts(me, 600000, 500000);
    check_counts(me, 0, 10);
  }
  EXPECT_OK(kf_comm_barrier(world));
  kf_comm_free(world);
  return 0;
}
