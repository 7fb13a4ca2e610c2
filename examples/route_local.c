/* SPDX-License-Identifier: Apache-2.0 */
/*
** Route on local ranks: four threads of this process, each with a sequence of its own, plan
** together, move their rows to where they are computed, and get them back.
**
**     cc route_local.c $(pkg-config --cflags --libs knapformer) -pthread -o route_local
*/
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <knapformer.h>

enum { RANKS = 4, WIDTH = 64, MOST = 3000 }; /* rows of 64 floats, at most 3000 a rank */

static const int64_t lens[RANKS] = {3000, 200, 100, 100}; /* a sequence a rank */
static float rows[RANKS][MOST * WIDTH], back[RANKS][MOST * WIDTH];
static float moved[RANKS][RANKS * MOST * WIDTH]; /* a rank may hold what all have */
static kf_status result[RANKS];

/* One rank's step. Every row carries its number, so that it shows where it came from. */
static kf_status run(kf_comm *comm, kf_step *step, kf_planner *planner) {
  const int rank = kf_comm_rank(comm);
  const kf_rank_batch mine = {.n_seqs = 1, .len = &lens[rank]};
  const kf_batch *batch;
  const kf_plan *plan;
  kf_status status;
  for (int64_t i = 0; i < lens[rank] * WIDTH; i++) rows[rank][i] = (float)(rank * MOST + i / WIDTH);

  if ((status = kf_step_gather(step, &mine, &batch, NULL))) return status;
  if ((status = kf_step_plan(step, planner, &plan))) return status;
  const int64_t n = plan->home_rows[rank], n_held = plan->hold_rows[rank], bytes = WIDTH * 4;
  const kf_tensor home = {rows[rank], n, bytes, 0}, held = {moved[rank], n_held, bytes, 0};
  const kf_tensor home_again = {back[rank], n, bytes, 0};

  if ((status = kf_route_forward(comm, plan, 1, &home, &held))) return status;
  for (int r = 0; r < RANKS; r++) { /* in turn */
    if (r == rank)
      printf("rank %d has %4d rows and computes %4d, from number %4d to %4d\n", rank, (int)n,
             (int)n_held, (int)moved[rank][0],
             (int)moved[rank][n_held > 0 ? (n_held - 1) * WIDTH : 0]);
    if ((status = kf_comm_barrier(comm))) return status;
  }
  /* here the layers of the model would change the rows that are held */
  if ((status = kf_route_reverse(comm, plan, 1, &held, &home_again))) return status;
  if (memcmp(rows[rank], back[rank], (size_t)(n * bytes)) != 0)
    return kf_comm_fail(comm, "rows came back changed");
  return kf_comm_barrier(comm);
}

static void *rank_main(void *arg) {
  kf_comm *comm = arg;
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  kf_step *step = NULL;
  kf_status status = kf_cost_preset("DiT-S", NULL, RANKS, KF_DEFAULT_GAMMA, &options.cost);
  if (!status) status = kf_planner_create(&options, &planner);
  if (status) kf_comm_fail(comm, kf_last_error()); /* so that the others do not wait */
  if (!status) status = kf_step_create(comm, 0, &step);
  if (!status) status = run(comm, step, planner);
  if (status) fprintf(stderr, "rank %d: %s\n", kf_comm_rank(comm), kf_last_error());
  result[kf_comm_rank(comm)] = status;
  kf_step_free(step);
  kf_planner_free(planner);
  kf_comm_free(comm);
  return NULL;
}

int main(void) {
  kf_comm *comm[RANKS];
  pthread_t thread[RANKS];
  if (kf_comm_local_create(RANKS, comm)) return fprintf(stderr, "%s\n", kf_last_error()), 1;
  for (int r = 0; r < RANKS; r++)
    if (pthread_create(&thread[r], NULL, rank_main, comm[r])) return perror("pthread_create"), 1;
  for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
  for (int r = 0; r < RANKS; r++)
    if (result[r]) return 1;
  puts("all rows came back as they were");
  return 0;
}
