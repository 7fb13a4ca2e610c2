/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n N transport SEED: random worlds on N MPI ranks, as property/transport on local ones. */
#include "transport.h"

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  kf_comm *comm;
  if (kf_comm_mpi_create(NULL, &comm)) {
    printf("%s\n", kf_last_error());
    return 1;
  }
  bool held = transport_check(comm, seed, 20);
  kf_comm_free(comm);
  return held ? 0 : 1;
}
