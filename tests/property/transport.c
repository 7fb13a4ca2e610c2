/* SPDX-License-Identifier: Apache-2.0 */
/* transport SEED: random worlds of 1 to 9 local ranks through step, route, ulysses and attention. */
#include "transport.h"

#include <pthread.h>

enum { MOST_RANKS = 9, N_CASES = 40 };

typedef struct member {
  pthread_t thread;
  kf_comm *comm;
  uint64_t seed;
  bool held;
} member;

static void *run(void *arg) {
  member *m = arg;
  m->held = transport_check(m->comm, m->seed, N_CASES);
  return NULL;
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  bool held = true;
  for (int32_t n = 1; n <= MOST_RANKS; n++) {
    member team[MOST_RANKS];
    kf_comm *comm[MOST_RANKS];
    if (kf_comm_local_create(n, comm)) return 1;
    for (int32_t r = 0; r < n; r++) {
      team[r].comm = comm[r];
      team[r].seed = seed * 16 + (uint64_t)n;
      if (pthread_create(&team[r].thread, NULL, run, &team[r])) return 1;
    }
    for (int32_t r = 0; r < n; r++) {
      pthread_join(team[r].thread, NULL);
      kf_comm_free(comm[r]);
      held = held && team[r].held;
    }
  }
  return held ? 0 : 1;
}
