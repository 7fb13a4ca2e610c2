/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -n N train SEED: training with and without the balancer on N MPI ranks: the same
** numbers. */
#include "mpi_check.h"
#include "parity.h"

int main(int argc, char **argv) { return mpi_check(argc, argv, parity_check, 8); }
