/* SPDX-License-Identifier: Apache-2.0 */
/* transport SEED: random worlds of 1 to 9 local ranks through step, route, ulysses and
** attention. */
#include "transport.h"

#include "ranks.h"

enum { MOST_RANKS = 9, N_CASES = 40 };

typedef struct trials {
  uint64_t seed;
  bool failed[MOST_RANKS];
} trials;

static void run(kf_comm *comm, void *arg) {
  trials *t = arg;
  t->failed[kf_comm_rank(comm)] = !transport_check(comm, t->seed, N_CASES);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  bool failed = false;
  for (int32_t n = 1; n <= MOST_RANKS; n++) {
    trials t = {.seed = seed * 16 + (uint64_t)n};
    ranks_run(n, KF_DEFAULT_TIMEOUT_S, run, &t);
    for (int32_t r = 0; r < n; r++) failed = failed || t.failed[r];
  }
  return failed;
}
