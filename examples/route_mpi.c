/* SPDX-License-Identifier: Apache-2.0 */
/*
** Route on MPI ranks: rank 0 has a long sequence, every other a short one. They plan together, move
** their rows to where they are computed, and get them back. MPI itself is the library's business.
**
**     cc route_mpi.c $(pkg-config --cflags --libs knapformer) -o route_mpi
**     mpirun -n 4 ./route_mpi
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

enum { WIDTH = 64 }; /* rows of 64 floats */

static kf_status run(kf_comm *comm, kf_step *step, kf_planner *planner) {
  const int rank = kf_comm_rank(comm);
  const int64_t len = rank == 0 ? 3000 : 100, bytes = WIDTH * sizeof(float);
  const kf_rank_batch mine = {.n_seqs = 1, .len = &len};
  const kf_batch *batch;
  const kf_plan *plan;
  kf_status status;
  if ((status = kf_step_gather(step, &mine, &batch, NULL))) return status;
  if ((status = kf_step_plan(step, planner, &plan))) return status;

  const int64_t n_held = plan->hold_rows[rank];
  float *rows = malloc((size_t)((len * 2 + n_held) * bytes)); /* home, back home, held */
  if (!rows) return kf_comm_fail(comm, "out of memory");
  float *back = rows + len * WIDTH, *moved = back + len * WIDTH;
  for (int64_t i = 0; i < len * WIDTH; i++) rows[i] = (float)rank;
  const kf_tensor home = {rows, len, bytes, 0}, home_again = {back, len, bytes, 0};
  const kf_tensor held = {moved, n_held, bytes, 0};

  if ((status = kf_route_forward(comm, plan, 1, &home, &held))) return status;
  int away = 0; /* rows whose home is another rank */
  for (int64_t i = 0; i < n_held; i++) away += (int)moved[i * WIDTH] != rank;
  printf("rank %d has %4d rows and computes %4d, %4d of them for others\n", rank, (int)len,
         (int)n_held, away);
  /* here the layers of the model would change the rows that are held */
  if ((status = kf_route_reverse(comm, plan, 1, &held, &home_again))) return status;
  if (memcmp(rows, back, (size_t)(len * bytes)) != 0) return kf_comm_fail(comm, "rows changed");
  free(rows); /* only on success: after a failure MPI may still write to it */
  return kf_comm_barrier(comm);
}

int main(void) {
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  kf_comm *comm = NULL;
  kf_step *step = NULL;
  kf_status status = kf_comm_mpi_create(NULL, &comm);
  if (status) return fprintf(stderr, "route_mpi: %s\n", kf_last_error()), 1;
  const int rank = kf_comm_rank(comm);
  status = kf_cost_preset("DiT-S", NULL, kf_comm_size(comm), KF_DEFAULT_GAMMA, &options.cost);
  if (!status) status = kf_planner_create(&options, &planner);
  if (status) kf_comm_fail(comm, kf_last_error()); /* so that the others do not wait */
  if (!status) status = kf_step_create(comm, 0, &step);
  if (!status) status = run(comm, step, planner);
  if (status) fprintf(stderr, "rank %d: %s\n", rank, kf_last_error());
  kf_step_free(step);
  kf_planner_free(planner);
  kf_comm_free(comm);
  if (!status && rank == 0) puts("all rows came back as they were");
  return status ? 1 : 0; /* mpirun then ends the others */
}
