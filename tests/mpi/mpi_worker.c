/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n N worker SEED [STEPS TIMEOUT_S FAULT RANK STEP NAME]: takes online steps and checks
** each of them. At step STEP, rank RANK does what FAULT says: `none`, `exit` (with code 3) or
** `fail`. NAME is for whoever looks for this job's processes; see mpi_faults.sh, which also stops
** and kills them.
*/
#include <unistd.h>

#include "sleep.h"
#include "train_job.h"

/* The first rank that exits makes the launcher kill the others. Each waits a moment, as a program
** would, so that all can say their reason; nothing is finalised, which would wait for the lost. */
static void give_up(kf_comm *comm) {
  fprintf(stderr, "rank %d: %s\n", (int)kf_comm_rank(comm), kf_last_error());
  sleep_s(1);
  _exit(1);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  long n_steps = argc > 2 ? atol(argv[2]) : 50;
  double timeout_s = argc > 3 ? atof(argv[3]) : KF_DEFAULT_TIMEOUT_S;
  const char *fault = argc > 4 ? argv[4] : "none";
  int fault_rank = argc > 5 ? atoi(argv[5]) : 0;
  long fault_step = argc > 6 ? atol(argv[6]) : 0;
  kf_comm *comm;
  job j;
  if (kf_comm_mpi_create(NULL, &comm) || kf_comm_set_timeout(comm, timeout_s) ||
      !job_create(&j, comm)) {
    fprintf(stderr, "%s\n", kf_last_error());
    return 1;
  }
  int32_t me = kf_comm_rank(comm);
  dice d = {seed * 31 + (uint64_t)me};
  if (argc > 7) fprintf(stderr, "rank %d is process %ld\n", (int)me, (long)getpid());
  for (long i = 0; i < n_steps; i++) {
    if (me == fault_rank && i == fault_step && strcmp(fault, "exit") == 0) _exit(3);
    if (me == fault_rank && i == fault_step && strcmp(fault, "fail") == 0 &&
        kf_comm_fail(comm, "on purpose"))
      give_up(comm);
    job_draw(&j, seed * 1000003 + (uint64_t)i);
    if (dice_one_in(&d, 3)) sleep_s(dice_real(&d, 0, 2e-3));
    if (job_step(&j)) give_up(comm);
    const char *wrong = job_wrong(&j);
    if (wrong && kf_comm_fail(comm, wrong)) give_up(comm);
  }
  job_free(&j);
  kf_comm_free(comm);
  return 0;
}
