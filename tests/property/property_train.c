/* SPDX-License-Identifier: Apache-2.0 */
/* train SEED: training with and without the balancer on 1 to 5 local ranks: the same numbers. */
#include "parity.h"
#include "ranks.h"

typedef struct rounds {
  uint64_t seed;
  bool good[RANKS_MOST];
} rounds;

static void body(kf_comm *comm, void *arg) {
  rounds *r = arg;
  r->good[kf_comm_rank(comm)] = parity_check(comm, r->seed, 2);
}

int main(int argc, char **argv) {
  rounds r = {.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1};
  bool good = true;
  for (int32_t n = 1; n <= 5; n++) {
    ranks_run(n, 60, body, &r);
    for (int32_t i = 0; i < n; i++) good = good && r.good[i];
    r.seed += 7;
  }
  return good ? 0 : 1;
}
