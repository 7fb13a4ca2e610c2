/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of a test of MPI ranks, SEED [ROUNDS]: one check, which says itself what failed. */
#ifndef MPI_CHECK_H
#define MPI_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <knapformer.h>

static inline int mpi_check(int argc, char **argv, bool (*check)(kf_comm *, uint64_t seed, int n),
                            int n) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  if (argc > 2) n = atoi(argv[2]);
  kf_comm *comm;
  if (kf_comm_mpi_create(NULL, &comm)) {
    printf("%s\n", kf_last_error());
    return 1;
  }
  bool held = check(comm, seed, n);
  kf_comm_free(comm);
  return held ? 0 : 1;
}

#endif
