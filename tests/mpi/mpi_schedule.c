/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n N schedule SEED: schedulers on MPI ranks. Random jobs, as property/scheduler on local
** ranks; then ranks that differ: in their options, in what they have learned, in how many they
** think they are.
*/
#include "schedule.h"

#include "ranks.h"

#include <assert.h>

enum { N_CASES = 6, N_STEPS = 20 };

static kf_comm *world_comm; /* stays in order: it initialised MPI, and finalises it */

static kf_scheduler *create(int32_t n_ranks, kf_config config) {
  kf_scheduler *s = NULL;
  EXPECT_OK(scheduler_create(&(scheduler_wish){.n_ranks = n_ranks, .config = &config}, &s));
  return s;
}

/* What every rank brings: an image, and a video on the even ones. */
static kf_status take_step(kf_step *step, kf_scheduler *s, int32_t me, const kf_plan **plan) {
  static const int64_t len[] = {300, 9000};
  static const kf_profile profile[] = {{KF_KIND_IMAGE, 256, 1}, {KF_KIND_VIDEO, 512, 24}};
  kf_rank_batch mine = {.n_seqs = me % 2 ? 1 : 2, .len = len, .profile = me % 2 ? NULL : profile};
  return kf_step_schedule(step, s, &mine, NULL, plan);
}

/* `n` steps, each rank reporting its own times: `slow` times what is predicted of it. */
static void train(kf_step *step, kf_scheduler *s, int32_t me, int n, double slow) {
  const kf_plan *plan = NULL;
  for (int i = 0; i < n; i++) {
    EXPECT_OK(take_step(step, s, me, &plan));
    double seconds = plan->compute_s[me] + plan->comm_s[me];
    if (seconds > 0)
      EXPECT_OK(kf_scheduler_update_stats(s, me, slow * seconds * (1 + 0.01 * (i % 3)), NULL));
  }
  EXPECT_OK(kf_step_settle(step, s));
}

static void expect_odd(kf_status status, int32_t odd, const kf_plan *plan) {
  char sentence[80];
  snprintf(sentence, sizeof sentence, "rank %d has another configuration (hash ", (int)odd);
  EXPECT(status, KF_EMISMATCH, sentence);
  EXPECT(status, KF_EMISMATCH, "created with other options, or has learned from other times");
  assert(!plan);
}

/* The same on all ranks, at the end of a check. */
static void expect_same(kf_comm *comm, const kf_scheduler *s) {
  course c = {.rank = kf_comm_rank(comm), .options.n_ranks = kf_comm_size(comm)};
  course_same_on_all(&c, comm, s);
  if (c.failed) abort();
}

/* One rank has other options: every rank says so, and the comm stays in order. */
static void check_other_options(kf_comm *comm, int32_t odd) {
  const kf_config usual = {.rebalance_interval = 3};
  const kf_config others[] = {{.rebalance_interval = 4},
                              {.rebalance_interval = 3, .cost_model = KF_COST_STATIC},
                              {.rebalance_interval = 3, .model = "wan14b"},
                              {.rebalance_interval = 3, .mem_tokens = 100000},
                              {.rebalance_interval = 3, .bag_size = "1"},
                              {.rebalance_interval = 3, .affinity_policy = KF_AFFINITY_SPREAD}};
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  kf_scheduler *same = create(n, usual);
  kf_step *step = NULL;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    kf_scheduler *s = create(n, me == odd ? others[i] : usual);
    const kf_plan *plan = NULL;
    expect_odd(take_step(step, s, me, &plan), odd, plan);
    train(step, same, me, 2, 1.5);
    expect_same(comm, same);
    kf_scheduler_free(s);
  }
  kf_step_free(step);
  kf_scheduler_free(same);
}

/* One rank was given the memory of another run, of as many steps. With their own, all go on. */
static void check_other_memory(kf_comm *comm, int32_t odd) {
  const kf_config config = {.rebalance_interval = 3};
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  kf_scheduler *s = create(n, config), *other = create(n, config);
  const kf_plan *plan = NULL;
  kf_step *step = NULL;
  saved state[2] = {{NULL, 0}, {NULL, 0}};
  EXPECT_OK(kf_step_create(comm, 0, &step));
  train(step, s, me, N_STEPS, 1.5);
  train(step, other, me, N_STEPS, me == 0 ? 3 : 1.6);
  expect_same(comm, s);
  expect_same(comm, other);
  EXPECT_OK(kf_scheduler_save(s, &state[0].data, &state[0].n));
  EXPECT_OK(kf_scheduler_save(other, &state[1].data, &state[1].n));
  if (me == odd) EXPECT_OK(kf_scheduler_restore(s, "other", state[1].data, state[1].n));
  expect_odd(take_step(step, s, me, &plan), odd, plan);
  for (int i = 0; i < 2; i++) {
    EXPECT_OK(kf_scheduler_restore(s, "own", state[i].data, state[i].n));
    assert(kf_scheduler_steps(s) == N_STEPS);
    train(step, s, me, 5, 1.5);
    expect_same(comm, s);
    free(state[i].data);
  }
  kf_step_free(step);
  kf_scheduler_free(s);
  kf_scheduler_free(other);
}

/* A scheduler of other ranks than the comm's, on rank `wrong` or (-1) on all: an error everywhere.
** No plan of the others can be meant, so the comm is broken: each case has one of its own. What was
** handed to it is MPI's from then on, and never freed. */
static void check_other_ranks(int32_t wrong, bool settles) {
  kf_comm *comm;
  EXPECT_OK(kf_comm_mpi_create(NULL, &comm));
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  bool errs = wrong < 0 || wrong == me;
  kf_scheduler *right = create(n, (kf_config){0}), *s = create(n + errs, (kf_config){0});
  const kf_plan *plan = NULL;
  kf_step *step = NULL;
  char sentence[80];
  EXPECT_OK(kf_step_create(comm, 0, &step));
  train(step, right, me, 2, 1);
  EXPECT_OK(kf_comm_barrier(world_comm)); /* who leaves it first may break the other, not this */
  kf_status status = settles ? kf_step_settle(step, s) : take_step(step, s, me, &plan);
  snprintf(sentence, sizeof sentence, "a scheduler of %d ranks, expected %d", (int)n + 1, (int)n);
  EXPECT(status, errs ? KF_EINVAL : KF_ECOMM, sentence);
  EXPECT(kf_comm_barrier(comm), status, sentence);
  assert(!plan);
  kf_scheduler_free(s);
  kf_scheduler_free(right);
  kf_comm_free(comm);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  EXPECT_OK(kf_comm_mpi_create(NULL, &world_comm));
  int32_t n = kf_comm_size(world_comm);
  if (!schedule_check(world_comm, seed, N_CASES)) abort();
  if (n > 1) { /* of two that differ, it is the second */
    check_other_options(world_comm, n - 1);
    check_other_memory(world_comm, n - 1);
    check_other_ranks(n - 1, false);
    check_other_ranks(0, true);
  }
  if (n > 2) {
    check_other_options(world_comm, 0);
    check_other_memory(world_comm, 1);
  }
  check_other_ranks(-1, false);
  check_other_ranks(-1, true);
  EXPECT_OK(kf_comm_barrier(world_comm));
  kf_comm_free(world_comm);
  return 0;
}
