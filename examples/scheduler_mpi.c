/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training loop with the online scheduler on MPI ranks, to start your own from. Each rank says
** what it drew, all get the same plan, rows travel, the busy time is reported, and the scheduler
** learns from it. With a file's name the scheduler goes on where the last run ended.
**
**     cc scheduler_mpi.c $(pkg-config --cflags --libs knapformer) -o scheduler_mpi
**     mpirun -n 4 ./scheduler_mpi scheduler.state
*/
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <knapformer.h>

enum { STEPS = 40, ROW = 1536 }; /* bytes of a token: 384 floats */

static double now(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One step: where a real trainer has its data, its layers and its optimiser. */
static kf_status train_step(kf_comm *comm, kf_step *step, kf_scheduler *scheduler, int64_t number) {
  const int rank = kf_comm_rank(comm);
  const int64_t len[2] = {number % 3 == rank % 3 ? 2000 : 200, 100};
  const kf_profile profile[2] = {{KF_KIND_VIDEO, 256, 33}, {KF_KIND_IMAGE, 256, 1}};
  const kf_rank_batch mine = {.n_seqs = 2, .len = len, .profile = profile};
  const kf_plan *plan;
  kf_status status = kf_step_schedule(step, scheduler, &mine, NULL, &plan);
  if (status) return status;

  kf_tensor home = {NULL, plan->home_rows[rank], ROW, 0},
            held = {NULL, plan->hold_rows[rank], ROW, 0};
  home.data = calloc((size_t)home.n_rows + 1, ROW);
  held.data = calloc((size_t)held.n_rows + 1, ROW);
  if (!home.data || !held.data) return kf_comm_fail(comm, "out of memory");
  if ((status = kf_route_forward(comm, plan, 1, &home, &held))) return status;
  const double start = now();
  float *x = held.data; /* the layers */
  for (int64_t i = 0; i < held.n_rows * ROW / 4; i++) x[i] = x[i] * 0.5f + 1;
  const double compute_s = now() - start + 1e-9;
  if ((status = kf_route_reverse(comm, plan, 1, &held, &home))) return status;
  free(home.data), free(held.data);

  /* Busy: what the rank did itself, not what it waited for others. Route calls wait too, so that
  ** they are left out here, and the cost of moving data is taken as predicted. */
  const kf_counters counters = {.compute_s = compute_s, .tokens = held.n_rows};
  const double busy_s = held.n_rows > 0 ? compute_s + plan->comm_s[rank] : 0;
  return kf_scheduler_update_stats(scheduler, rank, busy_s, &counters);
}

int main(int argc, char **argv) {
  const kf_config config = {.model = "DiT-S", .rebalance_interval = 10};
  kf_scheduler_options *options = NULL;
  kf_scheduler *scheduler = NULL;
  kf_comm *comm = NULL;
  kf_step *step = NULL;
  kf_status status = kf_comm_mpi_create(NULL, &comm);
  if (status) return fprintf(stderr, "scheduler_mpi: %s\n", kf_last_error()), 1;
  const int rank = kf_comm_rank(comm);
  status = kf_config_resolve(&config, kf_comm_size(comm), &options);
  if (!status) status = kf_scheduler_create(options, &scheduler);
  kf_scheduler_options_free(options);
  if (!status && argc > 1) /* all ranks read the same file; none there: a fresh start */
    status = kf_scheduler_restore_file(scheduler, argv[1]);
  if (status) kf_comm_fail(comm, kf_last_error()); /* so that the others do not wait */
  if (!status) status = kf_step_create(comm, 0, &step);
  const int64_t first = kf_scheduler_steps(scheduler);
  for (int64_t s = first; s < first + STEPS && !status; s++)
    status = train_step(comm, step, scheduler, s);
  if (!status) status = kf_step_settle(step, scheduler); /* before saving, and at the end */
  if (!status && rank == 0 && argc > 1)                  /* one rank writes what all of them know */
    status = kf_scheduler_save_file(scheduler, argv[1]);
  if (status) fprintf(stderr, "rank %d: %s\n", rank, kf_last_error());
  const kf_metrics *m = kf_scheduler_metrics(scheduler);
  if (!status && rank == 0)
    printf("steps %d to %d, %d refits: %.3g s a token, %.3g s a token squared\n", (int)first,
           (int)m->step, (int)m->refits, m->cost.linear_s, m->cost.quadratic_s);
  kf_step_free(step);
  kf_scheduler_free(scheduler);
  kf_comm_free(comm);
  return status ? 1 : 0; /* mpirun then ends the others */
}
