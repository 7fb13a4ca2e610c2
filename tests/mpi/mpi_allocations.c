/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n N allocations SEED: once steps of these sizes were taken, the library allocates
** nothing. */
#include "fail_alloc.h"
#include "train_job.h"

int main(int argc, char **argv) {
  enum { SIZES = 3, STEPS = 5 * SIZES };
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const char *wrong = NULL;
  char reason[80];
  kf_comm *comm = NULL;
  job j;
  if (kf_comm_mpi_create(NULL, &comm)) goto fail;
  if (!job_create(&j, comm)) goto fail;
  for (int i = 0; i < STEPS && !wrong; i++) {
    job_draw(&j, seed * SIZES + (uint64_t)(i % SIZES));
    fail_alloc(0);
    if (job_step(&j)) goto fail;
    long n = fail_alloc(0);
    snprintf(reason, sizeof reason, "%ld allocations in step %d", n, i);
    wrong = i >= SIZES && n > 0 ? reason : job_wrong(&j);
  }
  if (wrong && kf_comm_fail(comm, wrong)) goto fail;
  job_free(&j);
  kf_comm_free(comm);
  return 0;
fail:
  fprintf(stderr, "rank %d: %s\n", (int)kf_comm_rank(comm), kf_last_error());
  return 1;
}
