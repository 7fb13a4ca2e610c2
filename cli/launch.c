/* SPDX-License-Identifier: Apache-2.0 */
/*
** A program that starts its own ranks: it replaces itself by mpiexec, which starts it again, n
** times. So signals and the exit code are mpiexec's business, and nobody waits in between.
**
**     knapformer bench route  -->  mpiexec -n 2 /full/path/knapformer bench route
*/
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(KF_HAVE_MPI)

/* Set for the ranks, so that one that finds no launcher around it does not start ranks again. */
static const char own_mark[] = "KNAPFORMER_LAUNCHED";

bool cli_can_launch(void) { return true; }

/* PMIX_RANK: prun, which says no more than that. */
bool cli_launched(void) { return getenv(own_mark) || getenv("PMIX_RANK") || cli_mpi_rank(); }

/* Open MPI refuses root, and more ranks than cores; and it must not bind those to a core each.
** Other MPIs do not read these. What the user has set stays. */
static void set_environment(int32_t n_ranks) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
  if (n_ranks > sysconf(_SC_NPROCESSORS_ONLN))
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
  setenv("OPENBLAS_NUM_THREADS", "1", 0); /* or each rank has as many as there are cores */
  setenv(own_mark, "1", 1);
}

int cli_launch(const char *command, int32_t n_ranks, char **argv) {
  enum { MOST_WORDS = 8, MOST_PATH = 4096 };
  char self[MOST_PATH], ranks[16], words[64], mpirun[] = KF_MPIRUN, count[] = "-n";
  size_t n_args = 0, n = 0;
  while (argv[n_args]) n_args++;
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0)
    return cli_fail(EXIT_FAILED, command, "cannot read /proc/self/exe: %s", strerror(errno));
  self[length] = 0;
  char **args = malloc((n_args + MOST_WORDS + 5) * sizeof *args);
  if (!args) return cli_fail(EXIT_FAILED, command, "out of memory");
  snprintf(ranks, sizeof ranks, "%d", n_ranks);
  snprintf(words, sizeof words, "%s", command);
  args[n++] = mpirun;
  args[n++] = count;
  args[n++] = ranks;
  args[n++] = self;
  for (char *word = strtok(words, " "); word && n < MOST_WORDS + 4; word = strtok(NULL, " "))
    args[n++] = word;
  memcpy(args + n, argv, (n_args + 1) * sizeof *args); /* with the NULL */
  set_environment(n_ranks);
  execv(mpirun, args);
  free(args);
  return cli_fail(EXIT_FAILED, command, "cannot start %s: %s", mpirun, strerror(errno));
}

#else

bool cli_can_launch(void) { return false; }

bool cli_launched(void) { return false; }

int cli_launch(const char *command, int32_t n_ranks, char **argv) {
  (void)n_ranks;
  (void)argv;
  return cli_fail(EXIT_FAILED, command, "this knapformer was built without MPI");
}

#endif

/* mpiexec ends all ranks as soon as one exits: so rank 0 speaks at once, and the others only where
** it has not ended them by then, because it cannot speak. */
int cli_fail_rank(const char *command, const kf_comm *comm) {
  int32_t rank = kf_comm_rank(comm);
  if (rank > 0) sleep(3); /* Open MPI takes a second to end the others */
  return cli_fail(EXIT_FAILED, command, "rank %d: %s", rank, kf_last_error());
}
