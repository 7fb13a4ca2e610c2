/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n N collectives SEED: every collective, and exchanges that take every path of theirs. */
#include "collectives.h"

int main(int argc, char **argv) {
  int seed = argc > 1 ? atoi(argv[1]) : 1;
  kf_comm *comm, *first;
  EXPECT_OK(kf_comm_mpi_create(NULL, &first));
  EXPECT_OK(kf_comm_mpi_create(NULL, &comm));
  kf_comm_free(first); /* it initialised MPI, which the other still needs */
  check_gather(comm);
  check_barrier(comm, NULL);
  check_alltoallv(comm);
  check_reduce(comm);
  check_reduce_specials(comm);
  check_exchanges(comm, seed * 1000, 8);
  kf_comm_free(comm);
  return 0;
}
