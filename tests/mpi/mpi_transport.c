/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n N transport SEED: random worlds on N MPI ranks, as property/transport on local ones. */
#include "mpi_check.h"
#include "transport.h"

int main(int argc, char **argv) { return mpi_check(argc, argv, transport_check, 20); }
