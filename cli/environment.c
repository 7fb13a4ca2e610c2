/* SPDX-License-Identifier: Apache-2.0 */
/*
** Which rank of how many is this process? Launchers say it in the environment, each in its own
** words.
**
** They nest: mpirun inside an allocation of Slurm's starts its helpers by srun, so that a rank of
** Open MPI or MPICH also carries the numbers of that helper; torchrun is started by srun or mpirun
** and starts ranks of its own. The innermost counts, which is the order of the table.
*/
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct launcher {
  const char *name, *rank;
  const char *n_ranks[2]; /* the first that is set counts */
  const char *local_rank[2];
  bool mpi;
} launcher;

static const launcher launchers[] = {
  {"torchrun", "RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, false},
  {"mpirun of Open MPI",
   "OMPI_COMM_WORLD_RANK",
   {"OMPI_COMM_WORLD_SIZE"},
   {"OMPI_COMM_WORLD_LOCAL_RANK"},
   true},
  /* Intel's too, and srun --mpi=pmi2, which leaves the local rank to Slurm. */
  {"mpiexec of MPICH", "PMI_RANK", {"PMI_SIZE"}, {"MPI_LOCALRANKID", "SLURM_LOCALID"}, true},
  {"srun", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, true},
};

enum { N_LAUNCHERS = sizeof launchers / sizeof launchers[0] };

/* "" counts as not set, as a shell that clears a variable leaves it. */
static const char *value_of(const char *name) {
  const char *value = name ? getenv(name) : NULL;
  return value && *value ? value : NULL;
}

static const char *first_set(const char *const names[2]) {
  return value_of(names[0]) || !value_of(names[1]) ? names[0] : names[1];
}

/*
** In the shells of salloc and sbatch SLURM_PROCID is 0 and SLURM_NTASKS the whole job's, but nobody
** else is there: only srun starts ranks, and numbers its steps from 0. The largest numbers are the
** batch script (4294967291), an interactive shell (4294967290) and others that are no steps.
*/
static bool in_step(void) {
  const char *step = value_of("SLURM_STEP_ID");
  return step && !(strlen(step) == 10 && strcmp(step, "4294967280") >= 0);
}

static const launcher *find(bool mpi) { /* only launchers of MPI's ranks? */
  for (int i = 0; i < N_LAUNCHERS; i++) {
    const launcher *l = &launchers[i];
    if ((mpi && !l->mpi) || !value_of(l->rank)) continue;
    if (strcmp(l->rank, "SLURM_PROCID") != 0 || in_step()) return l;
  }
  return NULL;
}

/* Digits only, from min to max; says what is wrong. */
static bool read_number(const char *command, const char *name, int64_t min, int64_t max,
                        int32_t *out) {
  char option[80];
  int64_t value;
  snprintf(option, sizeof option, "environment: %s", name);
  if (!cli_int(command, option, value_of(name), min, max, &value)) return false;
  *out = (int32_t)value;
  return true;
}

int cli_find_ranks(const char *command, cli_ranks *out) {
  const launcher *l = find(false);
  cli_ranks found = {.rank = 0, .n_ranks = 1, .local_rank = 0, .launcher = NULL};
  if (!l) {
    *out = found;
    return 0;
  }
  const char *n_ranks = first_set(l->n_ranks), *local_rank = first_set(l->local_rank);
  if (!value_of(n_ranks))
    return cli_fail(EXIT_MISUSE, command,
                    "environment: %s is \"%s\" but %s is not set, expected both, as %s sets them",
                    l->rank, value_of(l->rank), n_ranks, l->name);
  if (!read_number(command, n_ranks, 1, KF_MAX_RANKS, &found.n_ranks) ||
      !read_number(command, l->rank, 0, found.n_ranks - 1, &found.rank))
    return EXIT_MISUSE;
  found.local_rank = -1;
  if (value_of(local_rank) &&
      !read_number(command, local_rank, 0, found.n_ranks - 1, &found.local_rank))
    return EXIT_MISUSE;
  found.launcher = l->name;
  *out = found;
  return 0;
}

bool cli_mpi_rank(void) {
  const launcher *l = find(true);
  if (!l || strcmp(l->rank, "SLURM_PROCID") != 0) return l != NULL;
  const char *n_tasks = value_of(first_set(l->n_ranks));
  return n_tasks && strcmp(n_tasks, "1") != 0; /* srun --pty bash is a shell */
}
